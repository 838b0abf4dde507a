"""Charades-STA: the release in `benchmark.py`; prompt, score and files of lmms-eval in another.

`times.py` reads spans in replies as lmms-eval's two tasks do. Imports `annotations`, `protocols`
and `scoring`, no other benchmark.
"""
