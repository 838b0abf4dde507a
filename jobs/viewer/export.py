"""Export of the viewer as static files, for a local disk or any web server.

Pages opened from a disk cannot read files but can load scripts. So every piece of data is a script
that passes one value: `tangoData("list/0", {...})`.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from jobs.viewer.frames import FrameDecoder, NotShownError, View
from jobs.viewer.pages import Pages
from jobs.viewer.server import POLICY, SITE
from tango_core.errors import InputError

PAGE_FILE = "index.html"
_META = '<meta charset="utf-8">'


def export_site(
    pages: Pages,
    decoder: FrameDecoder,
    folder: Path,
    console: Console | None = None,
) -> Path:
    """Write the viewer to a directory.

    Args:
        pages: Provides the data.
        decoder: Decodes the frames.
        folder: A new or empty directory, or an earlier export, which is replaced.
        console: Shows the progress; `None` for none.

    Returns:
        Path of the page to open.

    Raises:
        ValueError: If the directory contains other files.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--export {folder} is a file; name a directory")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "data").is_dir():
        raise InputError(f"--export {folder} holds other files; name a new or empty directory")
    (folder / PAGE_FILE).unlink(missing_ok=True)
    for name in ("data", "frames"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(SITE, folder, ignore=lambda *_: [PAGE_FILE], dirs_exist_ok=True)
    for kind, (size, make) in pages.pieces.items():
        for number in range(size):
            _write(folder, f"{kind}/{number}", make(number))
    every = range(len(pages.index.runs.columns))
    clips = range(len(pages.index.clips))
    for clip in track(clips, "clips", console=console, transient=True, disable=not console):
        pictures = partial(_pictures, folder, clip, decoder)
        _write(folder, f"tokens/{clip}", pages.all_tokens(clip, every, pictures))
    html = (SITE / PAGE_FILE).read_text(encoding="utf-8")
    policy = POLICY.replace("; frame-ancestors 'none'", "")  # not allowed in a meta tag
    policy = f'{_META}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    html = html.replace(_META, policy).replace(
        '<html lang="en">', '<html lang="en" data-export="1">'
    )
    # Last, so that an interrupted export cannot be opened.
    (folder / PAGE_FILE).write_text(html, encoding="utf-8")
    return folder / PAGE_FILE


def _write(folder: Path, name: str, value: object) -> None:
    """Write a piece of data as a script, with escaped tags."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")
    path = folder / "data" / f"{name}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f'tangoData("{name}",{text});\n'.encode())


def _pictures(
    folder: Path, clip: int, decoder: FrameDecoder, view: View, column: int
) -> tuple[list[str], str | None]:
    """Write the pictures of a view; returns their names, and the reason if there are none."""
    try:
        made = decoder.sprites(view)
    except NotShownError as error:
        return [], str(error)
    names = [f"frames/{clip}-{column}-{part}.jpg" for part in range(len(made))]
    (folder / "frames").mkdir(exist_ok=True)
    for file, picture in zip(names, made, strict=True):
        (folder / file).write_bytes(picture)
    return names, None
