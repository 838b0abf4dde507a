"""What the vision halves of all families share: batches of frames, patches, traces, encoders.

`encoder` is the base of every encoder of this package, `patch_tower` that of towers that merge
patches (Qwen's). Imports the interfaces and `files`, and no family.
"""
