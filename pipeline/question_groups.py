"""Questions about a clip that share a token set.

A method that does not read the question has one token set per clip, whose key is that of the clip.
One that does has a token set per distinct text, in the same cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pipeline.cache.fingerprint import digest
from pipeline.clips import Clip, questions_of
from tango_core.compressors.base import Compressor
from tango_core.models import load_question_embedder
from tango_core.models.base import ModelSpec
from tango_core.types import VisualFeatures

if TYPE_CHECKING:
    from torch import Tensor


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


class QuestionReader:
    """Adds questions to features; what embeds them is loaded when it is first needed.

    Args:
        model: The Video LLM.
    """

    def __init__(self, model: ModelSpec) -> None:
        self._model = model

    @cached_property
    def _embed(self) -> Callable[[str], Tensor]:
        return load_question_embedder(self._model)

    def asked(
        self, features: VisualFeatures, groups: Sequence[QuestionGroup]
    ) -> list[VisualFeatures]:
        """The features of a clip, once per group, with the question of the group if it has one."""
        return [
            features
            if group.text is None
            else replace(features, question=self._embed(group.text).to(features.tokens.device))
            for group in groups
        ]
