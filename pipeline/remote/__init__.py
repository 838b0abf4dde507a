"""Everything that is not on a local disk: object stores and what is fetched from them.

`urls.py` says what a URL may look like, `filesystems.py` opens fsspec's file systems with bounded
waits, `retries.py` repeats what failed for a moment, `objects.py` is one store as the rest of the
pipeline sees it, `dialects.py` what stores say differently: conditional PUTs, versions, the time.
`ranges.py` is an object of which parts are read. `videos.py` keeps fetched videos on the node,
`mirror.py` annotations, `copies.py` whole runs. Imports `pipeline.redaction` and nothing else of
the pipeline; `pipeline.storage` stands above it.
"""
