import re
import shutil

import huggingface_hub.constants
import pytest
from llava_checkpoints import build_llava, save_llava
from safetensors.torch import load_file, save_file

from tango_core.models import describe_model
from tango_core.models.checkpoints.directory import (
    is_here,
    raise_if_damaged,
    resolve_checkpoint,
    weights_digest,
)


def message(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (None, FileNotFoundError, "holds no config.json"),
        ('{"model_type": \n', ValueError, r"config\.json: not JSON"),
        ('{"model_type": "qwen2_vl"}', ValueError, "holds a 'qwen2_vl' model, .*model.name"),
        ("stock", FileNotFoundError, r"holds no \*\.safetensors"),
    ],
)
def test_a_directory_that_is_no_checkpoint_is_named(tmp_path, stock, content, kind, words):
    if content == "stock":
        stock.config.save_pretrained(tmp_path)
        (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    elif content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(kind, match=rf"model\.path {tmp_path}.*{words}") as error:
        describe_model("llava-onevision-7b", str(tmp_path))
    message(error)


def test_a_path_that_is_not_there_and_a_revision_of_a_directory_are_refused(checkpoint):
    with pytest.raises(FileNotFoundError, match=r"model\.path /no/such/directory") as error:
        describe_model("llava-onevision-7b", "/no/such/directory")
    message(error)
    with pytest.raises(ValueError, match=r"model\.revision 'main'") as error:
        describe_model("llava-onevision-7b", str(checkpoint), revision="main")
    message(error)


def test_a_missing_shard_is_named(tmp_path, stock):
    save_llava(stock, tmp_path, "sharded")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(FileNotFoundError) as error:
        describe_model("llava-onevision-7b", str(tmp_path))
    assert shard.name in message(error)


def test_a_hub_checkpoint_that_cannot_be_reached_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError) as error:
        describe_model("llava-onevision-7b", "tango-video/no-such-checkpoint")
    assert "model.path tango-video/no-such-checkpoint" in message(error)
    assert "tango model get" in message(error)


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


def test_a_sharded_checkpoint_with_all_its_tensors_is_not_damaged(tmp_path, stock):
    save_llava(stock, tmp_path, "sharded")
    raise_if_damaged(str(tmp_path))


def test_a_shard_that_lacks_a_tensor_of_the_index_is_named(tmp_path, stock):
    save_llava(stock, tmp_path, "sharded")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    tensors = load_file(shard)
    lost = sorted(tensors)[0]
    save_file({name: value for name, value in tensors.items() if name != lost}, shard)
    with pytest.raises(ValueError, match=f"lacks {re.escape(lost)}") as error:
        raise_if_damaged(str(tmp_path))
    assert shard.name in message(error)
    assert "copy it again" in message(error)


def test_a_hub_checkpoint_is_here_when_all_its_files_are_in_the_cache(
    monkeypatch, tmp_path, checkpoint
):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
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


def test_what_is_no_hub_id_is_never_to_be_downloaded(tmp_path):
    assert is_here(str(tmp_path))
    assert is_here("/no/such/directory")
