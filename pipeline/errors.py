"""Errors of machines, stores and workers; errors of a clip are rows instead."""

from __future__ import annotations


class ClusterError(ConnectionError):
    """The cluster that was named cannot be reached."""


class WorkerError(RuntimeError):
    """A worker failed as it would for every clip, e.g. because its model does not load."""


class DeviceError(RuntimeError):
    """The GPU answers every call of this process with an error; only a new process gets it back."""


class StoreError(OSError):
    """A disk is full or a store does not answer, and waiting did not help."""
