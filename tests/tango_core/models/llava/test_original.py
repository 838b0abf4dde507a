"""Checkpoints in the layout of LLaVA's authors: both families, every way the files can be."""

import json

import pytest
import torch
from llava_originals import build_original, save_original

from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.llava.onevision import FAMILY

FAMILIES = ["llava-video-7b", "llava-onevision-7b"]
NAME = FAMILIES[0]
TOWER = "model.vision_tower.vision_tower.vision_model."


@pytest.fixture(scope="module")
def original():
    return build_original()


@pytest.fixture(scope="module")
def directory(original, tmp_path_factory):
    return save_original(original, tmp_path_factory.mktemp("original"))


def module_of(half):
    """The loaded module of an encoder or a language model."""
    return half.engine.model if hasattr(half, "engine") else half.model


def loaded(half) -> dict[str, torch.Tensor]:
    """Tensors of a half under their published names."""
    renamed = {}
    for name, value in module_of(half).state_dict().items():
        name = name.replace("vision_tower.", TOWER)
        name = name.replace("multi_modal_projector.linear_1.", "model.mm_projector.0.")
        name = name.replace("multi_modal_projector.linear_2.", "model.mm_projector.2.")
        name = name.replace("language_model.", "model.")
        renamed["model.image_newline" if name == "image_newline" else name] = value
    return renamed


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_loaded_weights_are_the_published_ones(tmp_path, name, shards, tied):
    original = build_original(tied=tied)
    path = str(save_original(original, tmp_path, shards=shards))
    assert len(list(tmp_path.glob("*.safetensors"))) == shards
    vision, language = (loaded(load(name, path)) for load in (load_encoder, load_language_model))
    expected = original.tensors()
    if tied:
        expected["lm_head.weight"] = expected["model.embed_tokens.weight"]
    assert vision.keys() | language.keys() == expected.keys()
    assert all(torch.equal((vision | language)[key], expected[key]) for key in expected)


@pytest.mark.parametrize("model_type", ["llava", "llava_qwen"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_architecture_decides_and_not_the_model_type(
    tmp_path, original, directory, name, model_type
):
    """`lmms-lab/llava-onevision-qwen2-7b-ov` says `llava`, which transformers uses for another one.

    Public logs show transformers' warning: "You are using a model of type llava to instantiate a
    model of type llava_qwen".
    """
    path = str(save_original(original, tmp_path, model_type=model_type))
    model, expected = (load_language_model(name, str(it)) for it in (path, directory))
    assert type(model.layout.tokenizer) is type(expected.layout.tokenizer)
    assert loaded(model).keys() == loaded(expected).keys()
    assert all(torch.equal(value, loaded(expected)[key]) for key, value in loaded(model).items())
    assert describe_model(name, path).llm == describe_model(name, str(directory)).llm


def test_a_published_config_means_siglip_so400m_without_last_block_and_head(tmp_path, original):
    """The hub id is known: nothing is looked up, and the tests run without a hub."""
    content = original.config() | {"mm_vision_tower": "google/siglip-so400m-patch14-384"}
    for tower in ("google/siglip-so400m-patch14-384", "/disk/of/authors/siglip-so400m-patch14-384"):
        (tmp_path / "config.json").write_text(json.dumps(content | {"mm_vision_tower": tower}))
        config = FAMILY.read_config(resolve_checkpoint(str(tmp_path)))
        vision = config.vision_config
        assert (vision.hidden_size, vision.intermediate_size) == (1152, 4304)
        assert (vision.num_hidden_layers, vision.num_attention_heads) == (26, 16)
        assert (vision.image_size, vision.patch_size, vision.vision_use_head) == (384, 14, False)
        assert (config.vision_feature_layer, config.vision_feature_select_strategy) == (-1, "full")


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        (
            {"model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"]},
            ValueError,
            r"holds a 'llava' model, not 'llava_onevision' \(llava-hf\) or LlavaQwenForCausalLM",
        ),
        ({"mm_projector_type": "linear"}, ValueError, "of config.json is 'linear'"),
        ({"mm_resampler_type": "perceiver"}, ValueError, "of config.json is 'perceiver'"),
        (
            {"mm_vision_tower": "/no/such/tower"},
            FileNotFoundError,
            "mm_vision_tower /no/such/tower",
        ),
    ],
)
def test_parts_of_another_kind_are_refused(tmp_path, original, changes, kind, words):
    path = save_original(original, tmp_path, **changes)
    with pytest.raises(kind, match=words) as error:
        describe_model(NAME, str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("position", "name", "noted"),
    [
        ("grid", "llava-video-7b", False),
        ("grid", "llava-onevision-7b", True),
        ("one_token", "llava-video-7b", True),
        ("one_token", "llava-onevision-7b", False),
        (..., "llava-video-7b", False),
    ],
)
def test_a_checkpoint_of_the_other_family_is_noted(tmp_path, original, position, name, noted):
    path = save_original(original, tmp_path, mm_newline_position=position)
    assert ("check model.name" in describe_model(name, str(path)).note) == noted
