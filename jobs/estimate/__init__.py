"""Estimates before a job starts: clips, tokens, bytes, memory, time, and pools that fit.

    work      clips, tokens and bytes of a plan; rates that earlier runs measured; time per stage
    memory    bytes of one actor: weights, activations, keys and values, and what its GPUs have

Imports `results` and `units` of `jobs`, and everything of `pipeline`. Nothing here starts a job or
loads a weight; `jobs/run/dry_run.py` puts it together.
"""
