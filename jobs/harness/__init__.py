"""Exchange of answers with VLMEvalKit and lmms-eval.

`exchange.py` has the two commands, `predictions.py` writes and reads the files of both harnesses
and matches replies to questions. What differs between benchmarks is stated by the benchmarks.
Imports `config`, `results`, `run` and `report`. Another harness is a writer and a reader in
`predictions.py` and an attribute of `AnnotatedBenchmark`.
"""
