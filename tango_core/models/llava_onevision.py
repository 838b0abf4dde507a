"""LLaVA-OneVision: SigLIP, two-layer projector, bilinear pooling, Qwen2, one newline at the end.

The two halves load from one checkpoint directory; `llava_checkpoint.py` says which files it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from transformers import AutoModel, LlavaOnevisionConfig
from transformers.models.llava_onevision.modeling_llava_onevision import (
    LlavaOnevisionMultiModalProjector,
)

from tango_core.compressors.base import LayerPruner
from tango_core.models.base import DecoderShape, LanguageModel, ModelSpec, VisionEncoder
from tango_core.models.checkpoint import Checkpoint, resolve_checkpoint, weights_digest
from tango_core.models.decoder import Decoder
from tango_core.models.generation import GreedyGenerator, LaidOutPrompt
from tango_core.models.llava_checkpoint import (
    LANGUAGE,
    VISION,
    half_of,
    read_config,
    read_extras,
    read_normalisation,
)
from tango_core.models.placement import resolve_device, resolve_dtype
from tango_core.models.siglip import (
    TowerOutput,
    load_pooling_head,
    mean_keys,
    raise_if_not_provided,
    received_attention,
    run_tower,
)
from tango_core.models.text import load_tokenizer, read_eos_ids
from tango_core.models.weights import load_module
from tango_core.ops.saliency import pool_grid
from tango_core.types import Answer, CompressedVideo, Positions, Prompt, VideoFrames, VisualFeatures
from tango_core.video import DecoderName, FrameSpec

# Positions that SigLIP attends to in every clip, on the 14 x 14 grid (run scripts of the official
# Tango release).
_SINKS_14X14 = (28, 27, 41, 169, 11, 12)

# Frames that go through the tower together: 32 frames of 729 tokens need about 0.8 GB of
# activations in float16.
_FRAMES_AT_ONCE = 32


def describe(
    name: str,
    path: str,
    *,
    num_frames: int,
    dtype: str,
    device: str,
    decoder: DecoderName,
    revision: str | None,
    saliency_from: str | None,
) -> ModelSpec:
    """Describe a LLaVA-OneVision checkpoint; see `tango_core.models.describe_model`."""
    checkpoint = resolve_checkpoint(path, revision)
    config = read_config(checkpoint)
    signals = {"attention", "keys"}
    if config.vision_config.vision_use_head or saliency_from is not None:
        signals |= {"saliency", "frame_embeddings"}
    text = config.text_config
    return ModelSpec(
        name=name,
        path=path,
        revision=checkpoint.revision,
        digest=_digest(checkpoint, saliency_from),
        dtype=resolve_dtype(dtype, device, checkpoint.config()),
        device=device,
        frames=FrameSpec(
            num_frames=num_frames,
            size=(config.vision_config.image_size, config.vision_config.image_size),
            sampling="truncate",
            decoder=decoder,
        ),
        decoder=DecoderShape(
            num_layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            intermediate_size=text.intermediate_size,
            num_heads=text.num_attention_heads,
            num_kv_heads=text.num_key_value_heads,
            head_dim=getattr(text, "head_dim", None)
            or text.hidden_size // text.num_attention_heads,
            vocab_size=text.vocab_size,
        ),
        provides=frozenset(signals),
        saliency_from=saliency_from,
        note=read_extras(checkpoint).note,
    )


def _digest(checkpoint: Checkpoint, saliency_from: str | None) -> str:
    """Digest of the checkpoint and, if one is named, of the one that holds the pooling head."""
    own = weights_digest(checkpoint)
    if saliency_from is None:
        return own
    head = resolve_checkpoint(saliency_from, setting="model.saliency_from")
    return f"{own}+{weights_digest(head)}"


def load_encoder(spec: ModelSpec) -> LlavaOnevisionEncoder:
    """Load the vision half."""
    return LlavaOnevisionEncoder(spec)


def load_language_model(spec: ModelSpec) -> LlavaOnevisionLanguageModel:
    """Load the language half."""
    return LlavaOnevisionLanguageModel(spec)


class VisionHalf(nn.Module):
    """Tower and projector, named as in the checkpoint."""

    def __init__(self, config: LlavaOnevisionConfig) -> None:
        super().__init__()
        self.vision_tower = AutoModel.from_config(config.vision_config, attn_implementation="sdpa")
        self.multi_modal_projector = LlavaOnevisionMultiModalProjector(config)


class LanguageHalf(nn.Module):
    """Decoder, output projection and newline token, named as in the checkpoint."""

    def __init__(self, config: LlavaOnevisionConfig) -> None:
        super().__init__()
        text = config.text_config
        self.language_model = AutoModel.from_config(text, attn_implementation="sdpa")
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.image_newline = nn.Parameter(torch.empty(text.hidden_size))


class LlavaOnevisionEncoder(VisionEncoder):
    """Tower, projector and bilinear pooling of LLaVA-OneVision.

    Args:
        spec: From `describe_model`.

    Raises:
        FileNotFoundError: If weights are missing.
        ValueError: If weights and configuration do not fit.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.device = resolve_device(spec.device)
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        self.config = read_config(checkpoint)
        self.model = load_module(
            lambda: VisionHalf(self.config),
            checkpoint,
            half_of(VISION),
            dtype=getattr(torch, spec.dtype),
            device=self.device,
        )
        self.pooling_head = load_pooling_head(
            checkpoint, self.config.vision_config, spec.saliency_from, self.device
        )
        self._scale, self._mean, self._std = read_normalisation(checkpoint)
        side = self.config.vision_config.image_size // self.config.vision_config.patch_size
        self._tower_grid = (side, side)
        self._sinks = read_extras(checkpoint).sinks

    @torch.no_grad()
    def encode(self, frames: VideoFrames, needs: frozenset[str] = frozenset()) -> VisualFeatures:
        """Encode one clip; see `VisionEncoder.encode`."""
        self._raise_unless_usable(frames, needs)
        pixels = torch.tensor(frames.pixels)
        chunks = [self._encode_chunk(part, needs) for part in torch.split(pixels, _FRAMES_AT_ONCE)]
        maps = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
        grid = self._pooled_grid()
        return VisualFeatures(
            tokens=maps["tokens"],
            grid=grid,
            timestamps=torch.tensor(frames.timestamps, device=self.device),
            saliency=maps.get("saliency"),
            attention=maps.get("attention"),
            keys=maps.get("keys"),
            frame_embeddings=maps.get("frame_embeddings"),
            sinks=self._sinks_on(grid),
        )

    def _encode_chunk(self, pixels: Tensor, needs: frozenset[str]) -> dict[str, Tensor]:
        """Tokens and signals of some frames, (f, h, w, 3) uint8."""
        output = run_tower(
            self.model.vision_tower, self._normalise(pixels), self.config.vision_feature_layer
        )
        projected = self.model.multi_modal_projector(output.features)
        maps = {"tokens": self._pool(projected)}
        signals: dict[str, Callable[[TowerOutput], Tensor]] = {
            "attention": lambda out: self._pool(received_attention(out)),
            "keys": lambda out: self._pool(mean_keys(out)),
        }
        if self.pooling_head is not None:
            head = self.pooling_head
            signals["saliency"] = lambda out: self._pool(head.saliency(out.hidden))
            signals["frame_embeddings"] = lambda out: head.embed(out.hidden)
        for name in sorted(needs):
            maps[name] = signals[name](output)
        return maps

    def _normalise(self, pixels: Tensor) -> Tensor:
        """(f, h, w, 3) uint8 -> (f, 3, h, w) in the model's dtype."""
        values = pixels.to(self.device).permute(0, 3, 1, 2).float() * self._scale
        mean, std = (
            torch.tensor(part, device=self.device).view(1, 3, 1, 1)
            for part in (self._mean, self._std)
        )
        return ((values - mean) / std).to(getattr(torch, self.spec.dtype))

    def _pool(self, maps: Tensor) -> Tensor:
        """Shrink (f, N) or (f, N, C) maps of the tower's grid to the grid of the language model."""
        return pool_grid(maps, self._tower_grid, "bilinear")

    def _pooled_grid(self) -> tuple[int, int]:
        """(H, W) of the tokens."""
        height, width = self._tower_grid
        return -(-height // 2), -(-width // 2)

    def _sinks_on(self, grid: tuple[int, int]) -> tuple[int, ...]:
        """Sinks: the checkpoint's own, else the published ones on their grid."""
        if self._sinks is not None:
            return self._sinks
        return _SINKS_14X14 if grid == (14, 14) else ()

    def _raise_unless_usable(self, frames: VideoFrames, needs: frozenset[str]) -> None:
        """Refuse frames of another size and signals that cannot be computed."""
        size = frames.pixels.shape[1:3]
        if size != self.spec.frames.size:
            raise ValueError(
                f"frames must be {self.spec.frames.size} pixels (height, width) for model "
                f"{self.spec.name}, got {size}; decode them with its FrameSpec"
            )
        raise_if_not_provided(self.spec, needs)


class LlavaOnevisionLanguageModel(LanguageModel):
    """Embedding, Qwen2 decoder, output projection and newline token of LLaVA-OneVision.

    Args:
        spec: From `describe_model`.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If weights and configuration do not fit.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        device = resolve_device(spec.device)
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        config = read_config(checkpoint)
        self.model = load_module(
            lambda: LanguageHalf(config),
            checkpoint,
            half_of(LANGUAGE),
            dtype=getattr(torch, spec.dtype),
            device=device,
            tied={"lm_head.weight": "language_model.embed_tokens.weight"}
            if config.tie_word_embeddings
            else None,
        )
        self.decoder = Decoder(self.model.language_model, self.model.lm_head)
        self.tokenizer = load_tokenizer(checkpoint)
        self.chat = read_extras(checkpoint).chat
        self.generator = GreedyGenerator(
            self.decoder,
            read_eos_ids(checkpoint, config, self.tokenizer),
            lambda ids: str(self.tokenizer.decode(ids, skip_special_tokens=True)),
        )

    def answer(
        self,
        video: CompressedVideo,
        prompts: Sequence[Prompt],
        *,
        pruner: LayerPruner | None = None,
        positions: Positions = "renumbered",
        max_new_tokens: int = 16,
        share_prefix: bool = True,
    ) -> list[Answer]:
        """Answer all prompts about one clip, greedily; see `LanguageModel.answer`.

        With a shared prefix, times per question are shares of the time spent together; see
        `GreedyGenerator.answer`.
        """
        return self.generator.answer(
            [self.lay_out(video, prompt, positions) for prompt in prompts],
            pruner=pruner,
            max_new_tokens=max_new_tokens,
            share_prefix=share_prefix,
        )

    def lay_out(
        self, video: CompressedVideo, prompt: Prompt, positions: Positions = "renumbered"
    ) -> LaidOutPrompt:
        """Put text and clip in the order of the sequence, with their positions.

        Positions count all tokens contiguously (`"renumbered"`: the clip was shortened before ids
        existed), or leave the gaps of the dropped tokens (`"original"`: text after the clip is
        where it would be at full length).

        Raises:
            ValueError: If the tokens are not as wide as the decoder.
        """
        width = self.spec.decoder.hidden_size
        if video.tokens.shape[1] != width:
            raise ValueError(
                f"video tokens have width {video.tokens.shape[1]}, but model {self.spec.name} has "
                f"{width}; encode the clip with the same checkpoint"
            )
        left = self._tokenize(self.chat.left())
        right = self._tokenize(self.chat.right(prompt))
        visual, indices, places, length = self._visual_rows(video)
        if positions == "renumbered":
            places, length = torch.arange(len(visual)), len(visual)
        return LaidOutPrompt(
            left=left,
            visual=visual,
            visual_indices=indices,
            grid=video.grid,
            right=right,
            positions=torch.cat(
                [
                    torch.arange(len(left)),
                    places + len(left),
                    torch.arange(len(right)) + len(left) + length,
                ]
            ),
        )

    def _visual_rows(self, video: CompressedVideo) -> tuple[Tensor, Tensor, Tensor, int]:
        """The clip's part of the sequence: kept tokens, then the newline.

        Returns:
            (V, D) embeddings, (V,) flat grid positions with -1 for the newline, (V,) places in the
            clip's part of the full sequence, and the length of that part.
        """
        newline = self.model.image_newline[None]
        indices = video.indices.cpu()
        return (
            torch.cat([video.tokens.to(newline), newline]),
            torch.cat([indices, indices.new_tensor([-1])]),
            torch.cat([indices, indices.new_tensor([video.num_total])]),
            video.num_total + 1,
        )

    def _tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a piece of the conversation."""
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)
