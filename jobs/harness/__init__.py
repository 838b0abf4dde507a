"""Exchange of answers with VLMEvalKit and lmms-eval: their files written and read.

`exchange.py` is the two commands, `answers.py` reads a run; each harness has a module, which reads
and writes its files in general. What is a benchmark's own in them the benchmark states itself.
Imports `config`, `results`, `run` and `report`. Another harness is a module here and an attribute
of `AnnotatedBenchmark`.
"""
