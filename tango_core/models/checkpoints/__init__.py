"""Checkpoint files: find a directory, read its configuration, load chosen tensors.

Independent of architectures, which the packages of the families handle. Imports only itself and
`placement` of `tango_core.models`. Readers of file types that several families use belong here.
"""
