"""The decode stage: a clip's row in, the same row with its frames out."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.cache.fingerprint import digest
from pipeline.rows import one_line, source_columns
from pipeline.runtime.child import Child, ChildStartError, CrashError
from pipeline.stages.declarations import DECODE_VIDEO
from pipeline.statuses import DAMAGED
from pipeline.storage.faults import store_fault
from pipeline.storage.urls import is_url
from pipeline.storage.videos import ChangedError, VideoCache, changed
from tango_core.errors import InputError
from tango_core.local_files import has_identity
from tango_core.types import VideoFrames
from tango_core.video import DecoderUnavailableError, FrameSpec, decode_frames

logger = logging.getLogger(__name__)

MIN_MEMORY_GIB = 0.5

_READ_S = 20.0
_END_BYTES = 1 << 16

_EXPECTED = (ValueError, OSError, MemoryError, CrashError)  # TimeoutError is an OSError


def decode_video(
    row: dict[str, Any],
    *,
    spec: FrameSpec,
    timeout_s: float,
    memory_gib: float,
    keep_damaged: bool = False,
    videos: VideoCache | None = None,
) -> dict[str, Any]:
    """Decode the clip of one row in this worker's child process.

    Args:
        row: `video_id, path, clip_start, clip_end` (seconds or `None`) and anything else, which is
            passed through. A row that has failed already (`status` other than `"ok"`) is returned
            as it is. With a `source_fingerprint`, frames of another source are a failure.
        spec: Sampling, size and decoder.
        timeout_s: Seconds one clip may take.
        memory_gib: Address space the decoder may use, in GiB, at least `MIN_MEMORY_GIB`.
        keep_damaged: Return the frames of a clip whose stream is damaged, under another `clip_key`,
            so that no later job takes what becomes of them from a cache.
        videos: Where videos of a store are fetched to; needed for a `path` that is a URL.

    Returns:
        A new row that adds `pixels` (bytes of the (F, h, w, 3) uint8 frames, row-major; `None` if
        failed), `pixels_shape`, `frame_times` (seconds), `duration_s` and `frame_height` (see
        `ClipSource`; `None` if unknown), `decoder`, `decode_video_ms`, `warnings`, `damage` (why
        the frames may show something else than the video did), `status` (`"ok"`, `"decode_failed"`
        or, for a clip that is damaged and not kept, `"decode_damaged"`) and `error` (one line, or
        `None`).

    Raises:
        DecoderUnavailableError: If `spec.decoder` is not installed: no clip could be decoded.
        ChildStartError: If no child process can be started on this machine.
        ValueError: If `memory_gib` is below `MIN_MEMORY_GIB`.
    """
    if memory_gib < MIN_MEMORY_GIB:
        raise InputError(
            f"decode.memory_gib must be at least {MIN_MEMORY_GIB}, to load the decoders, "
            f"got {memory_gib}"
        )
    if row.get("status") not in (None, "ok"):
        return row
    path = str(row["path"])
    start = time.perf_counter()
    out = {
        **row,
        **_no_frames(),
        "decoder": "",
        "warnings": [],
        "damage": [],
        "status": DECODE_VIDEO.failure,
        "error": None,
        "store_fault": None,
    }
    is_local, is_fetched = not is_url(path), False
    try:
        clip = _clip(row.get("clip_start"), row.get("clip_end"))
        with _local(row, videos) as local:
            is_fetched = True
            try:
                frames: VideoFrames = _child(memory_gib).call(
                    decode_frames,
                    local,
                    spec,
                    clip,
                    timeout_s=timeout_s,
                    about=path,
                    what="decoder",
                )
            except Exception as error:
                _speak_of(error, path, local)
                raise
        out |= _columns_of(frames)
        if frames.damage and keep_damaged:
            out["clip_key"] = _own_key(row)
            out["warnings"] += [f"damaged, answered all the same: {d}" for d in frames.damage]
        elif frames.damage:
            out |= {
                **_no_frames(),
                "status": DAMAGED,
                "error": f"decode: {path}: the file is damaged where the clip is "
                f"({'; '.join(frames.damage)}); replace it, or set decode.damaged: keep",
            }
    except (DecoderUnavailableError, ChildStartError):
        raise
    except Exception as error:
        out["error"] = f"decode: {_one_line(error, path)}"
        if is_local:
            out["error"] += _since_planned(error, row)
            out["store_fault"] = _store_fault(path, memory_gib)
        elif not is_fetched:
            out["store_fault"] = store_fault(error, path)
        if not isinstance(error, _EXPECTED):
            logger.warning("%s: unexpected %s", path, type(error).__name__, exc_info=True)
    out["decode_video_ms"] = (time.perf_counter() - start) * 1000
    return out


def _columns_of(frames: VideoFrames) -> dict[str, Any]:
    """The columns of frames, of a row that has some."""
    return {
        "pixels": frames.pixels.tobytes(),
        "pixels_shape": list(frames.pixels.shape),
        "frame_times": frames.timestamps.tolist(),
        **source_columns(frames.source),
        "decoder": frames.decoder,
        "warnings": list(frames.warnings),
        "damage": list(frames.damage),
        "status": "ok",
    }


def _no_frames() -> dict[str, Any]:
    """The columns of frames, of a row that has none."""
    return {
        "pixels": None,
        "pixels_shape": [0, 0, 0, 3],
        "frame_times": [],
        **source_columns(None),
    }


def _store_fault(path: str, memory_gib: float) -> str | None:
    """What is wrong with the store of a file that could not be decoded; `None` for nothing.

    Decoders say in many ways that they could not read on, so the file is read once more, plainly.
    """
    try:
        _child(memory_gib).call(read_ends, path, timeout_s=_READ_S, about=path, what="disk")
    except TimeoutError:
        return f"{path}: nothing could be read within {_READ_S:g} s"
    except Exception as unreadable:
        return store_fault(unreadable, path) if isinstance(unreadable, OSError) else None
    return None


def read_ends(path: str) -> None:
    """Read the first and the last bytes of a file, or list a directory.

    Raises:
        OSError: If that fails.
    """
    if os.path.isdir(path):
        os.listdir(path)
        return
    with open(path, "rb") as file:
        file.read(_END_BYTES)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _END_BYTES))
        file.read(_END_BYTES)


@contextmanager
def _local(row: dict[str, Any], videos: VideoCache | None) -> Iterator[str]:
    """A path that the decoders open: that of the file, or of a copy of what is in a store.

    Raises:
        ChangedError: If it is not what was planned; of a file after the block, so that it has not
            been replaced meanwhile either.
    """
    path, fingerprint, version = _planned(row)
    if not is_url(path):
        yield path
        if not _is_as_planned(row):
            raise ChangedError(_changed(row))
        return
    if videos is None:
        raise InputError(f"{path} is in a store, and no place for fetched videos is set")
    with videos.fetched(path, version or fingerprint) as local:
        yield local


def _planned(row: dict[str, Any]) -> tuple[str, str, str]:
    """Path, fingerprint and version of the source that was planned, "" for what nobody noted."""
    path, fingerprint, version = map(row.get, ("path", "source_fingerprint", "source_version"))
    return str(path), str(fingerprint or ""), str(version or "")


def _is_as_planned(row: dict[str, Any]) -> bool:
    """Whether a local file is what was planned: by one `stat`, and by its bytes if that differs."""
    path, fingerprint, version = _planned(row)
    if not fingerprint or has_identity(Path(path), version or fingerprint, hash_content=False):
        return True
    return bool(version) and has_identity(Path(path), fingerprint, hash_content=True)


def _since_planned(error: Exception, row: dict[str, Any]) -> str:
    """What happened to a local file that could not be decoded; "" for nothing."""
    path, fingerprint, _ = _planned(row)
    if not fingerprint or isinstance(error, ChangedError):
        return ""
    if not os.path.lexists(path):
        return (
            f" on {socket.gethostname()}, but it was there when the job was planned; all nodes "
            "of a cluster must see the same videos"
        )
    with suppress(OSError, ValueError):
        return "" if _is_as_planned(row) else f"; {_changed(row)}"
    return ""


def _changed(row: dict[str, Any]) -> str:
    """What is said of a local file that is not what was planned."""
    path, _, version = _planned(row)
    copies = "" if version else ", and --hash-content where each node has a copy of its own"
    return f"{changed(path)}{copies}"


def _speak_of(error: Exception, path: str, local: str) -> None:
    """Let an error name the video where its owner knows it."""
    if path != local:
        error.args = tuple(
            argument.replace(local, path) if isinstance(argument, str) else argument
            for argument in error.args
        )


@cache
def _child(memory_gib: float) -> Child:
    """The one child process of this worker; it starts with the first clip."""
    return Child(memory_gib=memory_gib)


def _own_key(row: dict[str, Any]) -> str:
    """A key that belongs to this row alone: not to the clip, nor to another row about it."""
    return digest("|".join((row["clip_key"], "damaged", row["benchmark"], row["video_id"])), 20)


def _clip(start: float | None, end: float | None) -> tuple[float, float] | None:
    """Read bounds from a row; a missing one is open, and tables write missing numbers as NaN."""
    start = None if start is None or math.isnan(start) else float(start)
    end = None if end is None or math.isnan(end) else float(end)
    return (
        None if start is None and end is None else (start or 0.0, math.inf if end is None else end)
    )


def _one_line(error: Exception, path: str) -> str:
    """Message of an error, with the setting that helps."""
    text = one_line(str(error) or type(error).__name__)
    if isinstance(error, TimeoutError):
        return f"{text}; raise decode.timeout_s if the file is long"
    if isinstance(error, MemoryError):
        return f"{text}; raise decode.memory_gib if the frames are large or many"
    return text if path in text else f"{path}: {text}"
