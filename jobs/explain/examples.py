"""The first questions of a cause, with what differs on them in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from jobs.explain.causes import FAILED, SCORED

_DIGEST_SHOWN = 8


@dataclass(frozen=True)
class Example:
    """One question.

    Attributes:
        video_id: Its clip.
        question_id: Its name in the benchmark.
        score_a: A's score; `None` if A does not have it.
        score_b: B's score.
        reply_a: A's reply; "" if there is none.
        reply_b: B's reply.
        detail: What differs, in a few words.
    """

    video_id: str
    question_id: str
    score_a: float | None
    score_b: float | None
    reply_a: str
    reply_b: str
    detail: str


def examples_of(rows: pd.DataFrame, cause: str, number: int) -> tuple[Example, ...]:
    """The first questions of a cause; those whose score changed come before the others."""
    if rows.empty or not number:
        return ()
    changed = (rows["score_a"] != rows["score_b"]).to_numpy(bool)
    chosen = pd.concat([rows[changed].head(number), rows[~changed].head(number)]).head(number)
    return tuple(_example(row, _detail(row, cause)) for row in chosen.to_dict("records"))


def first_questions(rows: pd.DataFrame, cause: str, number: int) -> tuple[Example, ...]:
    """The first questions that one side has alone."""
    detail = cause.removeprefix("questions that ")
    return tuple(_example(row, detail) for row in rows.head(number).to_dict("records"))


def _example(row: dict[Any, Any], detail: str) -> Example:
    """One question with what differs on it."""
    return Example(
        str(row["video_id"]),
        str(row["question_id"]),
        _number(row["score_a"]),
        _number(row["score_b"]),
        _text(row["text_a"]),
        _text(row["text_b"]),
        detail,
    )


def _detail(row: dict[Any, Any], cause: str) -> str:
    """What differs on one question."""
    if cause == FAILED:
        side = "a" if row["failed_a"] else "b"
        return f"{side.upper()} failed: {_text(row[f'error_{side}'])}"
    if cause == SCORED:
        if _differs(row, "choice"):
            return f"read as option {_option(row, 'choice_a')} and {_option(row, 'choice_b')}"
        if _differs(row, "answer"):
            return f"right is option {_option(row, 'answer_a')} and {_option(row, 'answer_b')}"
        return "scored differently"
    parts = []
    for word, name in (("prompt", "prompt_digest"), ("frames", "frames_digest")):
        if word in cause and _differs(row, name):
            parts.append(f"{word} {_cut(row[f'{name}_a'])} and {_cut(row[f'{name}_b'])}")
    if "tokens" in cause:
        parts.append(_kept(row))
    return ", ".join(filter(None, parts))


def _kept(row: dict[Any, Any]) -> str:
    """Kept tokens of both sides."""
    shown = [
        "?" if pd.isna(row[f"tokens_kept_{x}"]) else f"{row[f'tokens_kept_{x}']:.0f}" for x in "ab"
    ]
    if shown == ["?", "?"]:
        return ""
    return f"tokens {shown[0]} and {shown[1]}" + (", other positions" * (shown[0] == shown[1]))


def _differs(row: dict[Any, Any], name: str) -> bool:
    """Whether a column has two values that are not both empty."""
    first, second = row[f"{name}_a"], row[f"{name}_b"]
    return bool(first != second and not (pd.isna(first) and pd.isna(second)))


def _option(row: dict[Any, Any], name: str) -> str:
    """An option's letter, or none."""
    value = row[name]
    if pd.isna(value):
        return "none"
    return chr(ord("A") + int(value)) if 0 <= value < 26 else f"{value:.0f}"


def _number(value: Any) -> float | None:
    """A score; `None` for none."""
    return None if pd.isna(value) else float(value)


def _text(value: Any) -> str:
    """A text; "" for none."""
    return "" if value is None or pd.isna(value) else str(value)


def _cut(value: Any) -> str:
    """The beginning of a digest."""
    return str(value)[:_DIGEST_SHOWN]
