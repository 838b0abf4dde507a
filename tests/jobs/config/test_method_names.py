"""What is read from the source of the methods is what importing them gives."""

import pytest

from jobs.config.method_names import shipped_methods
from jobs.config.methods import raise_if_unknown_methods, raise_if_wrong_methods
from tango_core.compressors import METHODS, build_method, method_class
from tango_core.compressors.options import option_names


def test_the_names_are_those_of_the_table():
    assert list(shipped_methods()) == list(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_options_are_the_fields(name):
    found = shipped_methods()[name]
    assert found.names == option_names(method_class(name))
    if found.required:
        with pytest.raises(ValueError, match=f"needs {', '.join(found.required)};"):
            build_method(name)
    else:
        build_method(name)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "tngo", "retention": 0.1},
        {"name": "tango", "retenton": 0.1},
        {"name": "uniform"},
        {"name": "tango", "retention": 1.5},
        {"name": "tango", "retention": 0},
        {"name": "fastv", "retention": -1, "layer": 2},
        {"name": "full", "retention": 1, "num_layers": 4},
    ],
)
def test_a_mistake_is_told_in_the_same_words_with_and_without_torch(options):
    said = []
    for check in (raise_if_unknown_methods, raise_if_wrong_methods):
        with pytest.raises(ValueError, match="method") as caught:
            check([("a cell", options)])
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_every_value_that_a_method_refuses_is_told_with_its_name():
    with pytest.raises(ValueError, match=r"^method 'dart r=0.2 layer=-1': layer must be"):
        raise_if_wrong_methods(
            [("dart r=0.2 layer=-1", {"name": "dart", "retention": 0.2, "layer": -1})]
        )


def test_framefusion_names_the_layer_that_was_written():
    with pytest.raises(ValueError, match="cannot be reached with layer=1 nor any other"):
        build_method("framefusion", retention=0.03, layer=1)
