"""Benchmarks that are a table of annotations beside a folder of videos: what they share.

`benchmark.py` is their base class, `records.py` a row that was understood, `tables.py` reads files,
`layout.py` finds them, `harness_files.py` says what a benchmark states about its files in the
evaluation harnesses. Imports `scoring` and the base of all benchmarks, no benchmark. What is true
of one release only goes into that benchmark's room.
"""
