"""Checkpoints of published sizes with random weights, and the config.json of the hub.

    python -m tests.gpu.random_weights llava-onevision-7b /data/random-7b

Memory, load time and latency do not depend on the values of weights, so they are measured without a
download. `configs/` holds the content of every config.json, written down from public sources: pages
and logs of the hub's models, and the conversion scripts of transformers. Fields that no source
shows are left out.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from tango_core.models import model_entry
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.family import CheckpointFamily

_CONFIGS = Path(__file__).parent / "configs"
# Id of the first special token of Qwen2's tokenizer, the same in every model here but Qwen3.5.
FIRST_SPECIAL = 151643
_PIECE = 2**22  # numbers drawn at once: 16 MB of float32
# SigLIP so400m/14 at 384 pixels without its last block and its pooling head, as LLaVA stores it.
_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "image_size": 384,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 26,
    "patch_size": 14,
    "vision_use_head": False,
}


@dataclass(frozen=True)
class Geometry:
    """A published model without its weights.

    Attributes:
        model: Entry of `MODELS` that reads it.
        stock: Class of transformers.
        config: Content of its config.json.
        special_tokens: Of its tokenizer, from `first_special` on.
        first_special: Id of the first of them.
    """

    model: str
    stock: str
    config: Mapping[str, Any]
    special_tokens: tuple[str, ...]
    first_special: int = FIRST_SPECIAL

    @property
    def text(self) -> Any:
        """The part of the configuration that describes the language model."""
        return self.config.get("text_config") or self.config.get("llm_config") or self.config

    def shrunk(self, factor: int) -> Geometry:
        """The same architecture with about 1 / `factor` of its layers, widths and vocabulary.

        Heads keep their width and frames their size.
        """
        if factor == 1:
            return self
        made = replace(self, config=copy.deepcopy(dict(self.config)))
        config: Any = made.config
        text = made.text
        _shrink(text, factor)
        text["vocab_size"] = -(-text["vocab_size"] // factor // 64) * 64
        first = text["vocab_size"] - 64
        for place in (config, text):
            for name, value in place.items():
                if isinstance(value, int) and value >= self.first_special:
                    place[name] = first + value - self.first_special
        # An original LLaVA config.json only names its tower, of which there is one size.
        vision = config.setdefault("vision_config", dict(_SIGLIP))
        _shrink(vision, factor)
        if "out_hidden_size" in vision:
            vision["out_hidden_size"] = text["hidden_size"]
        if "fullatt_block_indexes" in vision:
            vision["fullatt_block_indexes"] = [vision["depth"] // 2 - 1, vision["depth"] - 1]
        if "deepstack_visual_indexes" in vision:  # at least one block after the last row
            count = min(3, vision["depth"] - 1, text["num_hidden_layers"])
            vision["deepstack_visual_indexes"] = list(range(count))
        return replace(made, first_special=first)

    def tensors(self, directory: Path) -> Iterator[tuple[str, tuple[int, ...], float]]:
        """Name, shape and spread of every tensor; a spread of 0 stands for ones.

        Values are spread so that a layer keeps the size of its input: 1 / sqrt(fan-in) for
        matrices, a tenth for biases, ones for the factors of normalisations.

        Args:
            directory: Holds config.json.
        """
        family = model_entry(self.model).load_family()
        assert isinstance(family, CheckpointFamily)
        config = family.read_config(resolve_checkpoint(str(directory)))
        with torch.device("meta"):
            model = getattr(transformers, self.stock)(config)
        norms = {
            f"{place}.weight"
            for place, part in model.named_modules()
            if "Norm" in type(part).__name__
        }
        for name, value in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            shape = tuple(value.shape)
            # Of a convolution all but the first dimension are summed over.
            spread = 0.1 if value.ndim == 1 else 1 / math.sqrt(math.prod(shape[1:]))
            yield name, shape, 0.0 if name in norms else spread


def _shrink(part: dict[str, Any], factor: int) -> None:
    """Divide layers, heads and inner width of one half; the width follows from the heads."""
    layers, heads = (
        ("depth", "num_heads") if "depth" in part else ("num_hidden_layers", "num_attention_heads")
    )
    head_dim = part["hidden_size"] // part[heads]
    # One layer with full attention is left of a model that has most of them linear.
    part[layers] = max(part.get("full_attention_interval", 2), part[layers] // factor)
    for name in ("linear_num_key_heads", "linear_num_value_heads"):
        if name in part:
            part[name] = max(1, part[name] // factor)
    groups = 1
    if "num_key_value_heads" in part:
        groups = part["num_key_value_heads"] = max(1, part["num_key_value_heads"] // factor)
    part[heads] = max(groups, part[heads] // factor // groups * groups)
    part["hidden_size"] = head_dim * part[heads]
    part["intermediate_size"] = max(8, part["intermediate_size"] // factor)


def _read(name: str) -> Any:
    """A file of `configs/`."""
    return json.loads((_CONFIGS / f"{name}.json").read_text(encoding="utf-8"))


# Of Qwen3's tokenizer behind those of Qwen2, then InternVL's own, up to id 151677.
_SPECIAL: tuple[str, ...] = tuple(_read("special_tokens"))
_QWEN_SPECIAL = _SPECIAL[: _SPECIAL.index("<|video_pad|>") + 1]
_LLAVA_SPECIAL = (*_SPECIAL[:3], "<image>", "<video>")
# Of InternVL3.5 the sizes differ in the language model alone.
_QWEN3_SIZES = {
    "internvl3.5-2b-hf": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
    },
    "internvl3.5-4b-hf": {"hidden_size": 2560, "intermediate_size": 9728},
}
GEOMETRIES = {
    name: Geometry(model, f"{stock}ForConditionalGeneration", _read(name), special, *first)
    for name, model, stock, special, *first in (
        ("llava-onevision-0.5b", "llava-onevision-7b", "LlavaOnevision", _LLAVA_SPECIAL),
        ("llava-onevision-7b", "llava-onevision-7b", "LlavaOnevision", _LLAVA_SPECIAL),
        ("llava-onevision-7b-lmms-lab", "llava-onevision-7b", "LlavaOnevision", _LLAVA_SPECIAL),
        ("llava-video-7b", "llava-video-7b", "LlavaOnevision", _LLAVA_SPECIAL),
        ("qwen2.5-vl-3b", "qwen2.5-vl-7b", "Qwen2_5_VL", _QWEN_SPECIAL),
        ("qwen2.5-vl-7b", "qwen2.5-vl-7b", "Qwen2_5_VL", _QWEN_SPECIAL),
        ("qwen3-vl-2b", "qwen3-vl-8b", "Qwen3VL", _QWEN_SPECIAL),
        ("qwen3-vl-4b", "qwen3-vl-8b", "Qwen3VL", _QWEN_SPECIAL),
        ("qwen3-vl-8b", "qwen3-vl-8b", "Qwen3VL", _QWEN_SPECIAL),
        ("qwen3.5-9b", "qwen3.5-9b", "Qwen3_5", _QWEN_SPECIAL, 248044),
        ("internvl3.5-8b", "internvl3.5-8b", "InternVL", _SPECIAL),
        ("internvl3.5-8b-hf", "internvl3.5-8b", "InternVL", _SPECIAL),
    )
}


for _name, _size in _QWEN3_SIZES.items():
    _large = GEOMETRIES["internvl3.5-8b-hf"]
    GEOMETRIES[_name] = replace(
        _large, config={**_large.config, "text_config": {**_large.text, **_size}}
    )


def write_random_checkpoint(
    name: str, directory: Path, *, shrink: int = 1, seed: int | None = 0
) -> int:
    """Write a checkpoint with random weights in bfloat16; needs little memory for any size.

    Args:
        name: Key of `GEOMETRIES`.
        directory: Created if needed.
        shrink: Factor by which layers, widths and vocabulary are smaller than published.
        seed: Equal seeds give equal files; `None` for zeros, which take no space on a disk, for
            callers that draw the weights after they are loaded.

    Returns:
        Bytes of all weights.
    """
    geometry = GEOMETRIES[name].shrunk(shrink)
    directory.mkdir(parents=True, exist_ok=True)
    scale = "" if shrink == 1 else f", {shrink} times smaller"
    files: dict[str, Any] = {
        "config": dict(geometry.config),
        # <|im_end|>, <|endoftext|>
        "generation_config": {"eos_token_id": [geometry.first_special + at for at in (2, 0)]},
        "tango": {
            "note": f"the weights are random ({name}{scale}, seed {seed}): the answers mean nothing"
        },
    }
    for file, content in files.items():
        (directory / f"{file}.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    _write_tokenizer(geometry, directory)
    tensors = list(geometry.tensors(directory))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor, shape, _ in tensors:
        start, end = end, end + 2 * math.prod(shape)
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    with (directory / "model.safetensors").open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        if seed is None:
            out.truncate(out.tell() + end)
            return end
        for tensor, shape, spread in tensors:
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {tensor}".encode()))
            for at in range(0, math.prod(shape), _PIECE):
                drawn = torch.ones(min(_PIECE, math.prod(shape) - at))
                if spread:
                    drawn.normal_(std=spread, generator=generator)
                out.write(drawn.bfloat16().view(torch.int16).numpy().tobytes())
    return end


# Prompts of video benchmarks have about these words, and so about as many tokens as with the
# published tokenizer; any other text is cut into shorter pieces.
_TEXT = (
    "system\nYou are a helpful assistant.",
    "user\nThese are the frames of a video. Select the best answer to the following "
    "multiple-choice question based on the video. Respond with only the letter (A, B, C, or D) "
    "of the correct option.",
    "Question: What does the person in the video do? Which of the following is true? "
    "How many times, when, where, why and in which order does it happen?",
    "A. The\nB. A\nC. In\nD. It\nAnswer: The best answer is:\nassistant\n",
    "The video lasts for seconds, and frames are uniformly sampled from it. These frames are "
    "located at Please answer the following questions related to this video.",
)


def _write_tokenizer(geometry: Geometry, directory: Path) -> None:
    """Write a byte-level tokenizer that cuts every text and has a text for every id."""
    first, special = geometry.first_special, geometry.special_tokens
    learned = Tokenizer(BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=min(1024, first), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    learned.train_from_iterator(_TEXT * 10, trainer)  # it joins what it sees more than once
    vocabulary: dict[str, int] = learned.get_vocab()
    for index in range(len(vocabulary), geometry.text["vocab_size"]):
        in_special = first <= index < first + len(special)
        vocabulary[special[index - first] if in_special else f"Ġ#{index}"] = index
    merges = [(one, other) for one, other in json.loads(learned.to_str())["model"]["merges"]]
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(special[3:]),
    ).save_pretrained(directory)


def main() -> int:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("geometry", choices=sorted(GEOMETRIES))
    parser.add_argument("directory", type=Path, help="created if needed")
    parser.add_argument("--shrink", type=int, default=1, help="factor by which it is smaller")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    num_bytes = write_random_checkpoint(
        given.geometry, given.directory, shrink=given.shrink, seed=given.seed
    )
    print(f"{given.directory}: {num_bytes / 1e9:.2f} GB of weights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
