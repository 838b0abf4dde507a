"""Questions about a clip that share a token set.

A method that does not read the question has one token set per clip, under the clip's key. A method
that reads the question has one token set per clip and distinct question text, in the same cache.
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

_EMBEDDED = 256  # size of the cache of question embeddings


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
    """Group a clip's questions by the token set they share, in the order of the first question."""
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
    """Set `Question.other` of every question: a question about another clip, for control methods.

    It is drawn at random from the questions of the previous clip of the same benchmark (cyclically)
    that has a question whose text does not also occur for this clip; `None` if no clip has.

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
    """Questions for `with_other_questions` to draw from; empty if there are none."""
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
    """Adds question embeddings to features; the embedder is loaded on first use.

    Args:
        model: The Video LLM.
    """

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        # Cached, because all methods of a job embed the same questions.
        self._embed = lru_cache(maxsize=_EMBEDDED)(lambda text: self._embedder(text))

    @cached_property
    def _embedder(self) -> Callable[[str], Tensor]:
        return load_question_embedder(self._model)

    def load(self, groups: Sequence[QuestionGroup]) -> None:
        """Load the embedder if a group needs it, so that no measurement includes the loading."""
        if any(group.text is not None for group in groups):
            self._embedder  # noqa: B018

    def asked(
        self, compressor: Compressor, features: VisualFeatures, groups: Sequence[QuestionGroup]
    ) -> list[VisualFeatures]:
        """Return the clip's features once per group, with the group's question added if any."""
        return [
            features
            if group.text is None
            else compressor.with_question(features, group.text, self._embed)
            for group in groups
        ]
