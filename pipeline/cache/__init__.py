"""Caches of token sets, and of features from which token sets can be computed.

`rows.py` defines and checks rows of both kinds of entry, and `names.py` their names and the keys of
clips. `directory.py` holds the base of all caches with their shards, and the token cache;
`features.py` the feature cache; `derived.py` computes token sets from stored features. `folders.py`
and `export.py` maintain caches. May import `pipeline.storage`, `pipeline.runtime`, `pipeline.rows`
and `tango_core`.
"""
