"""Atomic files on a disk or in an object store.

All file access goes through `Storage` in `files.py`, for object stores with retries in
`objects.py`, which also recognises storage errors. `seal.py` writes and checks files with a digest,
`leases.py` ensures one driver per run, `urls.py` checks URLs. `copies.py` makes local copies of
videos, annotations and whole runs.
"""

from pipeline.storage.files import Storage

__all__ = ["Storage"]
