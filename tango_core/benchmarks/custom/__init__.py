"""People's own videos: `benchmark.py` finds clips, `rows.py` reads a table of questions.

Imports `protocols` and `scoring`. A new column with a meaning goes into `rows.py`.
"""
