"""Kept tokens that show an object, and the best possible selection.

Only where the truth is known, as in the embedded world, can it be said which tokens a question is
about. A kept token counts with the share of its weight that comes from the object: 1 if it is one
of the object's tokens and unchanged, a tenth if it is the plain average of ten tokens of which one
is the object's. Summed over kept tokens that is the number of the object's tokens that survive.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tango_core.combination import Combination

# An object is gone where less than this share of every kept token comes from it.
LEAST_PURITY = 0.5


@dataclass(frozen=True)
class Evidence:
    """What is left of one object.

    Attributes:
        num_tokens: Its tokens in the clip.
        share: Share of them that survives, in [0, 1].
        purest: Largest share of a kept token that comes from it, in [0, 1].
        best: Share that survives in the best set of as many tokens, chosen for this question.
        best_for_clip: The same in the set that serves all questions about the clip best, see
            `best_for_all`: what a method that does not know the question could reach.
    """

    num_tokens: int
    share: float
    purest: float
    best: float
    best_for_clip: float

    @property
    def gone(self) -> bool:
        """Whether no kept token shows at least `LEAST_PURITY` of it."""
        return self.purest < LEAST_PURITY


def left_of(plan: Combination, objects: Tensor) -> list[Evidence]:
    """What a plan leaves of every object that a clip's questions are about.

    Args:
        plan: Of the clip, on the CPU.
        objects: (Q, T * L) bool, the tokens of every question's object, at least one each.

    Returns:
        Q results.

    Raises:
        ValueError: If an object has no tokens, or the clip another number of tokens.
    """
    if objects.shape[1] != plan.num_total:
        raise ValueError(f"objects must be (Q, {plan.num_total}), got {tuple(objects.shape)}")
    sizes = objects.sum(dim=1)
    if not bool((sizes > 0).all()):
        raise ValueError("every object must have at least one token")
    if not len(objects):
        return []
    purity = object_shares(plan, objects)
    shares = (purity.sum(dim=1) / sizes).clamp(max=1)
    purest = purity.amax(dim=1) if plan.num_kept else torch.zeros(len(objects))
    of_best = best_for_all(objects, plan.num_kept)
    return [
        Evidence(
            num_tokens=int(size),
            share=float(share),
            purest=float(pure),
            best=min(1.0, plan.num_kept / int(size)),
            best_for_clip=float(best),
        )
        for size, share, pure, best in zip(sizes, shares, purest, of_best, strict=True)
    ]


def object_shares(plan: Combination, objects: Tensor) -> Tensor:
    """(Q, K) float64 share of every kept token's weight that comes from an object, in [0, 1].

    Args:
        plan: Of a clip, on the CPU.
        objects: (Q, T * L) bool.
    """
    if plan.offsets is None or plan.sources is None or plan.weights is None:
        return objects[:, plan.indices].double()
    owners = torch.repeat_interleave(torch.arange(plan.num_kept), plan.offsets.diff())
    weights = plan.weights.double().abs()
    totals = torch.zeros(plan.num_kept, dtype=torch.float64).index_add_(0, owners, weights)
    own = objects[:, plan.sources].double() * weights
    shares = torch.zeros(len(objects), plan.num_kept, dtype=torch.float64)
    shares.index_add_(1, owners, own)
    return shares / totals.clamp(min=torch.finfo(torch.float64).tiny)


def best_for_all(objects: Tensor, num_kept: int) -> Tensor:
    """Share of every object in the set of unchanged tokens whose mean share is largest.

    A token adds 1 / (tokens of the object) to the share of every object that it shows, whatever
    else is kept: the best set is that of the tokens which add most.

    Args:
        objects: (Q, N) bool.
        num_kept: Size of the set, at most N.

    Returns:
        (Q,) float64 in [0, 1].
    """
    sizes = objects.sum(dim=1)
    gains = (objects.double() / sizes[:, None]).sum(dim=0)
    chosen = gains.sort(descending=True, stable=True).indices[:num_kept]
    return objects[:, chosen].sum(dim=1) / sizes
