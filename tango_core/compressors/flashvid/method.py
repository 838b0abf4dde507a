"""FlashVID: diverse attended tokens of every frame, and trees of similar tokens over frames.

Paper: "FlashVID", arXiv 2602.08024; release Fanziyang-v/FlashVID at 1d37422 (ADTS, TSTM, and a step
of FastV inside the language model).

Differences from the release: the mean of a tree is the mean of its tokens (the release divides by
the children of the root alone, `tree_mean="official"`); scenes of one frame do not cluster chosen
tokens again; a token is never chosen twice if all weights are 0 or less; identical frames are cut
at positions without a cut; no random noise is added to densities, ties go to the lowest position;
the input is not modified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.combination import Combination, Drawing, in_order, unchanged
from tango_core.compressors.flashvid.trees import (
    best_links,
    cluster_trees,
    grow_trees,
    pick_attended,
    pick_diverse,
    plan_budgets,
    plan_clusters,
)
from tango_core.compressors.hybrid import DEFAULT_NUM_LAYERS, INNER, Hybrid, Steps
from tango_core.compressors.in_llm.fastv import FastVStep
from tango_core.compressors.options import Cosine, Count, Ratio
from tango_core.compressors.stop import checked_stop, stop_for
from tango_core.errors import InputError
from tango_core.latency import NO_TIMER, LatencyProfile
from tango_core.ops.blocks import row_blocks, write_products
from tango_core.ops.finite import read_checked
from tango_core.ops.segmentation import cut_segments, dyseg_cuts
from tango_core.ops.transfer import upload
from tango_core.types import VisualFeatures

Selection = Literal["v2", "v1", "div", "attention"]


@dataclass(frozen=True)
class PublishedValues:
    """The settings of one family in the release's scripts, equal for every retention.

    Attributes:
        selection: Weights of the diverse selection.
        num_segments: Minimum number of segments.
        layer: Layer of the step inside the language model.
        num_layers: Number of layers of the language model for which `layer` is published.
        retention: Share of the visual tokens that this step keeps.
    """

    selection: Selection
    num_segments: int
    layer: int
    num_layers: int
    retention: float


_LLAVA = PublishedValues("v2", 8, 20, 28, 0.3)
# Prefix of a model's name -> its values; all other models use those of LLaVA.
_BY_NAME = {
    "qwen3-vl": PublishedValues("v1", 4, 28, 36, 0.1),
    "qwen2.5-vl": PublishedValues("v1", 4, 20, 28, 0.3),
}


def published_values(model: str | None) -> PublishedValues:
    """The values for a model's name in `MODELS`; those of LLaVA for other or unknown models."""
    name = (model or "").lower().replace("_", "-")
    return next((values for start, values in _BY_NAME.items() if name.startswith(start)), _LLAVA)


def published_inner(
    values: PublishedValues, retention: float, num_layers: int
) -> dict[str, Any] | None:
    """The step inside a language model of `num_layers` layers.

    Its layer is at the published share of the model's depth. If all tokens with that step average
    to less than `retention`, the step drops fewer tokens; at retention 1 there is no step.

    Args:
        values: The published values.
        retention: Target, averaged over the layers, in (0, 1].
        num_layers: Layers of the language model.

    Raises:
        ValueError: If there is no such layer.
    """
    if retention == 1:
        return None
    layer = round(values.layer / values.num_layers * num_layers)
    if not 1 <= layer < num_layers:
        raise InputError(
            f"inner 'published' is layer {values.layer} of {values.num_layers}, and a language "
            f"model of {num_layers} layers has none at that share; set inner to null, or to "
            '{"name": "fastv", "layer": ..., "retention": ...}'
        )
    least = (num_layers * retention - layer) / (num_layers - layer)
    share = max(values.retention, round(least, 12))
    return {"name": "fastv", "layer": layer, "retention": share}


def with_published(
    options: Mapping[str, Any], model: str | None, num_layers: int
) -> dict[str, Any]:
    """Replace `None` and "published" in checked options by the published values."""
    values = published_values(model)
    filled = {"inner": "published", **options}
    for name in ("selection", "num_segments"):
        if filled.get(name) is None:
            filled[name] = getattr(values, name)
    if filled["inner"] == "published":
        # A retention out of range is rejected later, by the class.
        is_share = 0 < filled["retention"] <= 1
        inner = published_inner(values, filled["retention"], num_layers) if is_share else None
        filled["inner"] = inner
    return filled


