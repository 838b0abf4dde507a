"""LVBench: the release in `benchmark.py`; prompt, score, files of lmms-eval in one module.

Imports `annotations`, `protocols` and `scoring`, no other benchmark. Another harness is a module
here and an attribute of the class.
"""
