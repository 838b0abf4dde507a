"""Which files of a checkpoint a job opens: its configuration, and weights of one half or both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jobs.fetch.hub import FetchError, Hub, RemoteFile
from jobs.fetch.stream import Download
from tango_core.models import MODELS, model_entry
from tango_core.models.checkpoints.directory import (
    HUB_ID,
    SMALL_FILES,
    ArchitectureError,
    Checkpoint,
)
from tango_core.models.family import Half

_CONFIG, _INDEX, _ONE_FILE = "config.json", "model.safetensors.index.json", "model.safetensors"


def source_of(name: str) -> str:
    """The hub id of a model's name; an id is returned as it is.

    Raises:
        ValueError: If there is no such model, or nothing of it is on the hub.
    """
    if HUB_ID.fullmatch(name):
        return name
    entry = model_entry(name)
    if entry.embedded:
        raise ValueError(f"model {name} comes with this package; there is nothing to fetch")
    if entry.path is None:
        raise ValueError(f"model {name} has no checkpoint of its own; give the id of one")
    return entry.path


def files_of(
    hub: Hub,
    sha: str,
    listed: Mapping[str, RemoteFile],
    folder: Path,
    name: str,
    half: Half | None,
) -> tuple[RemoteFile, ...]:
    """Files to fetch of a checkpoint.

    Args:
        hub: Its repository.
        sha: Commit.
        listed: All files of the commit.
        folder: An empty one, for the two small files that are read to find out.
        name: Entry of `MODELS`, or a hub id.
        half: Which half; `None` for both.

    Raises:
        FetchError: If it holds no weights that are read here.
        ValueError: If it is a model of another kind, and a half was asked for.
    """
    for small in (_CONFIG, _INDEX):
        if small in listed:
            Download(listed[small], folder / "part", folder / small).run(hub, sha)
    checkpoint = Checkpoint(hub.repository, folder, sha, "model")
    checkpoint.config()
    names = checkpoint.weight_files() if half is None else _half_files(checkpoint, name, half)
    absent = [one for one in names if one not in listed]
    if absent:
        raise FetchError(
            f"{hub.repository} has no {absent[0]} at revision {hub.revision}; only safetensors are "
            "read, choose another checkpoint or --revision"
        )
    # What loading it asks for; `*` stands for folders, too, as it does there.
    ends = tuple(pattern.removeprefix("*") for pattern in SMALL_FILES)
    small_files = [file for path, file in listed.items() if path.endswith(ends)]
    return (*small_files, *(listed[one] for one in names))


def _half_files(checkpoint: Checkpoint, name: str, half: Half) -> tuple[str, ...]:
    """Weight files of one half, by the family that reads the checkpoint."""
    if not HUB_ID.fullmatch(name):
        return model_entry(name).load_family().half_files(checkpoint, half)
    reasons = []
    for entry in MODELS.values():
        try:
            return entry.load_family().half_files(checkpoint, half)
        except ArchitectureError as error:
            reasons.append(str(error))
    raise ValueError(f"--half {half}: {reasons[-1]}")
