"""Video-MME: the release in `benchmark.py`; prompt, score and files of a harness in one module.

Imports `annotations`, `protocols` and `scoring`, no other benchmark. Another harness is a module
here and an attribute of the class.
"""
