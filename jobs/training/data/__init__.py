"""Training samples, made from the descriptions of generated clips, never from stored files.

Imports the world of shapes (`tango_core.benchmarks.shapes`) and its tokenizer. A new label of
frames goes into `frames.py`, a new form of question into `samples.py`, what is used when into
`curriculum.py`.
"""
