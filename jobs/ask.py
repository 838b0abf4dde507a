"""`tango ask`: answer one question about a user's video."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from rich.console import Console

from jobs import exit_codes
from jobs.config.sections import DecodeSection
from jobs.report.formatting import milliseconds
from pipeline.storage.urls import is_url
from pipeline.storage.videos import VideoCache
from tango_core.ask import VideoAnswer, VideoChat

# Displayed name of every stage of `VideoAnswer.latency_ms`.
_STAGE_NAMES = {
    "decode_video": "read",
    "vision": "vision",
    "compress": "compress",
    "ttft": "first token",
    "decode": "rest",
}


def ask(
    video: str,
    question: str,
    *,
    choices: Sequence[str] = (),
    model: str = "tiny",
    path: str | None = None,
    method: str = "tango",
    retention: float | None = None,
    clip: tuple[float, float] | None = None,
    max_new_tokens: int | None = None,
    model_options: Mapping[str, Any] | None = None,
    method_options: Mapping[str, Any] | None = None,
    console: Console,
) -> int:
    """Answer and print; returns 0, or 1 if the reply does not name an option.

    Args:
        video: File, directory of frames, or the URL of one in a store.
        question: The question.
        choices: Options; `"a|b"` means two options.
        model: See `VideoChat`.
        path: See `VideoChat`.
        method: See `VideoChat.ask`.
        retention: See `VideoChat.ask`.
        clip: Start and end in seconds; `None` for the whole video.
        max_new_tokens: See `VideoChat.ask`.
        model_options: See `VideoChat`; `None` values are ignored.
        method_options: Other options of the method.
        console: Where to print.

    Raises:
        ValueError: If an option is wrong.
        FileNotFoundError: If the video or the checkpoint is missing.
    """
    options = [option for given in choices for option in given.split("|")]
    of_model = {k: v for k, v in (model_options or {}).items() if v is not None}
    chat = VideoChat(model, path, **of_model)
    with _local(video) as local:
        answer = chat.ask(
            local,
            question,
            options,
            method=method,
            retention=retention,
            clip=clip,
            max_new_tokens=max_new_tokens,
            **(method_options or {}),
        )
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(reply(answer))
    share = "" if answer.retention is None else f" r={answer.retention:g}"
    say(f"{answer.method}{share}: {cost(answer)}", style="dim")
    for warning in (*answer.warnings, *([chat.spec.note] if chat.spec.note else [])):
        say(f"note: {warning}", style="dim")
    return exit_codes.of(answer.status != "unparsed")


def _local(video: str) -> AbstractContextManager[str]:
    """A local path of the video; a video in a store is fetched and cached."""
    if not is_url(video):
        return nullcontext(video)
    kept = DecodeSection()
    return VideoCache(kept.video_cache, kept.video_cache_gib).fetched(video, "")


def reply(answer: VideoAnswer) -> str:
    """The chosen option with its letter, or the text of the reply."""
    if answer.choice is not None:
        return f"{answer.letter}. {answer.choices[answer.choice]}"
    if answer.status == "unparsed":
        return f"The reply does not name an option: {answer.text!r}"
    return answer.text or "(The reply is empty.)"


def cost(answer: VideoAnswer) -> str:
    """Tokens and times in one line."""
    share = 100 * answer.tokens_kept / answer.tokens_total
    times = [
        f"{word} {milliseconds(answer.latency_ms[stage])}"
        for stage, word in _STAGE_NAMES.items()
        if stage in answer.latency_ms
    ]
    return (
        f"{answer.tokens_kept} of {answer.tokens_total} visual tokens ({share:.1f} %); "
        f"ms: {', '.join(times)}"
    )
