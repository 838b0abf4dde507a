"""The token cache: compressed clips as Parquet files, their identity, shards and maintenance.

`tokens.py` is one cache, `folders.py` all caches under a root. Imports `pipeline.storage` and
`tango_core`, never a stage. What makes two caches different is decided in `fingerprint.py`.
"""
