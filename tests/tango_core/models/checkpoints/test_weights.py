"""Weights that do not fit, and a stored output projection of a tied checkpoint."""

import json

import pytest
import torch
from llava_checkpoints import build_llava, save_llava
from safetensors.torch import load_file, save_file

from tango_core.models import describe_model, load_encoder, load_language_model

NAME = "llava-onevision-7b"


def refused(load, path, words, **options):
    with pytest.raises(ValueError, match=words) as error:
        load(describe_model(NAME, str(path)), **options)
    assert "\n" not in str(error.value)


def edit(path, lost=(), **changes):
    """Change the tensors of a checkpoint of one file."""
    (file,) = path.glob("*.safetensors")
    tensors = {name: value for name, value in load_file(file).items() if name not in lost}
    save_file(tensors | changes, file, metadata={"format": "pt"})


@pytest.mark.parametrize("content", [b"<html>not found</html>", b""])
def test_a_damaged_file_is_named(tmp_path, stock, content):
    (save_llava(stock, tmp_path) / "model.safetensors").write_bytes(content)
    refused(load_encoder, tmp_path, r"model\.safetensors is damaged")


def test_an_index_that_is_wrong_is_named(tmp_path, stock):
    file = save_llava(stock, tmp_path, "sharded") / "model.safetensors.index.json"
    located = json.loads(file.read_text())["weight_map"]
    tensor = next(name for name in located if "vision_tower" in name)
    other = next(name for name in sorted(located.values()) if name != located[tensor])
    file.write_text(json.dumps({"weight_map": located | {tensor: other}}))
    refused(load_encoder, tmp_path, rf"{other} is damaged .*{tensor}")


LAYER = "model.language_model.layers.1.mlp.up_proj.weight"
EXTRA = {f"model.adapter.{index}.weight": torch.zeros(1) for index in range(5)}


@pytest.mark.parametrize(
    ("load", "lost", "changes", "words"),
    [
        (load_language_model, [LAYER], {}, r"lacks language_model\.layers\.1\.mlp\.up_proj"),
        (load_encoder, [], EXTRA, r"unknown model\.adapter\.0\.weight.* and 2 more"),
        (
            load_language_model,
            [],
            {"model.image_newline": torch.zeros(7)},
            r"image_newline has shape \(7,\)",
        ),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_that_do_not_fit_are_named(tmp_path, stock, load, lost, changes, words, device):
    edit(save_llava(stock, tmp_path, "new"), lost, **changes)
    refused(load, tmp_path, words, device=device)
    other = load_encoder if load is load_language_model else load_language_model
    if not EXTRA.keys() <= changes.keys():
        half = other(describe_model(NAME, str(tmp_path)), device=device)
        weights = getattr(half, "engine", half).model.parameters()
        assert {weight.is_meta for weight in weights} == {device == "meta"}


@pytest.mark.parametrize("stored", [True, False])
def test_a_stored_head_of_a_tied_checkpoint_is_used(tmp_path, stored):
    """As transformers 5.23 does; adapters merged with `modules_to_save` write such checkpoints."""
    stock = build_llava(tied=True)
    path = save_llava(stock, tmp_path, "saved")
    head = stock.get_input_embeddings().weight.detach().clone() + (0.5 if stored else 0.0)
    if stored:
        edit(path, **{"lm_head.weight": head})
    model = load_language_model(NAME, str(path)).engine.model
    embedding = model.language_model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, head)
    assert (model.lm_head.weight.data_ptr() == embedding.data_ptr()) is not stored
    assert torch.equal(type(stock).from_pretrained(path).lm_head.weight, head)


def test_a_missing_tensor_is_named(tmp_path, stock):
    tensors = load_file(save_llava(stock, tmp_path, "new") / "model.safetensors")
    del tensors["model.language_model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    load_encoder(NAME, str(tmp_path))
    with pytest.raises(ValueError, match=r"lacks language_model\.layers\.1\.mlp\.up_proj") as error:
        load_language_model(NAME, str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_wrong_shape_is_named(tmp_path, stock):
    tensors = load_file(save_llava(stock, tmp_path, "new") / "model.safetensors")
    tensors["model.image_newline"] = torch.zeros(7)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"image_newline has shape \(7,\)"):
        load_language_model(NAME, str(tmp_path))


def test_unexpected_tensors_are_named(tmp_path, stock):
    tensors = load_file(save_llava(stock, tmp_path, "new") / "model.safetensors")
    extra = {f"model.adapter.{index}.weight": torch.zeros(1) for index in range(5)}
    save_file(tensors | extra, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"unknown model\.adapter\.0\.weight.* and 2 more"):
        load_encoder(NAME, str(tmp_path))


@pytest.mark.parametrize("load", [describe_model, load_encoder, load_language_model])
class TestCheckpointsThatAreNotPlainWeights:
    @pytest.mark.parametrize("method", ["awq", "bitsandbytes"])
    @pytest.mark.parametrize("part", [None, "text_config"])
    def test_quantised_weights_are_refused_by_name(self, tmp_path, load, method, part):
        path = save_llava(build_llava(), tmp_path)
        content = json.loads((path / "config.json").read_text())
        (content[part] if part else content)["quantization_config"] = {"quant_method": method}
        (path / "config.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=rf"is quantised \({method}\), .*dequantised") as error:
            load(NAME, str(path))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("complete", [True, False])
    def test_an_adapter_is_refused(self, tmp_path, load, complete):
        path = save_llava(build_llava(), tmp_path)
        if not complete:
            (path / "config.json").unlink()
        adapter = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
        (path / "adapter_config.json").write_text(json.dumps(adapter))
        with pytest.raises(ValueError, match=r"holds an adapter; merge it") as error:
            load(NAME, str(path))
        assert "\n" not in str(error.value)
