"""What can go wrong with the machines a job runs on; what goes wrong with a clip is a row instead."""

from __future__ import annotations


class ClusterError(ConnectionError):
    """The cluster that was named cannot be reached."""


class WorkerError(RuntimeError):
    """A worker failed in a way that would fail for every clip, such as a model that does not load."""
