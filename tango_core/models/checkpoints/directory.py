"""Checkpoint directories: find, read the configuration, identify.

A checkpoint is a local directory or a hub id. Only JSON files are fetched to describe one; of the
weights only the files that hold a wanted tensor (see `weights.py`). Formats that run code when read
(pickles, remote modelling code) are never opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError, safe_open

from tango_core.errors import InputError, MissingFileError
from tango_core.hub_errors import HUB_ERRORS, reason_of
from tango_core.local_files import parse_json, read_text

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SMALL_FILES = ("*.json", "*.txt", "*.model")

# Below this size a file is hashed whole; above it, its header and evenly spaced blocks are.
_FULL_HASH_BYTES = 64 * 2**20
_BLOCK_BYTES = 64 * 2**10
_NUM_BLOCKS = 64

_DIGESTED_JSON = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tango.json",
    "video_preprocessor_config.json",
)


class ArchitectureError(InputError):
    """A checkpoint does not have the architecture of the requested model."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose configuration is on this machine.

    Attributes:
        source: Directory or hub id as given by the user.
        directory: Directory of its files (for a hub id the local snapshot, possibly without
            weights).
        revision: Commit of a hub checkpoint; `None` for a local directory.
        setting: Name of the setting for error messages.
    """

    source: str
    directory: Path
    revision: str | None
    setting: str = "model.path"

    @property
    def name(self) -> str:
        """Setting and source, with which messages begin."""
        return f"{self.setting} {self.source}"

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Content of a JSON file, or `None` if the checkpoint has none of that name.

        Raises:
            ValueError: If the file is not JSON.
        """
        file = self.directory / name
        if not file.is_file():
            return None
        content: dict[str, Any] = parse_json(read_text(file), f"{self.name}, file {name}")
        return content

    def config(self) -> dict[str, Any]:
        """Content of config.json."""
        config = self.read_json("config.json")
        if config is None:
            raise MissingFileError(f"{self.name} holds no config.json; give a model's directory")
        return config

    def weight_map(self) -> dict[str, str] | None:
        """Name of the file that holds each tensor, or `None` for a checkpoint without an index."""
        index = self.read_json("model.safetensors.index.json")
        return None if index is None else index["weight_map"]

    def weight_files(self) -> tuple[str, ...]:
        """Names of the safetensors files, from the index if there is one.

        Raises:
            FileNotFoundError: If there are none, or a file in the index is missing in a local
                directory.
        """
        located = self.weight_map()
        if located is not None:
            names = sorted(set(located.values()))
        elif self.revision is not None:
            names = ["model.safetensors"]
        else:
            names = sorted(file.name for file in self.directory.glob("*.safetensors"))
        if not names:
            raise MissingFileError(
                f"{self.name} holds no *.safetensors file; convert it with save_pretrained"
            )
        missing = [name for name in names if not (self.directory / name).exists()]
        if missing and self.revision is None:
            raise MissingFileError(
                f"{self.name} lacks {missing[0]} of its index; copy the checkpoint again"
            )
        return tuple(names)

    def fetch(self, names: Sequence[str]) -> tuple[Path, ...]:
        """Local paths of the named files, downloaded first if this is a hub checkpoint."""
        paths = tuple(self.directory / name for name in names)
        absent = [path.name for path in paths if not path.exists()]
        if absent:
            _download(self.source, self.revision, absent, self.setting)
        for path in paths:
            if not path.exists():  # offline, the hub's client silently gives a part of a snapshot
                raise MissingFileError(
                    f"{self.name}: {path.name} is not on this machine and could "
                    f"not be fetched; run `tango model get {self.source}` where there is a network"
                )
        return paths


def resolve_checkpoint(
    source: str, revision: str | None = None, *, setting: str = "model.path"
) -> Checkpoint:
    """Find a checkpoint and make sure that its configuration is on this machine.

    Args:
        source: A directory, or a hub id such as `org/name`.
        revision: Branch, tag or commit of a hub id; `None` for its main branch.
        setting: Named in error messages.

    Raises:
        FileNotFoundError: If there is no such directory or hub checkpoint, or it has no
            config.json.
        ValueError: If the checkpoint is quantised or an adapter.
    """
    directory = Path(os.path.expanduser(source))
    if directory.is_dir():
        found = Checkpoint(source, directory, None, setting)
    elif HUB_ID.fullmatch(source) and not directory.exists():
        snapshot = _download(source, revision, SMALL_FILES, setting)
        found = Checkpoint(source, snapshot, snapshot.name, setting)
    else:
        raise MissingFileError(
            f"{setting} {source} is neither a directory nor a hub id such as 'org/name'; "
            "give a directory that holds config.json and *.safetensors"
        )
    _raise_if_not_plain(found)
    return found


