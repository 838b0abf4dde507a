"""Files on a disk or in an object store, whole or not at all.

`files.py` is the only way to files: `Storage`, on a disk or in a store (`objects.py`, which repeats
requests). `seal.py` are files that carry a digest, `leases.py` one driver per run, `faults.py`
which errors are a store's. `urls.py` checks URLs, `videos.py` keeps fetched videos on the node,
`mirror.py` annotations, `copies.py` whole runs.
"""

from pipeline.storage.files import Storage

__all__ = ["Storage"]
