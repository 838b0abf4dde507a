"""Directories and hub ids: what is refused in one line, what a digest covers, what is local."""

import json
import shutil

import huggingface_hub.constants
import pytest
from llava_checkpoints import build_llava, save_llava

from tango_core.models import describe_model
from tango_core.models.checkpoints.directory import (
    is_here,
    raise_if_damaged,
    resolve_checkpoint,
    weights_digest,
)

NAME = "llava-onevision-7b"
QUANTISED = {"quantization_config": {"quant_method": "awq"}}


def refused(kind, words, path):
    with pytest.raises(kind, match=words) as error:
        describe_model(NAME, str(path))
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


def test_a_path_that_is_not_there_is_refused():
    refused(FileNotFoundError, r"model\.path /no/such/directory", "/no/such/directory")


def test_a_hub_checkpoint_that_cannot_be_reached_is_one_line(monkeypatch):
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


def message(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_missing_shard_is_named(tmp_path, stock):
    save_llava(stock, tmp_path, "sharded")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(FileNotFoundError) as error:
        describe_model("llava-onevision-7b", str(tmp_path))
    assert shard.name in message(error)
