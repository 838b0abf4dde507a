"""`tango ask`: answer one question about a video of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import yaml
from rich.console import Console

from jobs.config.recipe import DecodeSection, RecipeError
from jobs.report.formatting import milliseconds
from pipeline.remote.urls import is_url
from pipeline.remote.videos import VideoCache
from tango_core.ask import VideoAnswer, VideoChat

# Stage of `VideoAnswer.latency_ms` -> its name in the output.
_STAGE_NAMES = {
    "decode_video": "read",
    "vision": "vision",
    "compress": "compress",
    "ttft": "first token",
    "decode": "rest",
}

# Arguments of `VideoChat.ask` that are flags of the command, not options of a method.
_FLAGS = ("video", "question", "choices", "method", "retention", "clip", "max_new_tokens")


def ask(
    video: str,
    question: str,
    *,
    choices: Sequence[str] = (),
    model: str = "tiny",
    path: str | None = None,
    method: str = "tango",
    retention: float | None = None,
    clip: str | None = None,
    max_new_tokens: int | None = None,
    model_options: Mapping[str, Any] | None = None,
    method_options: Sequence[str] = (),
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
        clip: Start and end in seconds, `"12.5-30"`; `None` for the whole video.
        max_new_tokens: See `VideoChat.ask`.
        model_options: See `VideoChat`; `None` values are not passed on.
        method_options: `"name=value"` with a YAML value.
        console: Where to print.

    Raises:
        ValueError: If an option is wrong, in one line.
        FileNotFoundError: If the video or the checkpoint is missing.
    """
    bounds = None if clip is None else _bounds(clip)
    options = [option for given in choices for option in given.split("|")]
    of_method = dict(_option(text) for text in method_options)
    of_model = {k: v for k, v in (model_options or {}).items() if v is not None}
    chat = VideoChat(model, path, **of_model)
    with _local(video) as path:
        answer = chat.ask(
            path,
            question,
            options,
            method=method,
            retention=retention,
            clip=bounds,
            max_new_tokens=max_new_tokens,
            **of_method,
        )
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(reply(answer))
    say(cost(answer), style="dim")
    for warning in (*answer.warnings, *([chat.spec.note] if chat.spec.note else [])):
        say(f"note: {warning}", style="dim")
    return 1 if answer.status == "unparsed" else 0


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


def _bounds(text: str) -> tuple[float, float]:
    """Parse `"12.5-30"`."""
    start, dash, end = text.partition("-")
    try:
        bounds = float(start), float(end)
    except ValueError:
        bounds = (0.0, -1.0)
    if not dash or not 0 <= bounds[0] <= bounds[1]:
        raise RecipeError(f"--clip {text!r} is not START-END in seconds, e.g. 12.5-30")
    return bounds


def _option(text: str) -> tuple[str, Any]:
    """Parse `"alpha=2"`."""
    name, equals, value = text.partition("=")
    if not equals or not name or name in _FLAGS:
        raise RecipeError(f"--option {text!r} is not OPTION=VALUE of the method, e.g. alpha=2")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise RecipeError(f"--option {text!r}: {value!r} is not a YAML value") from error
