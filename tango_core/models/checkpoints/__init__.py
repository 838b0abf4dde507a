"""Checkpoint files: find a directory, load chosen tensors, read the tokenizer.

Knows no architecture; what the files of one family say is in that family's room.
"""
