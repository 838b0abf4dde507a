"""The token cache: compressed clips as Parquet files, their identity, shards and maintenance.

`directory.py` is what all caches share and `names.py` how entries are called. `tokens.py` is a
token cache, with `rows.py` (an entry with tokens) and `plans.py` (one that makes them from
features), both sealed by `sealed_rows.py`; `features.py` is a feature cache, with `feature_rows.py`
(an entry), `token_layout.py` (its tokens), `stored_features.py` (a clip, opened) and `quantised.py`
(8 bits); `companions.py` is what goes with a token. `shards.py` is many entries in one file,
`index.py` which they are, `footers.py` their checked footers, `places.py` where in a file an entry
is,
`stored.py` any entry of any cache, `folders.py` all caches under a root; `checks.py`, `compact.py`,
`removal.py`, `dependents.py` and `export.py` look after them. What makes two caches different is
decided in `fingerprint.py`, `tokens.open_cache` and `features.open_features`. Imports
`pipeline.storage`, `pipeline.clock`, `pipeline.rows` and `tango_core`, never a stage.
"""
