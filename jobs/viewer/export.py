"""The viewer as files: opens from a disk or from any web server, with the same filters.

Pages that are opened from a disk may not read files, but they may load scripts. So every piece of
data is a script that hands over one value: `tangoData("list/0", {...})`. The list is in columns,
apart from the questions' words, so that a filter by outcome does not read all texts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from jobs.results.quantities import Json
from jobs.viewer.clips import ClipPages, Seen, seen_to_json, sprites_of
from jobs.viewer.contents import contents
from jobs.viewer.frames import FrameDecoder, FramesMissingError
from jobs.viewer.server import POLICY, SITE
from pipeline.redaction import redacted
from tango_core.errors import InputError
from tango_core.printable import printable

LIST_ROWS = 20_000
WORD_ROWS = 500
PAGE_FILE = "index.html"
_NO_FRAMES = "This export was made without frames (--pixels 0)."
_META = '<meta charset="utf-8">'


def export_site(
    pages: ClipPages,
    decoder: FrameDecoder | None,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write the viewer into a directory.

    Args:
        pages: What there is to show.
        decoder: Makes the frames; `None` for an export without.
        folder: A new or empty directory, or an earlier export, which is replaced.
        progress: Receives how many clips of how many are written.

    Returns:
        The page to open.

    Raises:
        ValueError: If the directory holds something else.
    """
    _prepare_folder(folder)
    _write(folder, "list", _list(pages))
    _write(folder, "words", _words(pages))
    for number in range(-(-pages.index.num_questions // WORD_ROWS)):
        _write(folder, "replies", {str(number): _replies(pages, number * WORD_ROWS)})
    index = pages.index
    clips = index.rows("SELECT clip, benchmark, video FROM clips ORDER BY clip")
    _write(folder, "videos", {"all": [[row["benchmark"], row["video"]] for row in clips]})
    columns = range(len(index.runs.columns))
    for done, row in enumerate(clips):
        number = row["clip"]
        progress(done, len(clips))
        _write(folder, "clips", {str(number): pages.page(number)})
        seen = pages.seen(number, columns)
        urls, missing = _frames(folder, number, seen, decoder)
        _write(folder, "tokens", {str(number): seen_to_json(seen, urls, missing)})
    progress(len(clips), len(clips))
    first = {**contents(index), "list_rows": LIST_ROWS, "word_rows": WORD_ROWS}
    _write(folder, "start", {"contents": first})
    for path in sorted(SITE.rglob("*")):
        name = path.relative_to(SITE).as_posix()
        if path.is_file() and name != PAGE_FILE:
            _put(folder / name, path.read_bytes())
    # Last, so that an export that was cut off does not open as if it were whole.
    _put(folder / PAGE_FILE, _page().encode())
    return folder / PAGE_FILE


def _page() -> str:
    """The page with the policy that a server would send, and a mark that there is no server."""
    html = (SITE / PAGE_FILE).read_text(encoding="utf-8")
    policy = POLICY.replace("; frame-ancestors 'none'", "")  # not allowed in a page
    html = html.replace(
        _META, f'{_META}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    )
    return html.replace('<html lang="en">', '<html lang="en" data-export="1">')


def _prepare_folder(folder: Path) -> None:
    """Refuse a directory with other things in it, and empty an earlier export."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--export {folder} is a file; name a directory")
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there and not (folder / "data").is_dir():
        raise InputError(f"--export {folder} holds other files; name a new or empty directory")
    (folder / PAGE_FILE).unlink(missing_ok=True)
    for name in ("data", "frames"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _write(folder: Path, kind: str, values: Json) -> None:
    """Write pieces of data as scripts; no text of the data can end a script or begin a tag."""
    for name, value in values.items():
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        text = text.replace("<", "\\u003c")
        script = f'tangoData("{kind}/{name}",{text});\n'
        _put(folder / "data" / kind / f"{name}.js", script.encode())


def _put(path: Path, data: bytes) -> None:
    """Write a file; a whole export is marked by its page alone, so nothing waits for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _list(pages: ClipPages) -> Json:
    """The columns that filters look at."""
    names = [row["benchmark"] for row in pages.index.rows(_BENCHMARKS)]
    numbers = {name: at for at, name in enumerate(names)}
    found: Json = {}
    for start in range(0, pages.index.num_questions, LIST_ROWS):
        rows = pages.index.rows(
            "SELECT clip, benchmark, kind, outcomes FROM questions WHERE question >= ? AND "
            "question < ? ORDER BY question",
            [start, start + LIST_ROWS],
        )
        found[str(start // LIST_ROWS)] = {
            "clip": [row["clip"] for row in rows],
            "benchmark": [numbers[row["benchmark"]] for row in rows],
            "kind": [row["kind"] for row in rows],
            "outcomes": [row["outcomes"] for row in rows],
        }
    return found


_BENCHMARKS = "SELECT benchmark FROM questions GROUP BY benchmark ORDER BY min(question)"


def _words(pages: ClipPages) -> Json:
    """The texts of the questions."""
    found: Json = {}
    for start in range(0, pages.index.num_questions, WORD_ROWS):
        rows = pages.index.rows(
            "SELECT id, text, options, video FROM questions WHERE question >= ? AND question < ? "
            "ORDER BY question",
            [start, start + WORD_ROWS],
        )
        found[str(start // WORD_ROWS)] = {
            name: [row[name] for row in rows] for name in ("id", "text", "options", "video")
        }
    return found


def _replies(pages: ClipPages, start: int) -> Json:
    """The replies to some questions: the different texts, and which one every column gave."""
    rows = pages.index.rows(
        "SELECT question, col, text FROM answers WHERE question >= ? AND question < ? AND col >= 0 "
        "AND text <> ''",
        [start, start + WORD_ROWS],
    )
    number = min(WORD_ROWS, pages.index.num_questions - start)
    texts: dict[str, int] = {}
    of = [[-1] * len(pages.index.runs.columns) for _ in range(number)]
    for row in rows:
        shown = printable(redacted(row["text"]))
        of[row["question"] - start][row["col"]] = texts.setdefault(shown, len(texts))
    return {"texts": list(texts), "of": of}


def _frames(
    folder: Path, clip: int, seen: Seen, decoder: FrameDecoder | None
) -> tuple[list[list[str]], list[str | None]]:
    """Write the pictures of a clip: their names, or why there are none, by view."""
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
