"""FastV, against the official release and by hand."""

import pytest
import torch
from layer_contexts import recorded, recorded_context

from tango_core.compressors.in_llm.fastv import FastV


def averaged(local, layer=2, num_layers=28):
    return (layer + (num_layers - layer) * local) / num_layers


@pytest.mark.parametrize("local", [0.5, 0.25])
def test_positions_are_those_of_the_release(local):
    context = recorded_context()
    pruned = FastV(retention=averaged(local)).prune(context)
    assert pruned.keep.tolist() == recorded()[f"tango_dagger_r{local}/keep_positions"].tolist()
    assert torch.equal(pruned.hidden, context.hidden[pruned.keep])


@pytest.mark.parametrize(
    ("retention", "local"), [(0.10, 0.0308), (0.15, 0.0846), (0.20, 0.1385), (1.0, 1.0)]
)
def test_layer_2_of_28_turns_the_average_into_the_local_share(retention, local):
    shares = FastV(retention=retention).layer_shares(28)
    assert shares[:2] == (1.0, 1.0)
    assert shares[2:] == pytest.approx([local] * 26, abs=5e-5)
    assert sum(shares) / 28 == pytest.approx(retention, abs=1e-11)


def test_an_average_that_the_first_layers_use_up_is_an_error_that_says_what_is_possible():
    with pytest.raises(ValueError, match=r"retention 0\.1 .*layer=3.*0\.107143") as error:
        FastV(retention=0.1, layer=3).layers(28)
    assert "\n" not in str(error.value)


def test_a_layer_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match="4 layers"):
        FastV(retention=0.9, layer=4).layers(4)


def test_the_first_layer_has_no_attention_before_it():
    with pytest.raises(ValueError, match="layer must be 1 or larger"):
        FastV(retention=0.5, layer=0)


def test_equal_scores_keep_the_first_tokens():
    uniform = torch.full((2, 60, 60), 1 / 60)
    context = recorded_context(attention=lambda rows: uniform[:, rows])
    pruned = FastV(retention=averaged(10 / 41)).prune(context)
    assert pruned.keep.tolist() == [*range(17), *range(48, 60)]


def test_only_the_last_row_of_attention_is_asked_for():
    asked = []
    whole = recorded_context().attention

    def attention(rows):
        asked.append(rows.tolist())
        return whole(rows)

    FastV(retention=0.5).prune(recorded_context(attention=attention))
    assert asked == [[59]]
