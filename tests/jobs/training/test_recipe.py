"""Lengths and learning rates of the stages."""

from __future__ import annotations

import pytest

from jobs.training.stages import FULL, MINUTES, Stage, learning_rate, recipe_for


def test_less_time_shortens_every_stage():
    half = recipe_for(MINUTES / 2)
    assert half.language.steps == round(FULL.language.steps / 2)
    assert recipe_for(10 * MINUTES) == FULL
    with pytest.raises(ValueError, match="--minutes"):
        recipe_for(0)


def test_rates_warm_up_and_fall():
    stage = Stage("any", 100, 1.0, warmup=10)
    rates = [learning_rate(stage, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.03, abs=0.01)
