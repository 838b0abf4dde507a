"""Checkpoint files: find a directory, load chosen tensors, read tokenizer and normalisation.

Knows no architecture: what the files of one family say is in that family's package. Imports nothing of
`tango_core.models` but itself. A new kind of file that several families have is read here.
"""
