"""Qwen3-VL, dense: DeepStack rows beside the tokens, times and marks between pairs of frames.

`family` holds the options, `files` reads checkpoints, `encoder` is the vision half, `layout` the
order and positions of a prompt. Imports what all models share, and no other family.
"""
