"""TempCompass: the release in `benchmark.py`, our reading in `reading.py`, a module per harness.

Imports `annotations`, `protocols` and `scoring`, no other benchmark. Another harness is a module
here and an attribute of the class.
"""
