"""`Oracle`: an upper bound for methods that read the question.

It knows which tokens show the object that a question is about, from the ground truth of the
built-in benchmark `shapes`, and works only there. Recipes name it as
`tango_core.analysis.oracle:Oracle`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tango_core.benchmarks.shapes.questions import clip_of, questions, sprites_asked, tokens_of
from tango_core.compressors.base import (
    Combination,
    Compressor,
    QuestionField,
    keep,
    num_kept,
)
from tango_core.types import Question, VisualFeatures


@dataclass(frozen=True)
class Oracle(Compressor):
    """Keep round(retention * T * L) tokens, first those that show the object of the question.

    Tokens of the object are taken from all frames in turn. The rest of the budget (all of it if the
    question is about no object) is spread evenly over the other tokens.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
    """

    @property
    def question_field(self) -> QuestionField:
        """See `Compressor`; `saliency` is positive for the object's tokens and orders them."""
        return "saliency"

    def question_text(self, question: Question) -> str:
        """See `Compressor`: the id, which names clip and question."""
        return question.id

    def with_question(
        self, features: VisualFeatures, text: str, embed: Callable[[str], Tensor]
    ) -> VisualFeatures:
        """See `Compressor`; `text` is the question's id.

        Raises:
            InputError: If the clip is not of the built-in benchmark.
        """
        clip = clip_of("-".join(text.split("-")[:3]))
        (question,) = (one for one in questions(clip) if one.id == text)
        sprites = sprites_asked(clip, question)
        shown = tokens_of(clip, sprites, features.timestamps.tolist(), features.grid)
        place_in_frame = np.where(shown, shown.cumsum(axis=1) - 1, 0)
        score = np.where(shown, shown.shape[1] - place_in_frame, 0).astype(np.float32)
        return replace(features, saliency=torch.from_numpy(score).to(features.tokens.device))

    def _plan(self, features: VisualFeatures) -> Combination:
        score = features.signal("saliency").flatten()
        count = num_kept(len(score), self.retention)
        ranked = score.argsort(descending=True, stable=True)
        of_object = ranked[: min(count, int((score > 0).sum()))]
        others = torch.ones_like(score, dtype=torch.bool).index_fill(0, of_object, False).nonzero()
        spread = torch.arange(count - len(of_object), device=score.device) + 0.5
        spread = (spread * len(others) / max(1, count - len(of_object))).long()
        return keep(features, torch.cat([of_object, others.flatten()[spread]]).sort().values)
