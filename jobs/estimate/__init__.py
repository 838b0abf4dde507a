"""What a job will take, before it starts: clips, tokens, bytes, memory, time, and pools that fit.

    counts    clips and questions of a plan: cached, to encode, to answer
    tokens    tokens and cache bytes of every method, from caches, earlier runs or a made-up clip
    features  bytes of the feature store
    memory    bytes of one actor: weights, activations, keys and values
    room      what the GPUs of an actor have for it
    rates     seconds per clip that earlier runs measured
    timing    time of every stage, the slowest of them, cost
    table     all of it for a reader, and as JSON

Imports `config`, `results` and `units` of `jobs`, and everything of `pipeline`. Nothing here starts
a job or loads a weight; `jobs/run/dry_run.py` puts it together.
"""
