"""Qwen2.5-VL: windowed tower, pairs of frames, positions in time, row and column.

`family` holds the options and reads checkpoints, `encoder` is the vision half, `layout` the order
and positions of a prompt. Imports what all models share, and no other family.
"""
