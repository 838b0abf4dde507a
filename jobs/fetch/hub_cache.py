"""Files in the layout of the hub's own cache, so that a job finds a model by its id.

    <cache>/models--ORG--NAME/blobs/<digest>            the bytes
                              snapshots/<commit>/<path>  a link to them
                              refs/<revision>            the commit of a branch or tag

Documented by huggingface_hub ("Understand caching") and kept by it since its first versions. Where
links cannot be made, the snapshot holds the file itself, as there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from huggingface_hub import constants

from jobs.fetch.archives import path_below
from jobs.fetch.hub import Hub, RemoteFile
from jobs.fetch.stream import Download


class HubCache:
    """The place of one model in the hub's cache.

    Args:
        hub: The repository.
        sha: Commit.
    """

    def __init__(self, hub: Hub, sha: str) -> None:
        name = f"{hub.kind}s--{hub.repository.replace('/', '--')}"
        self.folder = Path(constants.HF_HUB_CACHE).expanduser() / name
        self.snapshot = self.folder / "snapshots" / sha
        self._revision, self._sha = hub.revision, sha

    def is_here(self, file: RemoteFile) -> bool:
        """Whether a file is in the snapshot, or its bytes are here under another commit."""
        target = self._pointer(file)
        if _has_size(target, file.size):
            return True
        if _has_size(self._blob(file), file.size):
            self.point(file)
            return True
        return False

    def download(self, file: RemoteFile) -> Download:
        """A file on its way to the cache; `point` is the step behind it."""
        # The ending that the hub's own commands know and clean up.
        partial = self.folder / "blobs" / f"{file.digest}.incomplete"
        return Download(file, partial, self._blob(file))

    def point(self, file: RemoteFile) -> None:
        """Let the snapshot name the bytes that are here."""
        pointer, blob = self._pointer(file), self._blob(file)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.unlink(missing_ok=True)
        try:
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError:  # a file system without links
            os.replace(blob, pointer)

    def remember_revision(self) -> None:
        """Note which commit the branch or tag is, for work without a network."""
        if re.fullmatch(r"[0-9a-f]{40}", self._revision):
            return
        ref = self.folder / "refs" / self._revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(self._sha)

    def _pointer(self, file: RemoteFile) -> Path:
        return path_below(self.snapshot, file.path, "the hub's list")

    def _blob(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / file.digest


def _has_size(path: Path, size: int) -> bool:
    """Whether a file is there with that many bytes."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False
