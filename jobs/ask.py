"""What `tango ask` prints, and where its video comes from."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from jobs.config.sections import DecodeSection
from jobs.report.formatting import milliseconds
from pipeline.storage.copies import VideoCache
from pipeline.storage.urls import is_url
from tango_core.ask import VideoAnswer

# Stage of `VideoAnswer.latency_ms` -> displayed name.
_STAGES = {
    "decode_video": "read",
    "vision": "vision",
    "compress": "compress",
    "ttft": "first token",
    "decode": "rest",
}


def local_video(video: str) -> AbstractContextManager[str]:
    """A local path of the video; a video in a store is fetched and cached."""
    if not is_url(video):
        return nullcontext(video)
    cache = DecodeSection()
    return VideoCache(cache.video_cache, cache.video_cache_gib).fetched(video, "")


def reply(answer: VideoAnswer) -> str:
    """The chosen option with its letter, or the text of the reply."""
    if answer.choice is not None:
        return f"{answer.letter}. {answer.choices[answer.choice]}"
    if answer.status == "unparsed":
        return f"The reply does not name an option: {answer.text!r}"
    return answer.text or "(The reply is empty.)"


def cost(answer: VideoAnswer) -> str:
    """Method, tokens and times in one line."""
    retention = "" if answer.retention is None else f" r={answer.retention:g}"
    share = answer.tokens_kept / answer.tokens_total
    ms = answer.latency_ms
    times = [f"{name} {milliseconds(ms[one])}" for one, name in _STAGES.items() if one in ms]
    return (
        f"{answer.method}{retention}: {answer.tokens_kept} of {answer.tokens_total} visual tokens "
        f"({share:.1%}); ms: {', '.join(times)}"
    )
