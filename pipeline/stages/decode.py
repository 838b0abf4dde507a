"""The decode stage: adds the frames to a clip."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from pipeline.cache.names import digest
from pipeline.clips import DAMAGED, DECODE_VIDEO, Clip, one_line
from pipeline.runtime.child import Child, ChildStartError, CrashError
from pipeline.storage.copies import ChangedError, VideoCache, changed
from pipeline.storage.objects import store_fault
from pipeline.storage.urls import is_url
from tango_core.errors import InputError
from tango_core.local_files import has_identity
from tango_core.video import DecoderUnavailableError, FrameSpec, decode_frames

logger = logging.getLogger(__name__)

_READ_S = 20.0
_END_BYTES = 1 << 16

_EXPECTED = (ValueError, OSError, MemoryError, CrashError)  # TimeoutError is an OSError


def decode_video(
    clip: Clip,
    *,
    spec: FrameSpec,
    timeout_s: float,
    memory_gib: float,
    keep_damaged: bool = False,
    videos: VideoCache | None = None,
) -> Clip:
    """Decode a clip in this worker's child process.

    Args:
        clip: The clip; a clip that has already failed is returned unchanged. If it has a
            `source_fingerprint`, a file with another fingerprint is a failure.
        spec: Sampling, size and decoder.
        timeout_s: Timeout of one clip in seconds.
        memory_gib: Limit of the decoder's address space in GiB; the decoders need 0.5.
        keep_damaged: Return the frames of a clip with a damaged stream, with another `clip_key`,
            so that later jobs do not find its token sets in a cache.
        videos: Cache of downloaded videos and of indices of long files; required if `path` is a
            URL.

    Returns:
        The clip with its frames, or with the status `"decode_failed"` or, if it is damaged and not
        kept, `"decode_damaged"`.

    Raises:
        DecoderUnavailableError: If `spec.decoder` is not installed.
        ChildStartError: If no child process can be started on this machine.
    """
    if clip.status != "ok":
        return clip
    path, local, start = clip.path, "", time.perf_counter()
    out = replace(clip, frames=None, warnings=[], damage=[])
    # CUDA reserves far more addresses than it uses memory.
    child = _child(None if spec.decoder == "torchcodec_cuda" else memory_gib)
    indices = None if videos is None else os.path.expanduser(videos.root)
    try:
        with _local(clip, videos) as local:
            arguments = (decode_frames, local, spec, clip.bounds, indices)
            frames = child.call(*arguments, timeout_s=timeout_s, about=path, what="decoder")
        warnings, damage = list(frames.warnings), list(frames.damage)
        out = replace(out, warnings=warnings, damage=damage, frames=frames)
        if damage and keep_damaged:
            # A key that is unique to this clip of this benchmark.
            key = digest("|".join((clip.clip_key, "damaged", *clip.name)), 20)
            notes = [f"damaged, but answered: {one}" for one in damage]
            out = replace(out, clip_key=key, warnings=[*warnings, *notes])
        elif damage:
            reason = f"decode: {path}: the file is damaged where the clip is ({'; '.join(damage)})"
            reason += "; replace it, or set decode.damaged: keep"
            out = replace(out, status=DAMAGED, error=reason, frames=None)
    except (DecoderUnavailableError, ChildStartError):
        raise
    except Exception as error:
        reason, fault = f"decode: {_one_line(error, path, local)}", None
        if not is_url(path):
            reason += _since_planned(error, clip)
            fault = _store_fault(path, memory_gib)
        elif not local:
            fault = store_fault(error, path)
        out = replace(out, status=DECODE_VIDEO.failure, error=reason, store_fault=fault)
        if not isinstance(error, _EXPECTED):
            logger.warning("%s: unexpected %s", path, type(error).__name__, exc_info=True)
    return replace(out, decode_video_ms=(time.perf_counter() - start) * 1000)


def _store_fault(path: str, memory_gib: float) -> str | None:
    """Storage error of a file that could not be decoded; `None` if it can be read.

    Decoders report read errors in many different ways, so parts of the file are read directly.
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
def _local(clip: Clip, videos: VideoCache | None) -> Iterator[str]:
    """Local path of the video: the file itself, or a downloaded copy.

    Raises:
        ChangedError: If the video has changed since the job was planned. Local files are checked
            after the block, so that changes during decoding are noticed as well.
    """
    if not is_url(clip.path):
        yield clip.path
        if not _is_as_planned(clip):
            raise ChangedError(_changed(clip))
        return
    if videos is None:
        raise InputError(f"{clip.path} is in a store, and no cache for downloaded videos is set")
    with videos.fetched(clip.path, clip.source_version or clip.source_fingerprint) as local:
        yield local


def _is_as_planned(clip: Clip) -> bool:
    """Whether a local file is unchanged: by one `stat`, and by its bytes if that differs."""
    path, fingerprint, version = Path(clip.path), clip.source_fingerprint, clip.source_version
    if not fingerprint or has_identity(path, version or fingerprint, hash_content=False):
        return True
    return bool(version) and has_identity(path, fingerprint, hash_content=True)


def _since_planned(error: Exception, clip: Clip) -> str:
    """Describe how an undecodable local file changed since planning; "" if it did not."""
    if not clip.source_fingerprint or isinstance(error, ChangedError):
        return ""
    if not os.path.lexists(clip.path):
        return (
            f" on {socket.gethostname()}, but it existed when the job was planned; all nodes "
            "of a cluster must have access to the same videos"
        )
    with suppress(OSError, ValueError):
        return "" if _is_as_planned(clip) else f"; {_changed(clip)}"
    return ""


def _changed(clip: Clip) -> str:
    """Message for a local file that has changed since planning."""
    copies = ", and --hash-content if each node has its own copy"
    return f"{changed(clip.path)}{'' if clip.source_version else copies}"


@cache
def _child(memory_gib: float | None) -> Child:
    """The child process of this worker, started with the first clip."""
    return Child(memory_gib=memory_gib)


def _one_line(error: Exception, path: str, local: str) -> str:
    """Message of an error, with the setting to change, and the URL instead of a local copy."""
    text = one_line(str(error) or type(error).__name__).replace(local or path, path)
    if isinstance(error, TimeoutError):
        return f"{text}; raise decode.timeout_s if the file is long"
    if isinstance(error, MemoryError):
        return f"{text}; raise decode.memory_gib if the frames are large or many"
    return text if path in text else f"{path}: {text}"
