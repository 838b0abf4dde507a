"""The table of `tango cache ls`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jobs.config.overrides import dotted
from jobs.report.formatting import DASH, Table
from jobs.units import human_bytes
from pipeline.cache.folders import CacheFolder, count_tokens
from pipeline.cache.names import TOKENS, held_by

_HEADER = ("cache", "model", "method", "clips", "size", "tokens", "oldest", "newest", "notes")


def cache_table(folders: Sequence[CacheFolder]) -> str:
    """One line per cache and a line of totals; "" without caches.

    Notes are the options of the method besides its retention, the signals of stored features, or
    what is wrong with the cache.
    """
    if not folders:
        return ""
    num_clips = sum(folder.num_clips for folder in folders)
    size = human_bytes(sum(folder.num_bytes for folder in folders))
    features = sum(folder.num_bytes for folder in folders if folder.holds_features)
    of_features = f", {human_bytes(features)} of it features" if features else ""
    return "\n".join(
        [
            *Table(_HEADER, list(map(_row, folders))).plain(right={"clips", "size", "tokens"}),
            "",
            f"{len(folders)} token cache(s), {num_clips} clips, {size}{of_features}",
            "tokens: kept of all, mean of some clips",
        ]
    )


def _row(folder: CacheFolder) -> list[str]:
    """The columns of one line."""
    settings = dict(dotted(folder.settings))
    counts, (oldest, newest) = count_tokens(folder), folder.written or (None, None)
    method = settings.get("compressor.name", DASH)
    if retention := settings.get("compressor.retention"):
        method += f" r={retention}"
    shown = ("compressor.name", "compressor.retention")
    notes = [
        f"{key.removeprefix('compressor.')}={value}"
        for key, value in settings.items()
        if key.startswith("compressor.") and key not in shown and len(str(value)) <= 40
    ]
    if folder.holds_features:
        method = "features"
        signals = held_by(one.part for one in folder.locations) - {TOKENS}
        notes = [f"with {', '.join(sorted(signals))}"] if signals else []
    return [
        folder.name,
        f"{settings.get('model.name', DASH)} {settings.get('model.frames.num_frames', DASH)}f",
        method,
        str(folder.num_clips),
        human_bytes(folder.num_bytes),
        DASH if counts is None else f"{counts.kept:.0f}/{counts.total:.0f}",
        _time(oldest),
        _time(newest),
        folder.problem or " ".join(notes)[:60],
    ]


def _time(moment: datetime | None) -> str:
    """A time in the local time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M}" if moment else DASH
