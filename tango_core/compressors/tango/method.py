"""Tango: keep diverse salient tokens of every frame; merge the rest by similarity and position.

Paper: "Tango: Taming Visual Signals for Efficient Video Large Language Models", Section 3. A clip
is cut into segments; spatial positions that stay unchanged in a segment are averaged over its
frames; in every frame the most salient tokens are selected, at most one per cluster of similar
tokens; the remaining tokens are clustered on ST-RoPE features and merged.

Differences from the release, all of which change results: merged vectors stay with their own
cluster (the release writes them to other anchors; `legacy_writeback`), no random noise is added to
densities, inputs are not modified, sums are float32, and exact copies of a token never cause one
position to be kept twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tango_core.combination import Combination, Drawing
from tango_core.compressors.hybrid import OuterStep
from tango_core.compressors.options import Cosine, Count, Factor, Ratio, Share
from tango_core.compressors.tango.budgets import TokenGroup, plan_groups
from tango_core.compressors.tango.selection import ClipTensors, select_tokens
from tango_core.latency import NO_TIMER, LatencyProfile
from tango_core.ops.finite import read_checked
from tango_core.ops.segmentation import (
    adjacent_products,
    cosines,
    cut_segments,
    dyseg_cuts,
    static_cells,
    static_segments,
)
from tango_core.ops.st_rope import rotation_tables
from tango_core.ops.transfer import upload
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class Tango(OuterStep):
    """Diverse salient tokens, plus spatio-temporally merged ones.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1]; with `inner`, its average over the
            layers.
        tau: Cosine above which a position is unchanged for the segmentation, in [-1, 1];
            `None` is 0.65 for a retention up to 0.1 and 0.8 above, as published.
        static_tau: Cosine above which a position is static within a segment, in [-1, 1]. The
            paper uses `tau` for both; the release always uses 0.8 here.
        segmentation: `"static"` maximises repeated tokens (HoliTom); `"dyseg"` cuts at scene
            changes (FastVID).
        context_ratio: Share of the budget for merged tokens, in [0, 1]; 0 drops all tokens
            that are not salient.
        diverse: Select salient tokens from different clusters; `False` is plain top-k.
        st_rope: Cluster on rotated features; `False` uses the unrotated unit features.
        timestamps: Rotate by seconds; `False` rotates by frame number.
        alpha: Candidates per salient token, at least 1.
        num_neighbors: Number of nearest neighbours of the density estimate.
        beta: Minimum weight of an anchor in its merged token, in [0, 1]; 0 is closest to the
            paper's plain average.
        base_time: Base of the wavelengths in time.
        base_space: Base of the wavelengths in rows and columns.
        score: Signal that ranks tokens, `"saliency"` (p-attn) or `"attention"` (attn).
        sinks: `"zero"` sets the score of sink positions to 0, as published, so they rank last;
            `"exclude"` never selects them for saliency; `"ignore"` treats them like other
            positions. They are merged like other tokens in all cases.
        legacy_writeback: Write merged vectors to the same (wrong) anchors as the release.
        budget: `"official"` rounds for every frame and every static segment, which keeps too many
            tokens of small grids and too few of clips with identical frames; `"exact"` keeps
            round(retention * T * L) tokens, unless averaging static positions leaves fewer.
        inner: In-LLM step that follows, `{"name": "fastv-merge", "layer": 18, "retention": 0.5}`;
            `build_method` adds `num_layers` (28 if absent), from which `outer_retention` derives
            the share kept here.
    """

    checks_in_plan: ClassVar[bool] = True

    retention: Share = 0.1
    tau: Cosine | None = None
    static_tau: Cosine = 0.8
    segmentation: Literal["static", "dyseg"] = "static"
    context_ratio: Ratio = 0.4
    diverse: bool = True
    st_rope: bool = True
    timestamps: bool = True
    alpha: Factor = 1.5
    num_neighbors: Count = 7
    beta: Ratio = 0.6
    base_time: Factor = 1e4
    base_space: Factor = 1e3
    score: Literal["saliency", "attention"] = "saliency"
    sinks: Literal["zero", "exclude", "ignore"] = "zero"
    legacy_writeback: bool = False
    budget: Literal["official", "exact"] = "official"
    inner: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def needs(self) -> frozenset[str]:
        """The score, and frame embeddings with DySeg."""
        return frozenset(
            {self.score, *(("frame_embeddings",) if self.segmentation == "dyseg" else ())}
        )

    def _plan(self, features: VisualFeatures) -> Combination:
        """All steps, without a clock."""
        return self._plan_in_steps(features, NO_TIMER)

    def _plan_in_steps(self, features: VisualFeatures, clock: LatencyProfile) -> Combination:
        """Compare frames, set budgets on the host, select; the device is read once."""
        num_frames, _, dim = features.tokens.shape
        with clock.stage("segment"):
            tokens = features.tokens.contiguous()
            squares, products = adjacent_products(tokens)
            scores, excluded = self._scores(features)
            groups, drawing = self._budgets(features, squares, products)
        with clock.stage("select"):
            times = features.timestamps if self.timestamps else torch.arange(num_frames)
            tables = None
            if self.st_rope:
                tables = rotation_tables(
                    dim, times.to(tokens.device), features.grid, self.base_time, self.base_space
                )
            clip = ClipTensors(tokens, squares.sqrt(), scores, tables, excluded)
            return replace(select_tokens(features, clip, groups, self), drawing=drawing)

    def _scores(self, features: VisualFeatures) -> tuple[Tensor, Tensor | None]:
        """(T, L) float32 scores after the `sinks` rule; (L,) bool, excluded positions or `None`."""
        scores = features.signal(self.score).float()
        if self.sinks == "ignore" or not features.sinks:
            return scores, None
        is_sink = upload(np.isin(np.arange(scores.shape[1]), features.sinks), scores.device)
        if self.sinks == "exclude":
            return scores, is_sink
        return scores.masked_fill(is_sink, 0.0), None

    def _budgets(
        self, features: VisualFeatures, squares: Tensor, products: Tensor
    ) -> tuple[list[TokenGroup], Drawing]:
        """Compute segments and budgets from one small transfer of thresholded similarities."""
        similarity = cosines(squares.sqrt(), products)
        cuts = torch.zeros(len(similarity), dtype=torch.bool, device=similarity.device)
        if features.frame_embeddings is not None and self.segmentation == "dyseg":
            cuts = dyseg_cuts(features.frame_embeddings, self.resolved_tau)
        unchanged, static = similarity > self.resolved_tau, similarity > self.static_tau
        is_still, static_pairs, is_cut = read_checked(
            features, self.needs, unchanged, static, cuts, squares=squares
        )
        lengths = (
            cut_segments(is_cut) if self.segmentation == "dyseg" else static_segments(is_still)
        )
        never_salient = frozenset(features.sinks if self.sinks == "exclude" else ())
        cells = static_cells(static_pairs, lengths)
        drawing = Drawing(tuple(lengths), torch.from_numpy(cells))
        return plan_groups(lengths, static_pairs, never_salient, self), drawing
