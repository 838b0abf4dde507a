"""Checkpoints with random weights: files as on the hub, read by our loaders and stock ones."""

import filecmp
import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import (
    InternVLForConditionalGeneration,
    LlavaOnevisionForConditionalGeneration,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
)

from tango_core.compressors import build_method
from tango_core.models import load_encoder, load_language_model
from tango_core.models.random_weights import GEOMETRIES, weights, write_random_checkpoint
from tango_core.models.random_weights.weights import plan_tensors
from tango_core.types import Prompt, VideoFrames

SHRINK = 16
# Some names of the published checkpoints.
NAMES = {
    "llava-onevision-0.5b": {
        "image_newline",
        "language_model.model.embed_tokens.weight",
        "language_model.model.layers.0.self_attn.q_proj.bias",
        "multi_modal_projector.linear_1.weight",
        "vision_tower.vision_model.embeddings.patch_embedding.weight",
        "vision_tower.vision_model.encoder.layers.1.mlp.fc2.bias",
        "vision_tower.vision_model.post_layernorm.weight",
    },
    "llava-video-7b": {
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.image_newline",
        "model.layers.0.mlp.down_proj.weight",
        "model.mm_projector.0.weight",
        "model.mm_projector.2.bias",
        "model.norm.weight",
        "model.vision_tower.vision_tower.vision_model.embeddings.position_embedding.weight",
    },
    "qwen2.5-vl-7b": {
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "visual.blocks.0.attn.qkv.bias",
        "visual.merger.ln_q.weight",
        "visual.merger.mlp.2.weight",
        "visual.patch_embed.proj.weight",
    },
    "qwen3-vl-8b": {
        "lm_head.weight",
        "model.language_model.embed_tokens.weight",
        "model.language_model.layers.0.self_attn.q_norm.weight",
        "model.visual.blocks.0.mlp.linear_fc1.bias",
        "model.visual.deepstack_merger_list.0.norm.weight",
        "model.visual.merger.linear_fc2.weight",
        "model.visual.pos_embed.weight",
    },
}
NAMES["internvl3.5-8b"] = {
    "language_model.lm_head.weight",
    "language_model.model.embed_tokens.weight",
    "language_model.model.layers.0.self_attn.q_norm.weight",
    "mlp1.0.weight",
    "mlp1.3.bias",
    "vision_model.embeddings.class_embedding",
    "vision_model.embeddings.patch_embedding.weight",
    "vision_model.embeddings.position_embedding",
    "vision_model.encoder.layers.0.attn.proj.weight",
    "vision_model.encoder.layers.0.attn.qkv.bias",
    "vision_model.encoder.layers.0.ls1",
    "vision_model.encoder.layers.0.norm2.weight",
}
NAMES["internvl3.5-8b-hf"] = {
    "lm_head.weight",
    "model.language_model.layers.0.self_attn.k_norm.weight",
    "model.multi_modal_projector.linear_1.weight",
    "model.vision_tower.embeddings.cls_token",
    "model.vision_tower.encoder.layer.0.attention.q_proj.bias",
    "model.vision_tower.encoder.layer.0.lambda_2",
}
NAMES["llava-onevision-7b-lmms-lab"] = NAMES["llava-video-7b"]
NAMES["llava-onevision-7b"] = NAMES["llava-onevision-0.5b"] | {"language_model.lm_head.weight"}
NAMES["qwen2.5-vl-3b"] = NAMES["qwen2.5-vl-7b"] - {"lm_head.weight"}
NAMES["qwen3-vl-2b"] = NAMES["qwen3-vl-4b"] = NAMES["qwen3-vl-8b"] - {"lm_head.weight"}


@pytest.fixture(scope="module", params=sorted(GEOMETRIES))
def written(request, tmp_path_factory):
    """Name and directory of a small checkpoint in several files."""
    path = tmp_path_factory.mktemp(request.param)
    write_random_checkpoint(request.param, path, shrink=SHRINK, shard_bytes=1_500_000)
    return request.param, path


def test_both_halves_load_and_answer_a_prompt(written):
    name, path = written
    model = GEOMETRIES[name].model
    encoder, language_model = load_encoder(model, str(path)), load_language_model(model, str(path))
    side = encoder.spec.frames.multiple
    size = encoder.spec.frames.size or (4 * side, 6 * side)
    pixels = np.random.default_rng(0).integers(0, 256, (4, *size, 3), dtype=np.uint8)
    features = encoder.encode(VideoFrames(pixels, np.arange(4.0)), frozenset({"attention", "keys"}))
    assert torch.isfinite(features.tokens).all()
    assert float(features.tokens.std()) > 0.05
    method = build_method("tango", retention=0.1, score="attention")
    video = method.compressor.compress(features)
    (reply,) = language_model.answer(video, [Prompt("", "What happens?\nA. Nothing\nAnswer: ")])
    assert reply.status == "ok"
    assert reply.text
    assert "the weights are random" in encoder.spec.note


