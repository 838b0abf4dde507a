"""Which samples and questions are used at which step."""

from __future__ import annotations

import numpy as np
import pytest

from jobs.training.curriculum import CurriculumDataset, QuestionSampler
from jobs.training.recipe import JOINT_PHASES, LANGUAGE_PHASES
from jobs.training.samples import TYPE_NAMES, synthetic_sample
from tango_core.benchmarks.shapes.world import clip_at


@pytest.mark.parametrize("phases", [LANGUAGE_PHASES, JOINT_PHASES], ids=["language", "joint"])
def test_samples_are_the_training_split_and_depend_on_the_step_alone(phases, monkeypatch):
    splits = []
    real = clip_at

    def spy(split, *args, **kwargs):
        splits.append(split)
        return real(split, *args, **kwargs)

    monkeypatch.setattr("jobs.training.samples.clip_at", spy)
    first = CurriculumDataset(phases, synthetic_sample, 0, 100)[3]
    second = CurriculumDataset(phases, synthetic_sample, 0, 100)[3]
    assert first.num_frames == second.num_frames
    for one, other in zip(first.samples, second.samples, strict=True):
        assert np.array_equal(one.visual, other.visual)
    assert set(splits) == {"train"}


def test_types_with_a_low_accuracy_are_asked_more_often():
    sample = synthetic_sample(0, 7, 8)
    kinds = {TYPE_NAMES[one.kind] for one in sample.questions}
    unknown = sorted(kinds)[0]
    state = {"known": {kind: 0.0 if kind == unknown else 1.0 for kind in kinds}}
    sampler = QuestionSampler(state, TYPE_NAMES)
    rng = np.random.default_rng(0)
    counts = dict.fromkeys(kinds, 0)
    for _ in range(300):
        for one in sampler.choose(sample, 1, rng):
            counts[TYPE_NAMES[one.kind]] += 1
    assert counts[unknown] > 2 * max(n for kind, n in counts.items() if kind != unknown)
