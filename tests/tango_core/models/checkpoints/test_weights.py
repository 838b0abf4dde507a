import json
import shutil

import pytest
import torch
from llava_checkpoints import build_llava, save_llava
from safetensors.torch import load_file, save_file

from tango_core.models import describe_model, load_encoder, load_language_model

NAME = "llava-onevision-7b"


def module_of(half):
    """The loaded module of an encoder or a language model."""
    return half.engine.model if hasattr(half, "engine") else half.model


def test_a_damaged_file_is_named(tmp_path, stock):
    weights = save_llava(stock, tmp_path) / "model.safetensors"
    content = weights.read_bytes()
    for damaged in (content[: len(content) // 2], b"<html>not found</html>", b""):
        weights.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged") as error:
            load_encoder(NAME, str(tmp_path))
        assert "\n" not in str(error.value)


def test_an_index_that_is_wrong_is_named(tmp_path, stock):
    file = save_llava(stock, tmp_path, "sharded") / "model.safetensors.index.json"
    located = json.loads(file.read_text())["weight_map"]
    tensor = next(name for name in located if "vision_tower" in name)
    other = next(name for name in sorted(located.values()) if name != located[tensor])
    for content, words in (
        ({"weight_map": located | {tensor: other}}, f"{other} does not hold {tensor}"),
        ({"metadata": {}}, "has no weight_map"),
        ({"weight_map": {tensor: None}}, "has no weight_map"),
    ):
        file.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=words) as error:
            load_encoder(NAME, str(tmp_path))
        assert "\n" not in str(error.value)


def test_a_missing_tensor_is_named(tmp_path, stock):
    tensors = load_file(save_llava(stock, tmp_path, "new") / "model.safetensors")
    del tensors["model.language_model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    load_encoder(NAME, str(tmp_path))
    with pytest.raises(ValueError, match=r"lacks language_model\.layers\.1\.mlp\.up_proj") as error:
        load_language_model(NAME, str(tmp_path))
    assert "\n" not in str(error.value)


def test_unexpected_tensors_are_named(tmp_path, stock):
    tensors = load_file(save_llava(stock, tmp_path, "new") / "model.safetensors")
    extra = {f"model.adapter.{index}.weight": torch.zeros(1) for index in range(5)}
    save_file(tensors | extra, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"unknown model\.adapter\.0\.weight.* and 2 more"):
        load_encoder(NAME, str(tmp_path))


def test_a_wrong_shape_is_named(tmp_path, stock):
    tensors = load_file(save_llava(stock, tmp_path, "new") / "model.safetensors")
    tensors["model.image_newline"] = torch.zeros(7)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"image_newline has shape \(7,\)"):
        load_language_model(NAME, str(tmp_path))


@pytest.mark.parametrize("load", [load_encoder, load_language_model])
def test_on_the_meta_device_a_checkpoint_is_compared_and_not_read(checkpoint, tmp_path, load):
    half = load(describe_model("llava-onevision-7b", str(checkpoint)), device="meta")
    weights = list(module_of(half).parameters())
    assert weights
    assert all(weight.is_meta for weight in weights)
    broken = shutil.copytree(checkpoint, tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    save_file(
        {name: value[:1].clone() for name, value in tensors.items()}, broken / "model.safetensors"
    )
    spec = describe_model("llava-onevision-7b", str(broken))
    with pytest.raises(ValueError, match="has shape"):
        load(spec, device="meta")


def _edit_tensors(path, **changes):
    (file,) = path.glob("*.safetensors")
    save_file(load_file(file) | changes, file, metadata={"format": "pt"})


@pytest.mark.parametrize("differs", [True, False])
def test_a_stored_head_of_a_tied_checkpoint_is_used_where_it_differs(tmp_path, caplog, differs):
    """As transformers 5.23 does; adapters merged with `modules_to_save` write such checkpoints."""
    stock = build_llava(tied=True)
    path = save_llava(stock, tmp_path, "saved")
    head = stock.get_input_embeddings().weight.detach().clone() + (0.5 if differs else 0.0)
    _edit_tensors(path, **{"lm_head.weight": head})
    model = load_language_model(NAME, str(path)).engine.model
    embedding = model.language_model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, head)
    assert (model.lm_head.weight.data_ptr() == embedding.data_ptr()) is not differs
    assert ("stored, different values" in caplog.text) is differs
    theirs = type(stock).from_pretrained(path)
    assert torch.equal(theirs.lm_head.weight, head)


@pytest.mark.parametrize("load", [describe_model, load_encoder, load_language_model])
class TestCheckpointsThatAreNotPlainWeights:
    @pytest.mark.parametrize("method", ["awq", "bitsandbytes"])
    @pytest.mark.parametrize("part", [None, "text_config"])
    def test_quantised_weights_are_refused_by_name(self, tmp_path, load, method, part):
        path = save_llava(build_llava(), tmp_path)
        content = json.loads((path / "config.json").read_text())
        (content[part] if part else content)["quantization_config"] = {"quant_method": method}
        (path / "config.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=rf"is quantised \({method}, .*dequantised") as error:
            load(NAME, str(path))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("complete", [True, False])
    def test_an_adapter_is_refused_with_its_base(self, tmp_path, load, complete):
        path = save_llava(build_llava(), tmp_path)
        if not complete:
            (path / "config.json").unlink()
        adapter = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
        (path / "adapter_config.json").write_text(json.dumps(adapter))
        with pytest.raises(ValueError, match=r"adapter \(LORA\) for org/base; merge it") as error:
            load(NAME, str(path))
        assert "\n" not in str(error.value)
