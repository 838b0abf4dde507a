"""Share of an object's tokens that a method keeps, and the best possible selection.

This requires ground truth about which tokens a question is about, as in the built-in benchmark. A
kept token counts with the share of its weight that comes from the object: 1 for an unchanged token
of the object, 0.1 for the plain average of ten tokens of which one is the object's. The sum over
kept tokens is the number of the object's tokens that survive.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tango_core.combination import Combination

# An object is gone if less than this share of every kept token comes from it.
LEAST_PURITY = 0.5


def surviving(plan: Combination, objects: Tensor) -> dict[str, Tensor]:
    """Surviving tokens under a plan of every object that a clip's questions are about.

    Args:
        plan: Plan for the clip, on the CPU.
        objects: (Q, T * L) bool, the tokens of every question's object, at least one each.

    Returns:
        (Q,) tensors: `share` of the object's tokens that survive, in [0, 1]; `best`, that share in
        the best set of equally many tokens for this question; `best_for_clip`, that share in the
        best set for all questions about the clip (`best_for_all`), an upper bound for methods that
        do not know the question; `gone`, whether no kept token comes from the object by at least
        `LEAST_PURITY`.

    Raises:
        ValueError: If an object has no tokens, or the number of tokens differs from the plan's.
    """
    if objects.shape[1] != plan.num_total:
        raise ValueError(f"objects must be (Q, {plan.num_total}), got {tuple(objects.shape)}")
    sizes = objects.sum(dim=1)
    if not bool((sizes > 0).all()):
        raise ValueError("every object must have at least one token")
    purity = object_shares(plan, objects)
    return {
        "share": (purity.sum(dim=1) / sizes).clamp(max=1),
        "best": (plan.num_kept / sizes.double()).clamp(max=1),
        "best_for_clip": best_for_all(objects, plan.num_kept),
        "gone": (purity >= LEAST_PURITY).sum(dim=1) == 0,
    }


def object_shares(plan: Combination, objects: Tensor) -> Tensor:
    """(Q, K) float64 share of every kept token's weight that comes from an object, in [0, 1].

    Args:
        plan: Plan for a clip, on the CPU.
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
    """Surviving share of every object in the set of unchanged tokens with the largest mean share.

    A token adds 1 / (number of the object's tokens) to the share of every object that it shows,
    independent of the other kept tokens, so the best set consists of the tokens that add most.

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
