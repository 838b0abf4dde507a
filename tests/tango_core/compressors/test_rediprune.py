"""ReDiPrune against vectors of its release."""

from dataclasses import replace

import official
import pytest
import torch

from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.query_aware.rediprune import ReDiPrune
from tango_core.types import VisualFeatures


@pytest.mark.parametrize("clip", ["noise4_6x6", "one1_7x7", "scene6_5x8", "static3_6x6"])
def test_same_choice_as_the_release(clip):
    arrays, configs = official.load3(f"rediprune_{clip}.npz")
    tower, question = torch.from_numpy(arrays["tower"]), torch.from_numpy(arrays["question"])
    features = VisualFeatures(
        tokens=torch.zeros(*tower.shape[:2], question.shape[1]),
        grid=tuple(arrays["grid"].tolist()),
        timestamps=torch.arange(len(tower), dtype=torch.float64),
        question=question,
        tower_tokens=tower,
    )
    for name, facts in configs.items():
        kept = ReDiPrune(facts["r"], alpha=facts["alpha"]).compress(features).indices
        assert facts["stable_fp"], name
        assert kept.tolist() == arrays[f"{name}/kept"].tolist(), name


def test_projected_tokens_are_compared_in_the_space_of_the_question():
    features = make_clip(num_frames=3, grid=(4, 4), kind="noise")
    features.tokens[:, 6] = features.question[0]
    asked = replace(features, question=features.question[:1], tower_tokens=None)
    kept = ReDiPrune(1 / 16, space="projected").compress(asked).indices
    assert kept.tolist() == [6, 22, 38]
