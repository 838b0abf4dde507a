"""LLaVA-OneVision and LLaVA-Video: SigLIP tower, projector, pooling, newline tokens, Qwen2.

`onevision.py` and `video.py` are the two families; `family.py` and `options.py` say what they share
and differ in. The rest is one module per concern: files (`checkpoint`, `original`), description,
encoder (`encoder`, `siglip`), prompt (`layout`, `newlines`, `time_instruction`), weights of the
language half (`language_model`). Another LLaVA is a module like `video.py`. This room imports what
all models share, and no other family.
"""
