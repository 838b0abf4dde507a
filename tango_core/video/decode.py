"""Decode the frames of a clip that a model needs."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np

from tango_core.errors import InputError
from tango_core.types import ClipSource, VideoFrames
from tango_core.video import optional, pyav
from tango_core.video.headers import is_mirrored
from tango_core.video.index import PacketIndex, read_index
from tango_core.video.reader import (
    FolderReader,
    FrameReader,
    Picture,
    ReaderError,
    Times,
    VideoDecodeError,
)
from tango_core.video.sampling import (
    DECODERS,
    DecoderName,
    FrameSpec,
    clip_window,
    frame_indices,
    numbered_window,
)

# Pixel formats of the profile High 4:4:4, which decord reads wrong.
_HIGH_444 = ("yuv444", "yuvj444", "gbr")

_TRUNCATED = "the file is probably truncated"

# The header's length is rounded, and in Matroska it may be that of the audio; smaller differences
# do not indicate missing frames.
LOSS_SLACK_S = 0.5
LOSS_SLACK_SHARE = 0.02


def decode_frames(
    path: str,
    spec: FrameSpec,
    clip: tuple[float, float] | None = None,
    index_folder: str | None = None,
) -> VideoFrames:
    """Decode the frames that `spec` asks for.

    Frames are decoded one at a time at full size, turned upright, resized with PIL's bicubic filter
    as the published processors do, and only the resized picture is kept. The file is closed before
    this returns.

    A clip consists of the frames whose time lies in [start, end]; an end beyond the file is
    clamped; if no frame lies between the bounds, or they are equal, the clip is the nearest frame.
    For a directory of images, and for every clip with the sampling `"middles"`, the bounds become
    numbers of frames by MVBench's rule (`sampling.numbered_window`).

    A file that ends before the length in its header is used up to its end, with a warning. If fewer
    frames remain than sampling needs, the clip is rejected, because repeated frames of the
    beginning would hide the loss.

    Args:
        path: A video file or a directory of images.
        spec: Sampling, size and decoder.
        clip: (start, end) in seconds from the start of the file, or `None` for all of it; the end
            may be infinite.
        index_folder: Directory in which the indices of long files are kept, so that the next clip
            of the file needs not find them again; `None` for none.

    Returns:
        `spec.num_frames` frames (fewer on short clips where the sampling does not repeat frames),
        with the time stamps that `spec.times` says.

    Raises:
        VideoDecodeError: If the file cannot be decoded or has no frame where the clip is.
        DecoderUnavailableError: If `spec.decoder` is not installed.
        ValueError: If the clip is not 0 <= start <= end.
    """
    path = os.fspath(path)
    start, end = (0.0, math.inf) if clip is None else clip
    if not 0 <= start <= end or math.isinf(start):
        raise InputError(f"{path}: clip bounds ({start}, {end}) must satisfy 0 <= start <= end")
    if os.path.isdir(path):
        folder = FolderReader(path, spec.folder_fps)
        length_s = len(folder.times) / spec.folder_fps
        if start > length_s:
            raise VideoDecodeError(
                f"{path}: the clip starts at {start:g} s but its images end at {length_s:.2f} s"
            )
        window = numbered_window(len(folder.times), start, end, spec.folder_fps, first=1)
        if spec.sampling == "per_second":
            # lmms-eval's LLaVA-Video takes all the frames it may from a folder of images.
            spec = replace(spec, sampling="truncate")
        return _collect(folder, spec, window, [], spec.folder_fps, start)
    index = read_index(path, index_folder)
    warnings = [index.problem] if index.problem else []
    candidates = _candidates(path, spec, index, warnings)
    for open_reader in candidates:
        try:
            with closing(open_reader()) as reader:
                window, notes = _locate_clip(reader, index, (start, end), spec)
                frames = _collect(reader, spec, window, [*warnings, *notes], index.rate, start)
            break
        except ReaderError as failure:
            if open_reader is candidates[-1]:
                raise
            warnings.append(str(failure).removeprefix(f"{path}: "))
    lost = [
        f"the file has lost frames between {before:.2f} s and {after:.2f} s"
        for before, after in index.seconds(index.holes)
        if before < end and start < after
    ]
    return replace(frames, damage=(*lost, *frames.damage))


def decoder_versions(decoder: DecoderName) -> str:
    """Name the libraries behind a decoder setting, for the cache identity.

    For example `"auto(pyav 18.1.0)"` or `"decord 0.6.0"`.

    Raises:
        DecoderUnavailableError: If the decoder is not installed.
        ValueError: If there is no such decoder.
    """
    if decoder in ("auto", "pyav"):
        return f"auto({pyav.version()})" if decoder == "auto" else pyav.version()
    if decoder in DECODERS:
        return optional.version(decoder)
    raise InputError(f"unknown decoder {decoder!r}; choose one of: {', '.join(DECODERS)}")


def resize(picture: Picture, size: tuple[int, int]) -> Picture:
    """Stretch an (h, w, 3) uint8 picture to (height, width) with PIL's bicubic filter.

    This is the filter of the published SigLIP processor; torch's antialiased bicubic on uint8
    differs by at most 1 of 255. Scaling inside the decoders (swscale, decord's width and height)
    would save 10 ms per 1080p frame but differs by up to 65 of 255, 1.4 on average.
    """
    if picture.shape[:2] == size:
        return picture
    from PIL import Image  # imported here, because models can be used without videos

    height, width = size
    image = Image.fromarray(np.ascontiguousarray(picture))
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def _candidates(
    path: str, spec: FrameSpec, index: PacketIndex, warnings: list[str]
) -> list[Callable[[], FrameReader]]:
    """List the readers in the order to try them; a file is opened only when one is called."""
    if spec.decoder not in ("auto", "pyav") and is_mirrored(path):
        raise VideoDecodeError(f"{path}: its header says to mirror it; use decode.decoder: auto")
    if spec.decoder == "decord":
        return [_decord_reader(path, index, warnings)]
    # By time stamps where they can be trusted, else in the order of the file.
    readers: list[Callable[[], FrameReader]] = [partial(pyav.SequentialReader, path, index)]
    if index.trusted:
        readers.insert(0, partial(pyav.IndexedReader, path, index))
    if spec.decoder.startswith("torchcodec"):
        readers.insert(0, partial(optional.TorchcodecReader, path, index, spec.decoder))
    return readers


def _decord_reader(path: str, index: PacketIndex, warnings: list[str]) -> Callable[[], FrameReader]:
    """Open decord if its frame times are reliable, with a warning about possible errors."""
    doubt = index.decord_doubt
    if doubt is None:
        return partial(optional.DecordReader, path, index.times)
    if index.codec == "h264" and index.pixel_format.startswith(_HIGH_444):
        raise VideoDecodeError(f"{path}: decord reads H.264 4:4:4 wrong; use decode.decoder: auto")
    warnings.append(f"decord may return neighbouring frames on this file: {doubt}")
    if not index.has_gaps:
        return partial(optional.DecordReader, path)
    if index.reordered:
        raise VideoDecodeError(
            f"{path}: decord tells no times of dropped frames; use decode.decoder: auto"
        )
    return partial(optional.DecordReader, path, index.seconds(index.numbers))


def _collect(
    reader: FrameReader,
    spec: FrameSpec,
    window: tuple[int, int],
    warnings: Sequence[str],
    rate: float | None,
    start_s: float,
) -> VideoFrames:
    """Sample a window of frames, resize each as it arrives, and repeat what sampling repeats."""
    first, stop = window
    # Harnesses count a clip's length as its frames divided by the average rate.
    shown = reader.times[first:stop]
    duration_s = len(shown) / rate if rate else float(shown[-1] - shown[0]) + _usual_step(shown)
    rate = rate or (len(shown) / duration_s if duration_s > 0 else 1.0)
    positions = first + frame_indices(stop - first, spec.num_frames, spec.sampling, rate)
    unique, slots = np.unique(positions, return_inverse=True)
    pictures: list[Picture] = []
    size = source = None
    for _, picture in reader.fetch(unique):
        if size is None or source is None:
            source = ClipSource(duration_s, picture.shape[0])
            try:
                size = spec.frame_size(picture.shape[0], picture.shape[1], len(positions))
            except ValueError as error:
                raise VideoDecodeError(f"{reader.path}: {error}") from error
        pictures.append(resize(picture, size))
    if len(pictures) != len(unique):
        raise ReaderError(
            f"{reader.path}: {len(pictures)} of {len(unique)} frames decoded; {_TRUNCATED}"
        )
    times = reader.times[positions]
    if spec.times == "average_rate":
        times = start_s + (positions - first) / rate
    return VideoFrames(
        pixels=np.stack([pictures[slot] for slot in slots]),
        timestamps=times.astype(np.float64),
        decoder=reader.name,
        warnings=(*warnings, *_counted(reader.problems)),
        source=source,
        damage=tuple(_counted(reader.damage)),
    )


def _counted(problems: Sequence[str]) -> list[str]:
    """List every problem once, with its number of occurrences."""
    return [text if n == 1 else f"{text}, {n} times" for text, n in Counter(problems).items()]


def _locate_clip(
    reader: FrameReader, index: PacketIndex, clip: tuple[float, float], spec: FrameSpec
) -> tuple[tuple[int, int], Sequence[str]]:
    """Find the frames of a clip, and compare them with what the header announces.

    Args:
        reader: The open file.
        index: Header and packet data of the file.
        clip: (start, end) in seconds; the end may be infinite.
        spec: Number of frames, and whether bounds are frame numbers at the average rate.

    Returns:
        Positions (first, one past the last) into `times`, and warnings.

    Raises:
        VideoDecodeError: If there are no frames, the clip starts behind the last one, or the file
            was cut off and fewer frames than wanted are left of a clip that had more.
    """
    path, times, num_frames = reader.path, reader.times, spec.num_frames
    if len(times) == 0:
        raise VideoDecodeError(f"{path}: 0 of {num_frames} frames decoded; {_TRUNCATED}")
    start, end = clip
    frames_end = _end_of_frames(times, index)
    announced_end = max(index.duration_s or 0.0, frames_end)
    cut_off = announced_end - frames_end > max(LOSS_SLACK_S, LOSS_SLACK_SHARE * announced_end)
    if start > announced_end:
        raise VideoDecodeError(
            f"{path}: the clip starts at {start:g} s but the video ends at {announced_end:.2f} s"
        )
    rate = index.rate
    if spec.sampling == "middles" and rate:
        window = numbered_window(len(times), start, end, rate, first=0)
    else:
        window = clip_window(times, start, end)
    if not cut_off:
        return window, ()
    extent = f"frames end at {frames_end:.2f} s of {announced_end:.2f} s announced"
    if start > frames_end:
        raise VideoDecodeError(f"{path}: the clip starts at {start:g} s but {extent}; {_TRUNCATED}")
    num_left = window[1] - window[0]
    num_lost = round((min(end, announced_end) - frames_end) * (rate or 25.0))
    if num_lost <= 0:
        return window, ()
    if num_left < min(num_frames, num_left + num_lost):
        raise VideoDecodeError(f"{path}: {num_left} of {num_frames} frames decoded; {_TRUNCATED}")
    return window, (extent,)


def _end_of_frames(times: Times, index: PacketIndex) -> float:
    """End of the last frame's display time in seconds; a final still may be long."""
    if index.trusted and times[-1] >= index.times[-1]:
        return max(index.end_s, float(times[-1]))
    return float(times[-1]) + (_usual_step(times) or 1.0 / (index.rate or 25.0))


def _usual_step(times: Times) -> float:
    return float(np.median(np.diff(times))) if len(times) > 1 else 0.0
