"""Checkpoint files: find a directory, load chosen tensors, read tokenizer and normalisation.

Knows no architecture: the package of a family reads what its files say. Imports nothing of
`tango_core.models` but itself and `placement`. A new kind of file that several families have is
read here.
"""
