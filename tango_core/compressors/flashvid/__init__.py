"""FlashVID: diverse selection per frame, and trees of similar tokens over frames.

`method.py` is the compressor with the published values per model; `trees.py` has the budgets, the
selection (ADTS) and the trees (TSTM).

May import: what `tango_core.compressors` may.
"""