def _raise_if_not_plain(checkpoint: Checkpoint) -> None:
    """Raise for adapters, and for quantised weights even if they fit the plain architecture."""
    if (checkpoint.directory / "adapter_config.json").is_file():
        raise InputError(
            f"{checkpoint.name} holds an adapter; merge it with peft (merge_and_unload)"
        )
    content = checkpoint.config()
    for part in (content, content.get("text_config"), content.get("llm_config")):
        settings = (part or {}).get("quantization_config")
        if settings:
            raise InputError(
                f"{checkpoint.name} is quantised ({settings.get('quant_method')}), which is not "
                "read; give the checkpoint that it was made from, or one that transformers has "
                "dequantised (model.dequantize(), then save_pretrained)"
            )


def is_here(source: str, revision: str | None = None) -> bool:
    """Whether a checkpoint can be loaded without a download; does not use the network.

    True for every directory, and for a hub id whose files are all in the hub's cache.

    Args:
        source: As in `resolve_checkpoint`.
        revision: As in `resolve_checkpoint`.
    """
    if Path(os.path.expanduser(source)).exists() or not HUB_ID.fullmatch(source):
        return True
    try:
        # Without patterns, missing files that no job opens (README.md) would count.
        folder = snapshot_download(
            source, revision=revision, allow_patterns=list(SMALL_FILES), local_files_only=True
        )
    except EntryNotFoundError:
        return False
    snapshot = Path(folder)
    names = ("config.json", *Checkpoint(source, snapshot, snapshot.name).weight_files())
    return all((snapshot / name).is_file() for name in names)


def weights_digest(checkpoint: Checkpoint) -> str:
    """Digest of the files that determine a checkpoint's outputs; for a hub id its commit.

    Covers the configuration files and all safetensors files, by name, size and content. Of files
    above 64 MiB 65 blocks of 64 KiB at even distances are read, the first and the last included.
    Another training run changes every block; manual edits of a few numbers in a large file may be
    missed.
    """
    if checkpoint.revision is not None:
        return checkpoint.revision
    present = [name for name in _DIGESTED_JSON if (checkpoint.directory / name).is_file()]
    lines = []
    for name in (*present, *checkpoint.weight_files()):
        file = checkpoint.directory / name
        lines.append(f"{name}\0{file.stat().st_size}\0{_file_digest(file)}\n")
    return sha256("".join(lines).encode()).hexdigest()[:40]


def raise_if_damaged(path: str) -> None:
    """Check the headers and lengths of a local checkpoint's weight files.

    The driver checks this before it starts workers, which would all fail on the same file. Hub ids
    are not checked.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged.
    """
    if not Path(path).is_dir():
        return
    for name in Checkpoint(path, Path(path), None).weight_files():
        file = Path(path) / name
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file} is damaged: {error}; copy it again") from error


def _file_digest(file: Path) -> str:
    """Hash a file, whole or sampled."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= _FULL_HASH_BYTES:
            return file_digest(stream, "sha256").hexdigest()
        digest = sha256()
        for index in range(_NUM_BLOCKS + 1):
            stream.seek(index * (size - _BLOCK_BYTES) // _NUM_BLOCKS)
            digest.update(stream.read(_BLOCK_BYTES))
    return digest.hexdigest()


def _download(source: str, revision: str | None, names: Sequence[str], setting: str) -> Path:
    """Fetch files of a hub checkpoint; a failure raises a one-line error."""
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=list(names)))
    except HUB_ERRORS as error:
        reason = reason_of(error, source, revision)
    at = f" at revision {revision}" if revision else ""
    raise MissingFileError(
        f"{setting} {source}{at}: {reason}; or give a directory: `tango model get {source} --dir "
        "DIR` where there is a network"
    )


_TEXT_FILES = (
    "added_tokens.json",
    "chat_template*",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer*",
    "vocab*",
    "*.jinja",
    "*.model",
)


def words_digest(path: str, revision: str | None) -> str:
    """Digest of the tokenizer, the chat template and the tokens that end a reply.

    Replies depend on it; cached visual tokens do not, so it is not part of their identity.

    Args:
        path: Directory or hub id of the checkpoint.
        revision: Commit of a hub checkpoint; `None` for a directory.

    Returns:
        The commit, or the first 16 hexadecimal digits of a SHA-256 over names and contents.
    """
    if revision is not None:
        return revision
    folder = Path(path).expanduser()
    files = {file for pattern in _TEXT_FILES for file in folder.glob(pattern) if file.is_file()}
    parts = (f"{one.name}\0{sha256(one.read_bytes()).hexdigest()}\n" for one in sorted(files))
    return sha256("".join(parts).encode()).hexdigest()[:16]
