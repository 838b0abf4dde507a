"""Checkpoints: what is refused in one line, what a digest covers, what is local, tied weights."""

import json
import shutil

import huggingface_hub.constants
import pytest
import torch
from llava_checkpoints import build_llava, save_llava
from safetensors.torch import load_file, save_file

from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.models.checkpoints.directory import (
    is_here,
    raise_if_damaged,
    resolve_checkpoint,
    weights_digest,
)

NAME = "llava-onevision-7b"
QUANTISED = {"quantization_config": {"quant_method": "awq"}}


def refused(kind, words, path, load=describe_model):
    with pytest.raises(kind, match=words) as error:
        load(NAME, str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("files", "kind", "words"),
    [
        ({}, FileNotFoundError, "holds no config.json"),
        ({"config.json": '{"model_type": \n'}, ValueError, r"file config\.json: not JSON"),
        (
            {"config.json": '{"model_type": "qwen2_vl"}'},
            ValueError,
            "holds a 'qwen2_vl' model, .*model.name",
        ),
        ({"config.json": json.dumps(QUANTISED)}, ValueError, r"is quantised \(awq\).*dequantised"),
        (
            {"config.json": json.dumps({"text_config": QUANTISED})},
            ValueError,
            r"is quantised \(awq\).*dequantised",
        ),
        ({"adapter_config.json": "{}"}, ValueError, "holds an adapter; merge it"),
    ],
)
def test_a_directory_that_is_no_checkpoint_is_named(tmp_path, files, kind, words):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    refused(kind, rf"model\.path {tmp_path}.*{words}", tmp_path)


def test_weights_of_another_format_and_a_missing_shard_are_named(tmp_path, stock):
    stock.config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    refused(FileNotFoundError, r"holds no \*\.safetensors", tmp_path)
    save_llava(stock, tmp_path, "sharded")
    raise_if_damaged(str(tmp_path))
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    refused(FileNotFoundError, shard.name, tmp_path)


def test_a_path_that_is_not_there_is_refused(monkeypatch):
    refused(FileNotFoundError, r"model\.path /no/such/directory", "/no/such/directory")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    words = "model.path tango-video/no-such-checkpoint.*tango model get"
    refused(FileNotFoundError, words, "tango-video/no-such-checkpoint")


def test_digest_follows_content_and_not_location(tmp_path):
    first = save_llava(build_llava(seed=1), tmp_path / "a")
    same = save_llava(build_llava(seed=1), tmp_path / "b")
    other = save_llava(build_llava(seed=2), tmp_path / "c")
    digests = [weights_digest(resolve_checkpoint(str(path))) for path in (first, same, other)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("offset", [0, -1])
def test_digest_of_a_large_file_sees_its_ends(tmp_path, offset):
    (tmp_path / "config.json").write_text('{"model_type": "llava"}')
    weights = tmp_path / "model.safetensors"
    size = 70 * 2**20
    with weights.open("wb") as stream:
        stream.truncate(size)
    before = weights_digest(resolve_checkpoint(str(tmp_path)))
    with weights.open("r+b") as stream:
        stream.seek(offset % size)
        stream.write(b"x")
    assert weights_digest(resolve_checkpoint(str(tmp_path))) != before


def test_a_hub_checkpoint_is_here_when_all_its_files_are_in_the_cache(
    monkeypatch, tmp_path, checkpoint
):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert is_here(str(tmp_path))
    assert is_here("/no/such/directory")
    assert not is_here("tango-video/small")
    folder = tmp_path / "models--tango-video--small"
    snapshot = folder / "snapshots" / ("0" * 40)
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    shutil.copytree(checkpoint, snapshot)
    assert is_here("tango-video/small")
    assert not is_here("tango-video/small", "other-branch")
    (snapshot / "model.safetensors").unlink()
    assert not is_here("tango-video/small")


def edit(path, lost=(), **changes):
    """Change the tensors of a checkpoint of one file."""
    (file,) = path.glob("*.safetensors")
    tensors = {name: value for name, value in load_file(file).items() if name not in lost}
    save_file(tensors | changes, file, metadata={"format": "pt"})


@pytest.mark.parametrize("content", [b"<html>not found</html>", b""])
def test_a_damaged_file_is_named(tmp_path, stock, content):
    (save_llava(stock, tmp_path) / "model.safetensors").write_bytes(content)
    refused(ValueError, r"model\.safetensors is damaged", tmp_path, load_encoder)


def test_an_index_that_is_wrong_is_named(tmp_path, stock):
    file = save_llava(stock, tmp_path, "sharded") / "model.safetensors.index.json"
    located = json.loads(file.read_text())["weight_map"]
    tensor = next(name for name in located if "vision_tower" in name)
    other = next(name for name in sorted(located.values()) if name != located[tensor])
    file.write_text(json.dumps({"weight_map": located | {tensor: other}}))
    refused(ValueError, rf"{other} is damaged .*{tensor}", tmp_path, load_encoder)


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

    def described_and_loaded(name, path):
        return load(describe_model(name, path), device=device)

    refused(ValueError, words, tmp_path, described_and_loaded)
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
