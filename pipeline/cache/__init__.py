"""The token cache: compressed clips as Parquet files, their identity, shards and maintenance.

`tokens.py` is one cache, `rows.py` one entry, `shards.py` many entries in one file, `folders.py`
all caches under a root; `compact.py`, `removal.py` and `export.py` look after them. What makes two
caches different is decided in `fingerprint.py` and in `tokens.open_cache`. Imports
`pipeline.storage`, `pipeline.clock`, `pipeline.rows` and `tango_core`, never a stage.
"""
