"""The sentence that tells LLaVA-Video how long a clip is and when its frames were taken."""

from __future__ import annotations

from typing import Literal

from tango_core.types import ClipSource, CompressedVideo

TimeInstruction = Literal["none", "correct", "vlmevalkit", "lmms_eval"]

_TIGHT = (
    "The video lasts for {duration:.2f} seconds,and {count} frames are uniformly sampled from it."
    "These frames are located at {times}."
    "Please answer the following questions related to this video.\n"
)
_SPACED = (
    "The video lasts for {duration:.2f} seconds, and {count} frames are uniformly sampled from it. "
    "These frames are located at {times}."
    "Please answer the following questions related to this video.\n"
)


def time_instruction(video: CompressedVideo, wording: TimeInstruction, frame_height: int) -> str:
    """Words to put between the clip and the question.

    `"vlmevalkit"` is what VLMEvalKit writes, and with it the publications: where the number of
    frames belongs stands the height of the file's frames in pixels, because the harness takes the
    length of one frame's array. `"correct"` is the same with the number of frames, `"lmms_eval"`
    the sentence of lmms-eval, which counts right and sets spaces.

    Both harnesses write the time of a frame as its index over the average rate, from the first
    frame of the clip (they cut bounded clips out first). Here it is the frame's own time from that
    of the first frame: the same number wherever the rate is constant.

    Args:
        video: Its `timestamps` and `source` are read. Without a source the last frame's time is the
            length.
        wording: Whose sentence; `"none"` for no words.
        frame_height: Stands in for `source.frame_height` where there is no source.

    Returns:
        The sentence with the line break that ends it, or "".
    """
    if wording == "none":
        return ""
    seconds = (video.timestamps - video.timestamps[0]).tolist()
    source = video.source or ClipSource(seconds[-1], frame_height)
    return (_SPACED if wording == "lmms_eval" else _TIGHT).format(
        duration=source.duration_s,
        count=source.frame_height if wording == "vlmevalkit" else len(seconds),
        times=",".join(f"{second:.2f}s" for second in seconds),
    )
