"""SemVID against vectors of its release, and what budgets and roles promise."""

import official
import pytest
import torch

from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.query_aware.semvid import SemVID

CLIPS = ("noise1_7x7_6", "noise2_4x4_1", "noise5_6x6_5", "opposite9_5x5_3", "scene4_6x6_150")
CLIPS += ("scene8_6x6_7", "static6_5x8_9")
OPTIONS = {
    "obj": "object_share",
    "mmr": "mmr_lambda",
    "mn": "min_tokens_per_frame",
    "fw": "frame_weight",
    "smooth": "smooth_window",
    "beta": "motion_query_weight",
    "topk": "top_segments",
}


@pytest.mark.parametrize("clip", CLIPS)
def test_same_choice_as_the_release(clip):
    arrays, configs = official.load3(f"semvid_{clip}.npz")
    features = official.features(arrays, question="question")
    for name, facts in configs.items():
        options = {ours: facts[theirs] for theirs, ours in OPTIONS.items()}
        kept = SemVID(facts["ratio"], **options).compress(features).indices
        assert facts["stable_fp"], name
        assert kept.tolist() == arrays[f"{name}/kept"].tolist(), name


def _count(features, retention, **options):
    video = SemVID(retention, **options).compress(features)
    return torch.bincount(video.indices // features.tokens.shape[1], minlength=8).tolist()


def test_budget_is_met_and_every_frame_keeps_its_context():
    features = make_clip(num_frames=8, grid=(5, 5))
    assert sum(_count(features, 0.3)) == 60
    assert min(_count(features, 0.3, min_tokens_per_frame=4)) >= 4
    assert sum(_count(features, 0.02, min_tokens_per_frame=2)) == 16