STOP_STRENGTHS = (0.02, 0.0)


@dataclass(frozen=True)
class FlashVID(Hybrid):
    """Diverse attended tokens per frame, plus clustered means of trees over a scene's frames.

    A frame's budget is ceil(retention * L), of which ceil(salient_ratio * budget) are chosen; the
    others are tree tokens, divided over a scene's frames in proportion to the trees that begin
    there and rounded up. The two roundings keep up to 6 % more than requested.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1]; with `inner`, its average over the
            layers.
        selection: Weights of the diverse selection: `"v1"` attention, `"v2"` attention times
            relevance to the scene, `"div"` none; `"attention"` is plain top-k. `None` is the
            published value for the model: v1 on Qwen, else v2.
        num_segments: Minimum number of scenes, at most one per frame; `None` is the published value
            for the model: 4 on Qwen, else 8.
        tau: A scene ends where the cosine of consecutive frame means is below this, in [-1, 1].
        link_tau: A token is linked to one of the previous frame above this cosine, in [-1, 1].
        salient_ratio: Share of the budget that is chosen, in [0, 1].
        tree_mean: `"mean"` of a tree's tokens; `"official"` divides their sum by 1 + the children
            of the root, as released.
        inner: In-LLM step that follows: `{"name": "fastv", "layer": 20, "retention": 0.3}`,
            `"published"` for the model's own (layer 20 of 28 and 0.3; layer 28 of 36 and 0.1 on
            Qwen3-VL; the same share of the layers of other depths), `None` for none.
        stop: Reduce the attention of sinks, `{"spatial": 0.02, "temporal": 0, "gamma": 1.1}` as
            published, with sink scores per scene (except in scenes of one frame, unless `legacy`);
            only with selection v2. See `stop.py`.
        budget: `"official"` rounds up as described above; `"exact"` keeps
            round(outer retention * T * L) tokens by largest remainder.
    """

    checks_in_plan: ClassVar[bool] = True
    inner_steps: ClassVar[Steps] = {"fastv": FastVStep, **INNER}

    selection: Literal["v2", "v1", "div", "attention"] | None = None
    num_segments: Count | None = None
    tau: Cosine = 0.9
    link_tau: Cosine = 0.8
    salient_ratio: Ratio = 0.7
    tree_mean: Literal["mean", "official"] = "mean"
    inner: Literal["published"] | Mapping[str, Any] | None = field(default="published", hash=False)
    stop: Mapping[str, Any] | None = field(default=None, hash=False)
    budget: Literal["official", "exact"] = "official"

    def __post_init__(self) -> None:
        """Check the options, and replace "published" by the values for an unknown model."""
        for name, value in with_published(vars(self), None, DEFAULT_NUM_LAYERS).items():
            object.__setattr__(self, name, value)
        super().__post_init__()
        if self.link_tau == 1:
            raise InputError(f"link_tau must be in [-1, 1), got {self.link_tau}")
        if self.stop is not None:
            object.__setattr__(self, "stop", checked_stop("flashvid", self.stop, STOP_STRENGTHS))
            if self.selection != "v2":
                raise InputError(
                    f'stop is defined for selection "v2" of flashvid, got selection '
                    f"{self.selection!r}; set selection to v2, or stop to null"
                )

    @classmethod
    def published_options(
        cls, options: Mapping[str, Any], model: str | None, num_layers: int
    ) -> dict[str, Any]:
        """Selection, segments and inner step as published for the model."""
        return with_published(options, model, num_layers)

    @property
    def needs(self) -> frozenset[str]:
        """Received attention weights tokens, except with `"div"`."""
        return frozenset() if self.selection == "div" else frozenset({"attention"})

    @property
    def outer_retention(self) -> float:
        """Share kept before the language model so that the layers average to `retention`."""
        # Rounded so that 0.1 with the published step is 0.125, for the rounding of budgets.
        return round(super().outer_retention, 12)

    @property
    def averages(self) -> bool:
        """Whether weights add up to 1; not with `tree_mean="official"`."""
        return self.tree_mean == "mean"

    def _plan(self, features: VisualFeatures) -> Combination:
        """All steps, without a clock."""
        return self._plan_in_steps(features, NO_TIMER)

    def _plan_in_steps(self, features: VisualFeatures, clock: LatencyProfile) -> Combination:
        """Segment, choose, link and cluster; the host builds trees from cosines and positions."""
        assert self.num_segments is not None
        tokens = features.tokens.contiguous()
        num_frames, tokens_per_frame, dim = tokens.shape
        with clock.stage("segment"):
            means = tokens.mean(dim=1, dtype=torch.float32)
            cuts = dyseg_cuts(means, self.tau, self.num_segments)
            shares, exact = (self.outer_retention, self.salient_ratio), self.budget == "exact"
            per_frame, counts = plan_budgets(num_frames, tokens_per_frame, *shares, exact=exact)
        with clock.stage("select"):
            chosen, norms = self._choose(features, tokens, means, _in_scene(cuts), counts)
            best, parents = best_links(tokens, norms, chosen, cuts)
        with clock.stage("merge"):
            is_cut, is_chosen, links, partners = read_checked(
                features, self.needs, cuts, chosen, best, parents, squares=norms
            )
            lengths = cut_segments(is_cut)
            starts = np.cumsum([0, *lengths])[:-1]
            totals, picked = (np.add.reduceat(part, starts) for part in (per_frame, counts))
            trees = grow_trees(links, partners, is_chosen, lengths, totals, self.link_tau)
            roots = trees.is_root.sum(axis=1)
            wanted = plan_clusters(totals - picked, lengths, roots, exact=exact)
            official = self.tree_mean == "official"
            merged = cluster_trees(tokens.view(-1, dim), trees, wanted, official=official)
        parts = [unchanged(upload(np.flatnonzero(is_chosen), tokens.device)), merged]
        return in_order(features, parts, Drawing(tuple(lengths)))

    def _choose(
        self,
        features: VisualFeatures,
        tokens: Tensor,
        means: Tensor,
        in_scene: Tensor,
        counts: list[int],
    ) -> tuple[Tensor, Tensor]:
        """(T, L) bool, the chosen tokens; and the (T, L) lengths of all tokens.

        Args:
            features: The clip's features.
            tokens: (T, L, D), contiguous.
            means: (T, D) float32 mean tokens of the frames.
            in_scene: (T, T) float32 weights of the frames in the mean of every frame's scene.
            counts: Number of tokens to choose in every frame.
        """
        num_frames, tokens_per_frame, dim = tokens.shape
        products = torch.empty(num_frames, tokens_per_frame, tokens_per_frame, device=tokens.device)
        relevance = torch.ones(num_frames, tokens_per_frame, device=tokens.device)
        scene = in_scene @ means if self.selection == "v2" else None
        for frames in row_blocks(num_frames, tokens_per_frame * dim, tokens.device):
            block = tokens[frames].float()
            write_products(block, products[frames])
            if scene is not None:
                torch.bmm(block, scene[frames, :, None], out=relevance[frames, :, None])
        norms = products.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
        if self.selection == "attention":
            return pick_attended(features.signal("attention"), counts), norms
        inverse = norms.clamp(min=1e-12).reciprocal()
        products.mul_(inverse[:, None]).mul_(inverse[..., None])
        distances = products.neg_().add_(1.0).clamp_(min=0)
        distances.diagonal(dim1=1, dim2=2).zero_()
        weights = relevance
        if self.selection != "div":
            weights = weights * self._attention(features, in_scene)
        return pick_diverse(distances, weights, counts), norms

    def _attention(self, features: VisualFeatures, in_scene: Tensor) -> Tensor:
        """(T, L) float32 attention, minus sink scores per scene with `stop`."""
        attention = features.signal("attention").float()
        stop = stop_for(self.stop, features)
        if stop is None:
            return attention
        sinks = stop.sink_scores((in_scene @ attention)[:, None])
        if not stop.legacy:
            # In a scene of one frame, `stop` would keep the least attended tokens.
            sinks = sinks.masked_fill(in_scene.diagonal()[:, None] == 1, 0.0)
        return attention - stop.spatial * sinks


def _in_scene(cuts: Tensor) -> Tensor:
    """(T, T) float32 weights of the frames in every frame's scene mean, from (T - 1,) cuts."""
    scenes = F.pad(cuts.cumsum(dim=0), (1, 0))
    together = scenes[:, None] == scenes
    return together / together.sum(dim=1, keepdim=True)