def test_tensors_are_named_and_split_into_files_as_on_the_hub(written):
    name, path = written
    index = json.loads((path / "model.safetensors.index.json").read_text())
    files = sorted({*index["weight_map"].values()})
    assert len(files) > 1
    assert files == sorted(file.name for file in path.glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert set(index["weight_map"]) >= NAMES[name]
    assert ("lm_head" in " ".join(index["weight_map"])) == ("lm_head" in " ".join(NAMES[name]))
    total = 0
    for file in files:
        with safe_open(path / file, framework="pt") as tensors:
            for tensor in tensors.keys():  # noqa: SIM118
                assert index["weight_map"][tensor] == file
                value = tensors.get_tensor(tensor)
                assert value.dtype == torch.bfloat16
                total += value.numel() * 2
    assert total == index["metadata"]["total_size"]


@pytest.mark.parametrize(
    "name", ["llava-onevision-0.5b", "qwen2.5-vl-7b", "qwen3-vl-2b", "internvl3.5-8b-hf"]
)
def test_the_stock_loader_finds_every_tensor(tmp_path, name):
    write_random_checkpoint(name, tmp_path, shrink=SHRINK)
    stock = {
        "internvl-hf": InternVLForConditionalGeneration,
        "llava-hf": LlavaOnevisionForConditionalGeneration,
        "qwen": Qwen2_5_VLForConditionalGeneration,
        "qwen3": Qwen3VLForConditionalGeneration,
    }[GEOMETRIES[name].layout]
    _, found = stock.from_pretrained(tmp_path, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert not found["mismatched_keys"]


# Billions of parameters as the hub shows them, and the `total_size` of Qwen's indices.
@pytest.mark.parametrize(
    ("name", "billions", "num_bytes"),
    [
        ("internvl3.5-8b", 8.53, None),  # 304.01 M of the tower in it, on the model's page
        ("internvl3.5-8b-hf", 8.53, None),
        ("llava-onevision-0.5b", 0.89, None),
        ("llava-onevision-7b", 8.03, None),
        ("llava-onevision-7b-lmms-lab", 8.03, None),
        ("llava-video-7b", 8.03, None),
        ("qwen2.5-vl-3b", 3.75, 7_509_245_952),
        ("qwen2.5-vl-7b", 8.29, 16_584_333_312),
        ("qwen3-vl-2b", 2.13, None),
        ("qwen3-vl-4b", 4.44, 8_875_631_616),
        ("qwen3-vl-8b", 8.77, 17_534_247_392),
    ],
)
def test_the_geometry_is_as_large_as_published(tmp_path, name, billions, num_bytes):
    geometry = GEOMETRIES[name]
    (tmp_path / "config.json").write_text(json.dumps(dict(geometry.config)))
    count = sum(one.count for one in plan_tensors(tmp_path, geometry.layout))
    assert round(count / 1e9, 2) == billions
    assert num_bytes in (None, 2 * count)


def test_equal_seeds_give_equal_files_however_they_are_drawn(tmp_path, monkeypatch):
    name = "qwen2.5-vl-3b"
    write_random_checkpoint(name, tmp_path / "one", shrink=SHRINK, seed=3)
    monkeypatch.setattr(weights, "_PIECE", 1000)
    write_random_checkpoint(name, tmp_path / "two", shrink=SHRINK, seed=3)
    write_random_checkpoint(name, tmp_path / "other", shrink=SHRINK, seed=4)
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    _, different, missing = filecmp.cmpfiles(
        tmp_path / "one", tmp_path / "two", files, shallow=False
    )
    assert (different, missing) == ([], [])
    file = "model-00001-of-00001.safetensors"
    assert not filecmp.cmp(tmp_path / "one" / file, tmp_path / "other" / file, shallow=False)


def test_files_of_an_earlier_checkpoint_do_not_stay(tmp_path):
    write_random_checkpoint("qwen2.5-vl-3b", tmp_path, shrink=SHRINK, shard_bytes=1_000_000)
    write_random_checkpoint("qwen2.5-vl-3b", tmp_path, shrink=SHRINK)
    assert [file.name for file in tmp_path.glob("*.safetensors")] == [
        "model-00001-of-00001.safetensors"
    ]


def test_a_real_tokenizer_is_taken_as_it_is(tmp_path):
    write_random_checkpoint("qwen2.5-vl-3b", tmp_path / "from", shrink=SHRINK)
    given = tmp_path / "from" / "tokenizer.json"
    given.write_text(given.read_text().replace("#300", "#real"))
    write_random_checkpoint(
        "qwen2.5-vl-3b", tmp_path / "to", shrink=SHRINK, tokenizer=tmp_path / "from"
    )
    assert (tmp_path / "to" / "tokenizer.json").read_text() == given.read_text()
    with pytest.raises(FileNotFoundError, match=r"holds no tokenizer\.json; give the directory"):
        write_random_checkpoint("qwen2.5-vl-3b", tmp_path / "no", tokenizer=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"geometry": "llava-13b"}, "unknown geometry 'llava-13b'; choose one of: llava-onev"),
        ({"shrink": 0}, "shrink must be 1 or larger, got 0"),
        ({"seed": -1}, "seed must be 0 or larger, got -1"),
        ({"shard_bytes": 0}, "shard_bytes must be 1 or larger, got 0"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        write_random_checkpoint(
            **{"geometry": "qwen2.5-vl-3b", "directory": tmp_path / "new", **options}
        )
    assert not (tmp_path / "new").exists()
