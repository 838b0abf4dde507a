"""A stage is declared once; what the rest of the system knows of it must come from there."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import get_args

import pytest
from fresh_python import printed_by

from pipeline.clips import FAILED, STAGES, Pools
from pipeline.resources.pools import ActorPool
from pipeline.settings import Settings
from tango_core.types import Status


def test_every_status_of_an_answer_is_a_failure_of_a_stage_or_no_failure():
    assert set(get_args(Status)) == {"ok", "unparsed", *FAILED}


def test_every_stage_has_its_pool_and_every_pool_its_stage():
    assert [field.name for field in fields(Pools)] == [stage.name for stage in STAGES]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_code_can_be_imported_and_fits_its_pool(stage):
    for code in (stage.load(), stage.load(profile=True)):
        holds_a_model = isinstance(code, type)
        assert holds_a_model == isinstance(getattr(Pools(), stage.name), ActorPool)
    if stage.profile_code is None:
        assert stage.load(profile=True) is stage.load()
    else:
        assert issubclass(stage.load(profile=True), stage.load())


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_arguments_are_those_that_the_code_takes(stage):
    """By name, with stand-ins for what they are taken from."""

    @dataclass
    class Anything:
        device: str = "auto"  # of a model, which each stage may change

        def __getattr__(self, name):
            return Anything()

    taken = inspect.signature(stage.load()).parameters
    assert set(stage.arguments(Anything(), Settings())) == set(taken) - {"row", "clip"}


def test_reading_the_declarations_loads_no_library_that_is_slow():
    code = (
        "import sys, pipeline.clips\n"
        "print(sorted({'torch', 'ray', 'transformers', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"


@pytest.mark.parametrize(
    ("load", "of_the_other"),
    [
        ("load_encoder", ("tango_core.models.language.engine", "modeling_qwen2")),
        (
            "load_language_model",
            ("tango_core.models.towers.encoder", "modeling_siglip", "llava.siglip"),
        ),
    ],
    ids=["compress", "answer"],
)
def test_an_actor_loads_no_code_of_the_other_half(load, of_the_other):
    stage = {"load_encoder": "compress", "load_language_model": "answer"}[load]
    loaded = printed_by(
        f"import sys, pipeline.stages.{stage}\n"
        f"from tango_core.models import describe_model, {load}\n"
        f"{load}(describe_model('tiny'))\n"
        "print([name for name in sys.modules if name.startswith(('tango_core', 'transformers'))])"
    )
    assert "tango_core.models.llava.family" in loaded
    assert not [name for name in of_the_other if f"{name}'" in loaded]
