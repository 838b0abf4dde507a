"""The table of `tango cache ls`."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.config.overrides import dotted
from jobs.report.formatting import DASH, Table
from jobs.units import human_bytes
from pipeline.cache.folders import CacheFolder
from pipeline.cache.names import TOKENS, held_by


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
    total = f"{len(folders)} token cache(s), {num_clips} clips, {size}{of_features}"
    return "\n".join([*Table.of(rows).plain(right={"clips", "size"}), "", total])


def _differences(folders: Sequence[CacheFolder]) -> list[str]:
    """Per cache, the settings that differ among caches whose names differ only in the hash."""
    settings = [dict(dotted(folder.settings)) for folder in folders]
    names = [folder.name.rpartition("-")[0] for folder in folders]
    texts = []
    for name, own in zip(names, settings, strict=True):
        group = [one for other, one in zip(names, settings, strict=True) if other == name and one]
        keys = dict.fromkeys(key for one in group for key in one)
        differing = [key for key in keys if len({str(one.get(key)) for one in group}) > 1]
        values = {key: str(own.get(key)).replace(" ", "") for key in differing if own}
        short = {key: text if len(text) <= 40 else f"{text[:12]}…" for key, text in values.items()}
        texts.append(" ".join(f"{key}={text}" for key, text in short.items()))
    return texts


def _row(folder: CacheFolder, difference: str) -> dict[str, object]:
    """The columns of one line."""
    settings = dict(dotted(folder.settings))
    frames, method = (
        settings.get(key, DASH) for key in ("model.frames.num_frames", "compressor.name")
    )
    if retention := settings.get("compressor.retention"):
        method += f" r={retention}"
    notes = [folder.problem, difference]
    if folder.holds_features:
        method = "features"
        signals = held_by(one.part for one in folder.locations) - {TOKENS}
        notes.insert(1, f"with {', '.join(sorted(signals))}" if signals else "")
    times = folder.written or (None, None)
    oldest, newest = (f"{one.astimezone():%Y-%m-%d %H:%M}" if one else DASH for one in times)
    return {
        "cache": folder.name,
        "model": f"{settings.get('model.name', DASH)} {frames}f",
        "method": method,
        "clips": str(folder.num_clips),
        "size": human_bytes(folder.num_bytes),
        "oldest": oldest,
        "newest": newest,
        "notes": ", ".join(filter(None, notes)),
    }
