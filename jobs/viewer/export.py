"""Export of the viewer as static files, for a local disk or any web server.

Pages opened from a disk cannot read files but can load scripts. So every piece of data is a script
that passes one value: `tangoData("list/0", {...})`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from jobs.viewer.clips import ClipPages, Seen, seen_to_json, sprites_of
from jobs.viewer.contents import numbers_of, piece
from jobs.viewer.frames import FrameDecoder, FramesMissingError
from jobs.viewer.server import POLICY, SITE
from tango_core.errors import InputError

PAGE_FILE = "index.html"
_NO_FRAMES = "This export was made without frames (--pixels 0)."
_META = '<meta charset="utf-8">'


def export_site(
    pages: ClipPages,
    decoder: FrameDecoder | None,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write the viewer to a directory.

    Args:
        pages: Provides the data.
        decoder: Decodes the frames; `None` to export no frames.
        folder: A new or empty directory, or an earlier export, which is replaced.
        progress: Called with the number of written clips and of all clips.

    Returns:
        Path of the page to open.

    Raises:
        ValueError: If the directory contains other files.
    """
    _prepare_folder(folder)
    index = pages.index
    for kind, size in numbers_of(index).items():
        for number in range(size):
            _write(folder, f"{kind}/{number}", piece(pages, kind, number))
    columns = range(len(index.runs.columns))
    for number in range(index.num_clips):
        progress(number, index.num_clips)
        seen = pages.seen(number, columns)
        urls, missing = _frames(folder, number, seen, decoder)
        _write(folder, f"tokens/{number}", seen_to_json(seen, urls, missing))
    progress(index.num_clips, index.num_clips)
    for path in sorted(SITE.rglob("*")):
        name = path.relative_to(SITE).as_posix()
        if path.is_file() and name != PAGE_FILE:
            _put(folder / name, path.read_bytes())
    # Last, so that an interrupted export cannot be opened.
    _put(folder / PAGE_FILE, _page().encode())
    return folder / PAGE_FILE


def _page() -> str:
    """The page with the server's content security policy and a marker for exports."""
    html = (SITE / PAGE_FILE).read_text(encoding="utf-8")
    policy = POLICY.replace("; frame-ancestors 'none'", "")  # not allowed in a meta tag
    html = html.replace(
        _META, f'{_META}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    )
    return html.replace('<html lang="en">', '<html lang="en" data-export="1">')


def _prepare_folder(folder: Path) -> None:
    """Raise for a directory with other files, and empty an earlier export."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--export {folder} is a file; name a directory")
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there and not (folder / "data").is_dir():
        raise InputError(f"--export {folder} holds other files; name a new or empty directory")
    (folder / PAGE_FILE).unlink(missing_ok=True)
    for name in ("data", "frames"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _write(folder: Path, name: str, value: object) -> None:
    """Write a piece of data as a script, with escaped tags."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")
    _put(folder / "data" / f"{name}.js", f'tangoData("{name}",{text});\n'.encode())


def _put(path: Path, data: bytes) -> None:
    """Write a file without fsync; only the page marks a complete export."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _frames(
    folder: Path, clip: int, seen: Seen, decoder: FrameDecoder | None
) -> tuple[list[list[str]], list[str | None]]:
    """Write the pictures of a clip; returns their names, or the reason for none, per view."""
    urls: list[list[str]] = []
    missing: list[str | None] = []
    for number, view in enumerate(seen.views):
        try:
            if decoder is None:
                raise FramesMissingError(_NO_FRAMES)
            made = sprites_of(decoder, view)
        except FramesMissingError as error:
            urls.append([])
            missing.append(str(error))
            continue
        names = [f"{clip}-{number}-{part}.jpg" for part in range(len(made))]
        for name, picture in zip(names, made, strict=True):
            _put(folder / "frames" / name, picture)
        urls.append([f"frames/{name}" for name in names])
        missing.append(None)
    return urls, missing
