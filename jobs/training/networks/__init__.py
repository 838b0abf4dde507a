"""The parts of the embedded model while they are trained: initial weights, outputs and losses.

Imports `jobs.training.data` and models of transformers. Every part is a module of its own;
`assemble.py` joins the trained parts. Names of parameters are keys of checkpoints: they stay.
"""
