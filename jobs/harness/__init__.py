"""Exchange of answers with VLMEvalKit and lmms-eval: their files written and read.

Imports `results` and `run`. One module per harness; `exchange.py` is the two commands.
"""
