"""Layers with a recurrent state: chunks, packed sequences, and what methods inside may read."""

import pytest
from small_families import SMALL_FAMILIES

from tango_core.compressors import build_method
from tango_core.errors import InputError
from tango_core.models import load_language_model
from tango_core.models.base import LLMShape
from tango_core.models.language.packed_pass import (
    Segment,
    SequenceState,
    run_segments,
)

NAME = "qwen3.5-9b"
SMALL = SMALL_FAMILIES[NAME]
pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture(scope="module")
def model(small_paths):
    return load_language_model(NAME, small_paths[NAME])


@pytest.mark.parametrize(
    ("name", "options", "layer"),
    [
        ("fastv", {"retention": 0.3}, 1),
        ("pyramiddrop", {}, 8),
        ("holitom", {"retention": 0.1, "inner": {"name": "holitom-merge", "layer": 18}}, 17),
    ],
)
def test_methods_that_read_a_linear_layer_are_refused_in_one_line(name, options, layer):
    shape = {"num_layers": 32, "full_layers": range(3, 32, 4)}
    options = {"retention": 0.46875, **options}
    with pytest.raises(InputError) as error:
        build_method(name, **shape, **options)
    assert str(error.value) == (
        f"it reads the attention of layer {layer} of the language model, which is linear attention "
        "without weights or keys; set layer or stages so that it reads one of the layers 3, 7, 11, "
        "15, 19, 23, 27, 31, or use a method that acts before the language model"
    )
    build_method(name, num_layers=32, **options)


def test_a_pruner_that_was_not_checked_is_refused_where_it_reads(model):
    pruner = build_method("fastv", retention=0.6, num_layers=8, layer=3).pruner
    with pytest.raises(InputError, match="reads no layer 0 and no linear attention"):
        model.answer(SMALL.whole(2), [SMALL.asked], pruner=pruner)


def test_the_shape_knows_weights_and_states(model):
    text, config = model.engine.model.language_model, model.engine.layer_loop.config
    shape = LLMShape.of(config)
    assert shape == model.spec.llm
    assert shape.full_layers == SMALL.full_layers
    for index, layer in enumerate(text.layers):
        matrices = sum(one.numel() for one in layer.parameters() if one.ndim == 2)
        assert shape.weights_of(index) == matrices
    state = SequenceState(config, 200)
    prompt = model.layout.lay_out(SMALL.some(1, 1), SMALL.asked)
    run_segments(model.engine.layer_loop, [Segment(prompt.spans, prompt.positions, state)])
    layers = [state._recurrent.layers[layer] for layer in shape.linear.layers]
    held = [one for layer in layers for one in (layer.conv_states[0], layer.recurrent_states[0])]
    assert shape.state_bytes(4) == sum(one.numel() * one.element_size() for one in held)
