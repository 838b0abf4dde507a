"""The table of `tango cache ls`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from jobs.config.overrides import dotted
from jobs.report.formatting import DASH, Table
from jobs.units import human_bytes
from pipeline.cache.folders import CacheFolder, TokenCounts, count_tokens
from pipeline.cache.names import TOKENS, held_by

_FEATURES = "features"
_HEADER = ("cache", "model", "method", "clips", "size", "tokens", "oldest", "newest", "notes")
Settings = Mapping[str, Any]

_RIGHT_ALIGNED = {"clips", "size", "tokens"}


def cache_table(folders: Sequence[CacheFolder]) -> str:
    """One line per cache and a line of totals; "" without caches.

    Notes list the differing settings of caches whose names differ only in the hash.
    """
    if not folders:
        return ""
    counts = [count_tokens(folder) for folder in folders]
    settings = [dict(dotted(folder.settings)) for folder in folders]
    notes = [
        ", ".join(filter(None, (folder.problem, _stored(folder), difference)))
        for folder, difference in zip(folders, _differences(folders, settings), strict=True)
    ]
    rows = list(map(_row, folders, settings, counts, notes))
    num_clips = sum(folder.num_clips for folder in folders)
    num_bytes = sum(folder.num_bytes for folder in folders)
    lines = [
        *Table(_HEADER, rows).plain(right=_RIGHT_ALIGNED),
        "",
        f"{len(folders)} token cache(s), {num_clips} clips, {human_bytes(num_bytes)}"
        f"{_by_kind(folders)}",
    ]
    if any(_is_sampled(f, c) for f, c in zip(folders, counts, strict=True)):
        lines.append("tokens: kept of all, mean per clip; ~ marks the mean of some of the clips")
    return "\n".join(lines)


def _row(
    folder: CacheFolder, settings: Settings, counts: TokenCounts | None, notes: str
) -> list[str]:
    """The columns of one line."""
    frames, retention = (
        settings.get(key) for key in ("model.frames.num_frames", "compressor.retention")
    )
    oldest, newest = folder.written or (None, None)
    return [
        folder.name,
        f"{settings.get('model.name', DASH)}{f' {frames}f' if frames else ''}",
        _FEATURES
        if folder.holds_features
        else f"{settings.get('compressor.name', DASH)}{f' r={retention}' if retention else ''}",
        str(folder.num_clips),
        human_bytes(folder.num_bytes),
        _tokens(folder, counts),
        _time(oldest),
        _time(newest),
        notes,
    ]


def _tokens(folder: CacheFolder, counts: TokenCounts | None) -> str:
    """Kept tokens, all tokens and their ratio."""
    if counts is None:
        return DASH
    about = "~" if _is_sampled(folder, counts) else ""
    share = f" ({100 * counts.kept / counts.total:.1f} %)" if counts.total else ""
    return f"{about}{counts.kept:.0f}/{counts.total:.0f}{share}"


def _is_sampled(folder: CacheFolder, counts: TokenCounts | None) -> bool:
    """Whether the tokens of only some clips were counted."""
    return counts is not None and counts.num_clips < folder.num_clips


def _stored(folder: CacheFolder) -> str:
    """Names of the stored signals."""
    if not folder.holds_features:
        return ""
    signals = sorted(held_by(one.part for one in folder.locations) - {TOKENS})
    return f"with {', '.join(signals)}" if signals else ""


def _by_kind(folders: Sequence[CacheFolder]) -> str:
    """Bytes of features and of tokens; "" without features."""
    sizes = {_FEATURES: 0, "tokens": 0}
    for folder in folders:
        sizes[_FEATURES if folder.holds_features else "tokens"] += folder.num_bytes
    if not sizes[_FEATURES]:
        return ""
    return " (" + ", ".join(f"{kind} {human_bytes(size)}" for kind, size in sizes.items()) + ")"


def _time(moment: datetime | None) -> str:
    """A time in the local time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M}" if moment else DASH


def _differences(folders: Sequence[CacheFolder], settings: Sequence[Settings]) -> Iterator[str]:
    """Per cache, the settings that differ among caches whose names differ only in the hash."""
    by_name: dict[str, list[Settings]] = {}
    for folder, own in zip(folders, settings, strict=True):
        if own:
            by_name.setdefault(folder.name.rpartition("-")[0], []).append(own)
    for folder, own in zip(folders, settings, strict=True):
        group = by_name.get(folder.name.rpartition("-")[0], []) if own else []
        keys = dict.fromkeys(key for one in group for key in one)
        differing = [key for key in keys if len({str(one.get(key)) for one in group}) > 1]
        yield " ".join(f"{key}={_short(own.get(key))}" for key in differing)


def _short(value: object) -> str:
    """A value as text; long values such as digests are shortened."""
    text = str(value).replace(" ", "")
    return text if len(text) <= 40 else f"{text[:12]}…"
