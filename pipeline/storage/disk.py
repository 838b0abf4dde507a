"""The disk of this machine, step by step: what `pipeline.storage` puts files in place with.

Every method is one step after which a process may be killed, so that a test can hand a storage a
disk that fails, or forgets what was not synchronised, between any two of them.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs


@dataclass(frozen=True)
class Disk:
    """Files and directories by absolute path, with the errors of the operating system."""

    def entries(self, path: str) -> list[pafs.FileInfo]:
        """Everything directly in a directory; nothing if it is not there."""
        import pyarrow.fs as pafs

        selector = pafs.FileSelector(path, allow_not_found=True)
        found: list[pafs.FileInfo] = _arrow().get_file_info(selector)
        return found

    def is_folder(self, path: str) -> bool:
        """Whether a directory is there."""
        return Path(path).is_dir()

    def size(self, path: str) -> int:
        """Bytes of a file; 0 if it is not there."""
        file = Path(path)
        return file.stat().st_size if file.is_file() else 0

    def opened(self, path: str) -> pa.NativeFile:
        """A file to read parts of."""
        return _arrow().open_input_file(path)

    def make_folder(self, path: str, *, exist_ok: bool) -> None:
        """Make a directory, and those above it."""
        Path(path).mkdir(parents=True, exist_ok=exist_ok)

    def remove_folder(self, path: str) -> None:
        """Remove an empty directory."""
        Path(path).rmdir()

    def new_file(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """A file to write to; visible under this name at once."""
        return Path(path).open("wb")

    def sync(self, file: IO[bytes]) -> None:
        """Return when what was written to an open file would survive a power failure."""
        file.flush()
        os.fsync(file.fileno())

    def replace(self, path: str, new_path: str) -> None:
        """Give a file another name in one step; a file of that name is gone."""
        Path(path).replace(new_path)

    def link(self, path: str, new_path: str) -> None:
        """Give a file one more name in one step, NFS included; `FileExistsError` if it is taken."""
        os.link(path, new_path)

    def remove(self, path: str) -> None:
        """Remove a file; `FileNotFoundError` if it is not there."""
        Path(path).unlink()


def _arrow() -> Any:
    """This disk as pyarrow sees it; that is imported when a file is opened."""
    import pyarrow.fs as pafs

    return pafs.LocalFileSystem()
