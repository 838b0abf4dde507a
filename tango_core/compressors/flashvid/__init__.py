"""FlashVID in parts: what is published per model, budgets, diverse selection, trees over frames.

What lives here: `method.py` is the compressor, `published.py` the values that depend on the model,
`selection.py` its step one (ADTS), `trees.py` its step two (TSTM), `budgets.py` the counts of both.

May import: what `tango_core.compressors` may.
"""
