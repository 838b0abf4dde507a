"""Errors of machines, stores and workers; errors of a single clip are recorded in rows instead."""

from __future__ import annotations


class ClusterError(ConnectionError):
    """The cluster cannot be reached."""


class WorkerError(RuntimeError):
    """A worker failed for a reason that affects every clip, e.g. its model does not load."""


class DeviceError(RuntimeError):
    """Every GPU call of this process fails; only a new process can use the GPU again."""


class StoreError(OSError):
    """A disk stayed full or a store stayed unavailable after all retries."""
