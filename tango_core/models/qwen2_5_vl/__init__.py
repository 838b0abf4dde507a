"""Qwen2.5-VL: windowed tower, pairs of frames, positions in time, row and column.

`family.py` is the family, `options.py` what only it can be told. The rest is one module per
concern: files (`checkpoint`), description, encoder (`preprocessing`, `tower`, `encoder`), prompt
(`layout`, `positions`), weights of the language half (`language_model`). This room imports what all
models share, and no other family.
"""
