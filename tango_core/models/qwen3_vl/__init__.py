"""Qwen3-VL (dense): full attention per frame pair, DeepStack, the time before every pair of frames.

`family.py` is the family, `options.py` what only it can be told. The rest is one module per
concern: files (`checkpoint`), description, encoder (`tower`, `encoder`), prompt (`layout`,
`stamps`), weights of the language half (`language_model`). This room imports what all models share,
and no other family.
"""
