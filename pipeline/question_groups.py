"""Questions about a clip that share a token set.

A method that does not read the question has one token set per clip, whose key is that of the clip.
One that does has a token set per distinct text, in the same cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from pipeline.cache.names import digest
from pipeline.clips import Clip, questions_of
from tango_core.compressors.base import Compressor
from tango_core.models import load_question_embedder
from tango_core.models.base import ModelSpec
from tango_core.types import Question, VideoItem, VisualFeatures

if TYPE_CHECKING:
    from torch import Tensor

_EMBEDDED = 256  # texts whose embeddings are kept


@dataclass(frozen=True)
class QuestionGroup:
    """Questions that share a token set.

    Attributes:
        key: Name of the token set in its cache.
        text: What the method reads; `None` if it reads no question.
        questions: Indices of the questions.
    """

    key: str
    text: str | None
    questions: tuple[int, ...]


def groups_of(clip: Clip, compressor: Compressor) -> list[QuestionGroup]:
    """The token sets that a method has of a clip, in the order of their first question."""
    questions = questions_of(clip)
    if compressor.question_field is None:
        return [QuestionGroup(clip.clip_key, None, tuple(range(len(questions))))]
    groups: dict[str, list[int]] = {}
    for index, question in enumerate(questions):
        groups.setdefault(compressor.question_text(question), []).append(index)
    return [
        QuestionGroup(digest(f"{clip.clip_key}|{text}", len(clip.clip_key)), text, tuple(indices))
        for text, indices in groups.items()
    ]


def with_other_questions(items: Iterable[tuple[str, VideoItem]]) -> Iterator[tuple[str, VideoItem]]:
    """Add a question about another clip of the benchmark to every question (`Question.other`).

    It is one that the clip itself is not asked, drawn from those of the clip before it (the first
    clip's is the last one), or of the nearest one before that has any.

    Args:
        items: (benchmark name, clip) pairs, which are all kept in memory.
    """
    listed = list(items)
    for index, (benchmark, item) in enumerate(listed):
        others = _not_asked_here(listed, index)
        questions = (
            replace(one, other=random.Random(one.id).choice(others) if others else None)
            for one in item.questions
        )
        yield benchmark, replace(item, questions=tuple(questions))


def _not_asked_here(listed: Sequence[tuple[str, VideoItem]], index: int) -> list[Question]:
    """Questions of the nearest clip before one, cyclically, with texts that it is not asked."""
    benchmark, item = listed[index]
    own = {question.text for question in item.questions}
    for step in range(1, len(listed)):
        name, before = listed[index - step]
        if name == benchmark and (
            others := [one for one in before.questions if one.text not in own]
        ):
            return others
    return []


class QuestionReader:
    """Adds questions to features; what embeds them is loaded when it is first needed.

    Args:
        model: The Video LLM.
    """

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        # Every method of a job reads the questions of a clip in turn.
        self._embed = lru_cache(maxsize=_EMBEDDED)(lambda text: self._embedder(text))

    @cached_property
    def _embedder(self) -> Callable[[str], Tensor]:
        return load_question_embedder(self._model)

    def load(self, groups: Sequence[QuestionGroup]) -> None:
        """Load what the questions of these groups need, so that it counts in no measurement."""
        if any(group.text is not None for group in groups):
            self._embedder  # noqa: B018

    def asked(
        self, compressor: Compressor, features: VisualFeatures, groups: Sequence[QuestionGroup]
    ) -> list[VisualFeatures]:
        """The features of a clip, once per group, with the question of the group if it has one."""
        return [
            features
            if group.text is None
            else compressor.with_question(features, group.text, self._embed)
            for group in groups
        ]
