"""Shared parts of the vision halves: frame batches, patches, traces, encoders.

`encoder` is the base of every encoder of this package, `patch_tower` that of towers that merge
patches (Qwen's). Imports the interfaces and `files`, and no family.
"""
