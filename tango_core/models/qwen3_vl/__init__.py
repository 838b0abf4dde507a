"""Qwen3-VL and Qwen3.5, dense: time stamps and markers between pairs of frames.

Qwen3-VL has DeepStack rows beside the tokens; Qwen3.5 (`qwen3_5`) has none, but linear attention in
its language model. `family` holds the options and reads checkpoints, `encoder` is the vision
half, `layout` the order and positions of a prompt. Imports what all models share, and no other
family.
"""
