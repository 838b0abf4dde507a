"""`tango ask`: answer one question about a video of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from rich.console import Console

from jobs import exit_codes
from jobs.config.sections import DecodeSection
from jobs.memory import available_memory
from jobs.report.formatting import milliseconds
from jobs.units import human_bytes
from pipeline.storage.urls import is_url
from pipeline.storage.videos import VideoCache
from tango_core.ask import VideoAnswer, VideoChat
from tango_core.errors import InputError
from tango_core.models.base import ModelSpec
from tango_core.models.placement import resolve_device

# Stage of `VideoAnswer.latency_ms` -> its name in the output.
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
    """Answer and print; returns 0, or 1 if the reply is none of the options.

    Args:
        video: File, directory of frames, or the URL of one in a store.
        question: The question.
        choices: Options; `"a|b"` stands for two of them.
        model: See `VideoChat`.
        path: See `VideoChat`.
        method: See `VideoChat.ask`.
        retention: See `VideoChat.ask`.
        clip: Start and end in seconds; `None` for the whole video.
        max_new_tokens: See `VideoChat.ask`.
        model_options: See `VideoChat`; `None` values are not passed on.
        method_options: Other options of the method.
        console: Where to print.

    Raises:
        ValueError: If an option is wrong, in one line.
        FileNotFoundError: If the video or the checkpoint is missing.
    """
    options = [option for given in choices for option in given.split("|")]
    of_model = {k: v for k, v in (model_options or {}).items() if v is not None}
    chat = VideoChat(model, path, **of_model)
    raise_if_too_many_frames(chat.spec, available_memory()[1])
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


def raise_if_too_many_frames(spec: ModelSpec, free_bytes: int) -> None:
    """Refuse a number of frames that do not fit into the memory of this machine.

    Counted are their pixels and, on the CPU, their tokens twice: while a clip is encoded they are
    copied once.

    Args:
        spec: The model.
        free_bytes: Memory that is left.

    Raises:
        ValueError: In one line that names the option.
    """
    tokens = 0.0
    if spec.grid is not None and resolve_device(spec.device).type == "cpu":
        height, width = spec.grid
        itemsize = getattr(torch, spec.dtype).itemsize
        tokens = 2.0 * height * width * spec.llm.hidden_size * itemsize
    most = spec.frames.most_frames(free_bytes, tokens)
    if most is not None and spec.frames.num_frames > most:
        needed = spec.frames.num_frames * (spec.frames.least_frame_bytes() + tokens)
        raise InputError(
            f"--num-frames {spec.frames.num_frames}: the frames of the clip take "
            f"{human_bytes(needed)} or more, and {human_bytes(free_bytes)} of memory are free; "
            f"give {most} or less"
        )


def _local(video: str) -> AbstractContextManager[str]:
    """A path of the video; one in a store is fetched, and kept for the next question."""
    if not is_url(video):
        return nullcontext(video)
    kept = DecodeSection()
    return VideoCache(kept.video_cache, kept.video_cache_gib).fetched(video, "")


def reply(answer: VideoAnswer) -> str:
    """The chosen option with its letter, or the text of the reply."""
    if answer.choice is not None:
        return f"{answer.letter}. {answer.choices[answer.choice]}"
    if answer.status == "unparsed":
        return f"The reply names none of the options: {answer.text!r}"
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
