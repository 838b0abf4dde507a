"""Caches: token sets, and features from which token sets are computed again.

`rows.py` and `feature_rows.py` are the columns of both kinds of entry with their checks, `names.py`
how entries are called, `shards.py` many of them in one file. `directory.py` is what `tokens.py`
(the token cache) and `features.py` (the feature cache) have in common; `derived.py` computes a
token set from stored features. `folders.py`, `compact.py`, `removal.py` and `export.py` look after
caches; `fingerprint.py` names clips and settings. May import `pipeline.storage`,
`pipeline.runtime`, `pipeline.rows` and `tango_core`.
"""
