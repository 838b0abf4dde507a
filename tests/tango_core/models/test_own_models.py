"""Models and families from outside the package, by name."""

import sys

import pytest
import torch
from llava_checkpoints import WIDTH, build_llava, save_llava

from jobs.config.recipe import parse_job
from jobs.run.build import build
from tango_core.errors import InputError
from tango_core.extensions import announced
from tango_core.models import (
    describe_model,
    harness_settings,
    load_encoder,
    load_language_model,
    model_entry,
)
from tango_core.types import CompressedVideo, Prompt

MODULE = """
from dataclasses import dataclass, field
from typing import Literal

from tango_core.models import ModelEntry
from tango_core.models.llava.family import LlavaFamily, LlavaOptions


@dataclass(frozen=True)
class Options(LlavaOptions):
    newlines: str = field(default="grid", init=False)
    pooling: Literal["average", "bilinear"] = "average"
    loud: bool = False
    level: int | None = None


FAMILY = LlavaFamily(Options, harness={"lmms_eval": {"sampling": "middles"}})
my_model = ModelEntry("models_of_mine", None, 4)
"""
NAME = "models_of_mine:my_model"


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "models_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(save_llava(build_llava(), tmp_path_factory.mktemp("checkpoint")))


def test_a_model_of_one_s_own_is_described_and_loaded(path, frames):
    spec = describe_model(NAME, path, loud=True)
    assert (spec.name, spec.frames.num_frames, spec.grid) == (NAME, 4, (3, 3))
    assert (spec.options.pooling, spec.options.loud, spec.options.level) == ("average", True, None)
    assert spec.identity()["pooling"] == "average"
    assert load_encoder(spec).encode(frames).grid == (3, 3)
    video = CompressedVideo(
        torch.randn(9, WIDTH), torch.arange(9), (1, 3, 3), torch.zeros(1, dtype=torch.float64)
    )
    (answer,) = load_language_model(spec).answer(video, [Prompt("", "w1")], max_new_tokens=2)
    assert answer.visual_tokens == 9 + 3
    assert harness_settings(NAME, "lmms_eval_llava_vid") == {"sampling": "middles"}
    assert harness_settings(NAME, "vlmevalkit") == {}


def test_tokens_of_an_edited_family_are_other_tokens(path, tmp_path, monkeypatch):
    (tmp_path / "towers_of_mine.py").write_text("SCALE = 1\n")
    file = tmp_path / "models_of_mine.py"
    file.write_text(f"import towers_of_mine\n{MODULE}")
    digests = []
    for edited in (None, file, tmp_path / "towers_of_mine.py"):
        if edited:
            edited.write_text(f"{edited.read_text()}# edited\n")
        for name in ("models_of_mine", "towers_of_mine"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        digests += [describe_model(NAME, path).identity()["source_digest"] for _ in range(2)]
    assert digests[::2] == digests[1::2]
    assert len(set(digests)) == 3


def test_a_recipe_names_it_with_its_own_options(path):
    recipe = {
        "benchmark": {"name": "shapes"},
        "model": {"name": NAME, "path": path, "loud": True, "level": None},
        "method": {"name": "full"},
    }
    job = parse_job(recipe, "recipe")
    assert job.model.options == {"loud": True}
    assert build(job).model.options.loud
    wrong = parse_job({**recipe, "model": {**recipe["model"], "lout": 1}}, "recipe")
    message = r"model.lout is no setting of model .*; leave it out, or did you mean model.loud\?"
    with pytest.raises(InputError, match=message):
        build(wrong)


def test_a_package_announces_its_models_under_a_plain_name(path, tmp_path):
    metadata = tmp_path / "models_of_mine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: models-of-mine\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(f"[tango_video.models]\nmine = {NAME}\n")
    announced.cache_clear()
    try:
        assert model_entry("mine") is model_entry(NAME)
        assert describe_model("mine", path).name == "mine"
    finally:
        announced.cache_clear()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (NAME, {}, r"model models_of_mine:my_model has no checkpoint of its own; set model\.path"),
        (NAME, {"path": "x", "loud": 1}, r"model\.loud must be true or false, got 1"),
        (NAME, {"path": "x", "level": 1.5}, r"model\.level must be a whole number, got 1\.5"),
        (NAME, {"path": "x", "level": True}, r"model\.level must be a whole number, got True"),
        ("models_of_mine:nothing", {}, r"model\.name 'models_of_mine:nothing' cannot be loaded"),
    ],
)
def test_mistakes_end_in_one_line(name, options, words):
    with pytest.raises(ValueError, match=words) as error:
        describe_model(name, **options)
    assert "\n" not in str(error.value)
