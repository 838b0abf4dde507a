"""Files on a disk or in an object store, written atomically.

`files.py` is the only way to files: `Storage`, on a disk (`disk.py`, step by step) or in a store
(`objects.py`, whose requests `retries.py` repeats, by the `dialects.py` of each kind of store).
`seal.py` are files that carry a digest, `leases.py` one driver per run, `faults.py` which errors
are a store's and how a job waits for it. `urls.py` says what a URL may look like, `videos.py` keeps
fetched videos on the node, `mirror.py` annotations, `copies.py` whole runs.
"""

from pipeline.storage.files import Storage

__all__ = ["Storage"]
