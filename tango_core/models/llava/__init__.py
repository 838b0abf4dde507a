"""LLaVA-OneVision and LLaVA-Video: SigLIP tower, projector, pooling, newline tokens, Qwen2.

`onevision` and `video` are the two families, `family` what they share and differ in; another LLaVA
is a module like `video`. `files` reads checkpoints in both layouts, `encoder` is the vision half,
`layout` the order of a prompt. Imports what all models share, and no other family.
"""
