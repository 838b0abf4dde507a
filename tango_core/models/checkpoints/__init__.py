"""Checkpoint files: find a directory, load chosen tensors, read tokenizer and normalisation.

Independent of architectures, which the packages of the families handle. Imports only itself and
`placement` of `tango_core.models`. Readers of file types that several families use belong here.
"""
