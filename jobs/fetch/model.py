"""`tango model get`: a checkpoint of the hub, whole or half, into the hub's cache or a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from huggingface_hub import constants, snapshot_download
from huggingface_hub.utils import disable_progress_bars
from rich.console import Console

from jobs import exit_codes
from jobs.fetch import hub
from jobs.run.interrupt_message import leaves_behind
from jobs.units import human_bytes
from tango_core.errors import InputError
from tango_core.hub_errors import page_of
from tango_core.models import MODELS, model_entry
from tango_core.models.checkpoints import directory
from tango_core.models.family import Half


def model_get(
    name: str,
    console: Console,
    *,
    folder: Path | None = None,
    half: Half | None = None,
    revision: str = "main",
    **options: Unpack[hub.Options],
) -> int:
    """Fetch a checkpoint; afterwards a recipe finds it without a network.

    Args:
        name: Entry of `MODELS`, or the id of a checkpoint on the hub.
        console: Where the statement and the bars go.
        folder: Where to put its files; `None` for the hub's cache.
        half: Only the files that one half is loaded from; `None` for all.
        revision: Branch, tag or commit.
        options: See `hub.Options`.

    Raises:
        ValueError: If there is no such model.
        FetchError: If it cannot be fetched.
    """
    if half is not None and folder is not None:
        raise InputError(
            f"--half {half} needs the hub's cache: a folder has to hold the whole checkpoint; "
            "leave out --dir or --half"
        )
    leaves_behind("nothing was fetched")
    disable_progress_bars()
    source = _source_of(name)
    if constants.HF_HUB_OFFLINE and not (folder or half) and directory.is_here(source, revision):
        hub.show(console, f"{source}: all of it is in the hub's cache")
        return exit_codes.OK
    remote = hub.Repository(source, "model", revision)
    files = _files_of(remote, name, half)
    cache = Path(constants.HF_HUB_CACHE).expanduser()
    root = folder.expanduser().absolute() if folder else cache
    fetch = partial(
        snapshot_download,
        source,
        revision=revision,
        allow_patterns=[file.path for file in files],
        local_dir=root if folder else None,
        max_workers=options.get("jobs", 4),
    )
    with remote.errors():
        planned: Any = fetch(dry_run=True)
    missing = [each for each in planned if each.will_download]
    size = sum(each.file_size for each in missing)
    what = f"the {half} half" if half else "the checkpoint"
    for line in (
        f"{remote.name}: revision {remote.revision} ({remote.sha[:12]}), to {root}",
        f"{what}: {len(files)} files, {human_bytes(sum(file.size for file in files))}; to fetch: "
        f"{len(missing)} files, {human_bytes(size)}",
        f"licence: {remote.licence or 'not stated'}; {page_of(remote.name)}",
        f"access: {'for who asks for it' if remote.gated else 'not gated'}",
        f"disk: {human_bytes(hub.free_bytes(root))} are free",
    ):
        hub.show(console, line)
    if missing:
        names = [each.filename for each in missing]
        if not hub.confirmed(remote, names, size, size, root, console, **options):
            return exit_codes.OK
    elif options.get("dry_run"):
        return exit_codes.OK
    else:
        hub.show(console, "all of it is here")
    with remote.errors():
        snapshot: Any = fetch()  # also links the snapshot to equal files of other commits
    disable_progress_bars()
    if half is None:
        directory.raise_if_damaged(str(snapshot))
    hub.show(console, f"model.path: {root if folder else source}")
    return exit_codes.OK


def _source_of(name: str) -> str:
    """The hub id of a model's name; an id is returned as it is."""
    if directory.HUB_ID.fullmatch(name):
        return name
    entry = model_entry(name)
    if entry.embedded:
        raise InputError(f"model {name} comes with this package; there is nothing to fetch")
    if entry.path is None or not directory.HUB_ID.fullmatch(entry.path):
        raise InputError(f"model {name} has no checkpoint of its own; give the id of one")
    return entry.path


def _files_of(remote: hub.Repository, name: str, half: Half | None) -> list[hub.RemoteFile]:
    """Files of a checkpoint that a job opens, the small ones first.

    Raises:
        FetchError: If it holds no weights that are read here.
        ValueError: If it is a model of another kind, and a half was asked for.
    """
    listed = {file.path: file for file in remote.files()}
    with TemporaryDirectory(prefix="tango-model-") as folder:
        small = ["config.json", "model.safetensors.index.json"]
        remote.raise_if_closed("config.json")
        snapshot_download(remote.name, revision=remote.sha, allow_patterns=small, local_dir=folder)
        checkpoint = directory.Checkpoint(remote.name, Path(folder), remote.sha, "model")
        checkpoint.config()
        names = checkpoint.weight_files() if half is None else _half_files(checkpoint, name, half)
    absent = [one for one in names if one not in listed]
    if absent:
        raise hub.FetchError(
            f"{remote.name} has no {absent[0]} at revision {remote.revision}; only safetensors are "
            "read, choose another checkpoint or --revision"
        )
    # What loading it asks for; `*` stands for folders, too, as it does there.
    ends = tuple(pattern.removeprefix("*") for pattern in directory.SMALL_FILES)
    wanted = {path: file for path, file in listed.items() if path.endswith(ends) or path in names}
    return sorted(wanted.values(), key=lambda file: (file.size, file.path))


def _half_files(checkpoint: directory.Checkpoint, name: str, half: Half) -> tuple[str, ...]:
    """Weight files of one half, by the family that reads the checkpoint."""
    if not directory.HUB_ID.fullmatch(name):
        return model_entry(name).load_family().half_files(checkpoint, half)
    reason = ""
    for entry in MODELS.values():
        try:
            return entry.load_family().half_files(checkpoint, half)
        except directory.ArchitectureError as error:
            reason = str(error)
    raise InputError(f"--half {half}: {reason}")
