"""LLaVA-OneVision and LLaVA-Video: SigLIP tower, projector, pooling, newline tokens, Qwen2.

`onevision` and `video` are the two families, `family` their options and the files of their
checkpoints; another LLaVA is a module like `video`. `encoder` is the vision half, `layout` the
order of a prompt. Imports what all models share, and no other family.
"""
