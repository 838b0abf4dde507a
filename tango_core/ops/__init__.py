"""Tensor arithmetic that several methods or encoders share; it knows no method and no model.

What lives here: one file per operation (clustering, merging, segmentation, budgets, ST-RoPE,
saliency, precision, work in blocks, transfer), as functions of tensors with shapes in their
docstrings.

May import: torch, numpy and other files of this folder.

A function moves here when a second method uses it.
"""
