"""Checkpoints in every layout: each half alone, fused matrices cut, what is refused."""

import itertools
import json

import pytest
import torch
from internvl_checkpoints import NAME, build_internvl, save_internvl
from safetensors.torch import load_file, save_file

from tango_core.models import (
    describe_model,
    harness_settings,
    load_encoder,
    load_language_model,
)


def loaded(path):
    """Tensors of both halves under the names of the stock model."""
    halves = (load_encoder(NAME, path).model, load_language_model(NAME, path).engine.model)
    tensors = {name: value for half in halves for name, value in half.state_dict().items()}
    return {
        name if name.startswith("lm_head") else f"model.{name}": value
        for name, value in tensors.items()
    }


@pytest.mark.parametrize("layout", ["saved", "chat"])
def test_a_tower_with_normalised_queries_and_an_older_language_model(tmp_path, layout):
    stock = build_internvl(text="qwen2", qk_norm=True)
    path = str(save_internvl(stock, tmp_path, layout))
    found, expected = loaded(path), stock.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_fused_matrix_is_cut_without_a_copy(tmp_path, internvl):
    """On a CPU the parts are views of the file's pages, one behind the other."""
    path = str(save_internvl(internvl, tmp_path, "chat"))
    attention = load_encoder(NAME, path).model.vision_tower.encoder.layer[0].attention
    parts = [getattr(attention, f"{kind}_proj").weight for kind in "qkv"]
    places = [part.data_ptr() for part in parts]
    assert [after - before for before, after in itertools.pairwise(places)] == [
        part.nbytes for part in parts[:2]
    ]


def test_a_fused_matrix_of_another_size_names_itself(tmp_path, internvl):
    path = save_internvl(internvl, tmp_path, "chat")
    tensors = load_file(path / "model.safetensors")
    name = "vision_model.encoder.layers.0.attn.qkv.weight"
    save_file({**tensors, name: tensors[name][:-1].clone()}, path / "model.safetensors")
    with pytest.raises(ValueError, match=r"attn\.qkv\.weight has shape \(95, 32\).*\(96, 32\)"):
        load_encoder(NAME, str(path))


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"model_type": "llava"}, "holds a 'llava' model, not 'internvl' .* or 'internvl_chat"),
            ({"select_layer": -4}, "select_layer of config.json is -4, but only -1 is"),
            ({"ps_version": "v1"}, "ps_version of config.json is 'v1', but only 'v2'"),
            ({"downsample_ratio": 0.25}, "downsample_ratio of config.json is 0.25, but only 0.5"),
            ({"vision_feature_layer": -2}, "vision_feature_layer of config.json is -2, but"),
            ({"llm_config": {"model_type": "gpt2"}}, "is 'gpt2', but only 'qwen3' or 'qwen2'"),
        ],
    )
    def test_variants_that_are_not_computed(self, tmp_path, internvl, changes, words):
        layout = "saved" if "vision_feature_layer" in changes else "chat"
        path = save_internvl(internvl, tmp_path, layout)
        content = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**content, **changes}))
        with pytest.raises(ValueError, match=words) as refused:
            describe_model(NAME, str(path))
        assert "\n" not in str(refused.value)


def test_frames_and_labels_of_lmms_eval():
    expected = {"sampling": "middles", "frame_label": "lmms_eval"}
    assert harness_settings(NAME, "lmms_eval") == expected
