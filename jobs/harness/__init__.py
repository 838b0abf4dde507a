"""Exchange of answers with VLMEvalKit and lmms-eval: their files written and read.

`exchange.py` is the two commands; each harness has a module, which reads and writes its files in
general, and `predictions.py` is what both need. What is a benchmark's own in them the benchmark
states itself. Imports `config`, `results`, `run` and `report`. Another harness is a module here and
an attribute of `AnnotatedBenchmark`.
"""
