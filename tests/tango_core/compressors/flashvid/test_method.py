"""FlashVID's choices by the definition, its edge cases, and what it never does."""

import pytest
import torch

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.flashvid.trees import pick_diverse


def _compress(features, retention=0.25, **options):
    method = build_method("flashvid", retention=retention, **{"inner": None, **options})
    return method.compressor.compress(features)


def test_weights_below_zero_never_choose_a_token_twice():
    """Fault 3: the release returns such tokens again and again."""
    features = make_clip(num_frames=4, grid=(5, 5), kind="noise")
    lowered = _compress(features, stop={"spatial": 10.0}, num_segments=1, tau=-1.0)
    assert lowered.num_kept >= round(0.25 * 100)


def test_a_scene_of_one_frame_never_holds_a_token_twice():
    """Fault 2: the release clusters its chosen tokens once more."""
    features = make_clip(num_frames=1, grid=(6, 6))
    ours = _compress(features, retention=0.5)
    chosen = _compress(features, retention=0.5, salient_ratio=1.0, budget="official")
    assert ours.num_kept == 18
    assert len(set(chosen.indices.tolist())) == 18


def test_a_frozen_clip_still_has_its_scenes():
    """Fault 4: the release spends a cut twice where frames are equal."""
    features = make_clip(num_frames=12, grid=(5, 5), kind="static")
    for number in (4, 8):
        starts = _compress(features, retention=0.1, num_segments=number).indices // 25
        assert len(starts) >= number


@pytest.mark.parametrize("selection", ["v2", "v1", "div", "attention"])
@pytest.mark.parametrize("budget", ["official", "exact"])
def test_every_selection_meets_its_budget(selection, budget):
    features = make_clip(num_frames=7, grid=(6, 6), kind="noise")
    ours = _compress(features, retention=0.2, selection=selection, budget=budget)
    asked = round(0.2 * 7 * 36)
    if budget == "exact":
        assert ours.num_kept == asked
    assert asked <= ours.num_kept <= asked + 2 * 7


def _naive_choice(distances, weights, count):
    """Farthest points under d[i, j] * w[j], by the definition."""
    matrix = distances * weights
    chosen = [int(matrix.sort(dim=0).values[1].argmax())]
    while len(chosen) < count:
        gaps = matrix[chosen].min(dim=0).values
        gaps[chosen] = -torch.inf
        chosen.append(int(gaps.argmax()))
    return sorted(chosen)


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_diverse_choice_is_the_definition_for_weights_of_any_sign(sign):
    generator = torch.Generator().manual_seed(1)
    units = torch.nn.functional.normalize(torch.randn(3, 20, 8, generator=generator), dim=-1)
    distances = 1 - units @ units.mT
    distances.diagonal(dim1=1, dim2=2).zero_()
    weights = torch.rand(3, 20, generator=generator)
    weights = weights * sign if sign else weights - 0.5
    chosen = pick_diverse(distances, weights, [6, 5, 1])
    for frame, count in enumerate([6, 5, 1]):
        expected = _naive_choice(distances[frame], weights[frame], count)
        assert chosen[frame].nonzero()[:, 0].tolist() == expected
