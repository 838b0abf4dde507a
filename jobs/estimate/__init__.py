"""Estimates before a job starts: clips, tokens, bytes, memory, time, and pools that fit.

    sizes     clips and questions of a plan, tokens of every method, bytes of caches and features
    memory    bytes of one actor: weights, activations, keys and values, and what its GPUs have
    timing    rates that earlier runs measured; time of every stage, the slowest of them, cost
    table     all of it for a reader, and as JSON

Imports `results` and `units` of `jobs`, and everything of `pipeline`. Nothing here starts a job or
loads a weight; `jobs/run/dry_run.py` puts it together.
"""
