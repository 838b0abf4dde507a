"""What every in-LLM method promises, over retentions, precisions and shapes of prompts."""

from functools import partial

import pytest
import torch

from tango_core.compressors import METHODS, build_method, equivalent_retention
from tango_core.compressors.base import LayerPruner
from tango_core.compressors.contract import pruner_checks as checks
from tango_core.compressors.contract.prompts import NUM_LAYERS, PROMPTS, SyntheticPrompt
from tango_core.compressors.hybrid import INNER, checked_inner

STANDALONE = sorted(name for name, cls in METHODS.items() if issubclass(cls, LayerPruner))
RETENTIONS = [0.1, 0.2, 0.5, 0.95, 1.0]


def build(name, retention):
    if name in INNER:
        return checked_inner("tango", {"name": name, "retention": retention}, NUM_LAYERS)[1]
    return build_method(name, retention=retention).pruner


@pytest.mark.parametrize("name", [*STANDALONE, *sorted(INNER)])
@pytest.mark.parametrize("kind", PROMPTS)
class TestEveryPruner:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_text_stays_and_positions_ascend(self, name, kind, dtype):
        prompt = SyntheticPrompt(**PROMPTS[kind], dtype=dtype)
        for retention in RETENTIONS:
            checks.prunes_validly(partial(build, name, retention), prompt)

    def test_retention_one_keeps_all(self, name, kind):
        checks.retention_one_keeps_all(partial(build, name, 1.0), SyntheticPrompt(**PROMPTS[kind]))

    def test_same_input_gives_the_same_bytes(self, name, kind):
        prompt = SyntheticPrompt(**PROMPTS[kind])
        checks.same_input_gives_the_same_bytes(partial(build, name, 0.3), prompt)

    @pytest.mark.parametrize("retention", [0.3, 1.0])
    def test_writing_to_the_result_leaves_the_input_alone(self, name, kind, retention):
        prompt = SyntheticPrompt(**PROMPTS[kind])
        checks.returns_states_of_its_own(partial(build, name, retention), prompt)


@pytest.mark.parametrize("name", [*STANDALONE, *sorted(INNER)])
def test_it_can_be_pickled(name):
    checks.is_pickled_whole(partial(build, name, 0.3), SyntheticPrompt())


@pytest.mark.parametrize("retention", [0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.0])
class TestEveryStandaloneMethod:
    @pytest.mark.parametrize("name", STANDALONE)
    def test_nominal_shares_average_to_the_retention(self, name, retention):
        checks.layer_shares_average_to_the_retention(partial(build, name, retention), NUM_LAYERS)
        method = build_method(name, retention=retention)
        assert equivalent_retention(method) == pytest.approx(retention, abs=1e-11)

    @pytest.mark.parametrize("name", STANDALONE)
    def test_counts_average_to_the_retention(self, name, retention):
        prompt = SyntheticPrompt(grid=(8, 8, 8), dim=8)
        checks.counts_average_to_the_retention(partial(build, name, retention), prompt)

    # FrameFusion promises only the average: see test_framefusion.py.
    @pytest.mark.parametrize("name", [name for name in STANDALONE if name != "framefusion"])
    def test_counts_follow_the_nominal_shares(self, name, retention):
        # DART keeps its 4 visual pivots on top of what 8 pivots take, each rounded down.
        below, above = (8, 4) if name == "dart" else (1, 1)
        prompt = SyntheticPrompt(grid=(8, 8, 8), dim=8)
        make = partial(build, name, retention)
        checks.counts_follow_the_layer_shares(make, prompt, below, above)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fastv", {}),
        ("dart", {}),
        ("pyramiddrop", {"stages": [7, 14, 21]}),
        ("sparsevlm", {}),
        ("framefusion", {}),
    ],
)
def test_what_cannot_be_reached_names_retention_and_what_is_possible(name, options):
    message = r"retention 0\.02 cannot be reached with (layer|stages)=.* average to 0\.\d+; "
    with pytest.raises(ValueError, match=message) as error:
        build_method(name, retention=0.02, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", sorted(INNER))
def test_the_share_of_an_inner_step_is_its_own(name):
    assert build(name, 0.5).layer_shares(28) == (1.0,) * 18 + (0.5,) * 10
