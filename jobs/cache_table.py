"""The table of `tango cache ls`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jobs.config.overrides import dotted
from jobs.report.formatting import DASH, Table
from jobs.units import human_bytes
from pipeline.cache.folders import CacheFolder
from pipeline.cache.names import TOKENS, held_by

_HEADER = ("cache", "model", "method", "clips", "size", "oldest", "newest", "notes")


def cache_table(folders: Sequence[CacheFolder]) -> str:
    """One line per cache and a line of totals; "" without caches.

    Notes are the settings that differ among caches of one readable name, the signals of stored
    features, or what is wrong with the cache.
    """
    if not folders:
        return ""
    rows = list(map(_row, folders, _differences(folders)))
    num_clips = sum(folder.num_clips for folder in folders)
    size = human_bytes(sum(folder.num_bytes for folder in folders))
    features = sum(folder.num_bytes for folder in folders if folder.holds_features)
    of_features = f", {human_bytes(features)} of it features" if features else ""
    return "\n".join(
        [
            *Table(_HEADER, rows).plain(right={"clips", "size"}),
            "",
            f"{len(folders)} token cache(s), {num_clips} clips, {size}{of_features}",
        ]
    )


def _differences(folders: Sequence[CacheFolder]) -> list[str]:
    """Per cache, the settings that differ among caches whose names differ only in the hash."""
    settings = [dict(dotted(folder.settings)) for folder in folders]
    names = [folder.name.rpartition("-")[0] for folder in folders]
    texts = []
    for name, own in zip(names, settings, strict=True):
        group = [one for other, one in zip(names, settings, strict=True) if other == name and one]
        keys = dict.fromkeys(key for one in group for key in one)
        differing = [key for key in keys if len({str(one.get(key)) for one in group}) > 1]
        texts.append(" ".join(f"{key}={_short(own.get(key))}" for key in differing if own))
    return texts


def _short(value: object) -> str:
    """A value as text; long values such as digests are shortened."""
    text = str(value).replace(" ", "")
    return text if len(text) <= 40 else f"{text[:12]}…"


def _row(folder: CacheFolder, difference: str) -> list[str]:
    """The columns of one line."""
    settings = dict(dotted(folder.settings))
    oldest, newest = folder.written or (None, None)
    method = settings.get("compressor.name", DASH)
    if retention := settings.get("compressor.retention"):
        method += f" r={retention}"
    notes = [folder.problem, difference]
    if folder.holds_features:
        method = "features"
        signals = held_by(one.part for one in folder.locations) - {TOKENS}
        notes.insert(1, f"with {', '.join(sorted(signals))}" if signals else "")
    return [
        folder.name,
        f"{settings.get('model.name', DASH)} {settings.get('model.frames.num_frames', DASH)}f",
        method,
        str(folder.num_clips),
        human_bytes(folder.num_bytes),
        _time(oldest),
        _time(newest),
        ", ".join(filter(None, notes)),
    ]


def _time(moment: datetime | None) -> str:
    """A time in the local time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M}" if moment else DASH
