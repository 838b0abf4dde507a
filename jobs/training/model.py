"""Training modules: vision tower, language model, projector, and their combination.

Parameter names are keys of checkpoints and must not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModel,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.llava_onevision.modeling_llava_onevision import (
    LlavaOnevisionMultiModalProjector,
)

from jobs.training import data
from tango_core.benchmarks.shapes.render import render
from tango_core.ops.saliency import pool_grid

# Loss weight of the class "nothing", which would dominate the loss, as most patches show
# background.
_NOTHING_WEIGHT = 0.12
_HEADS_WITH_NOTHING = ("kind", "color", "digit")
_NEIGHBOURS = ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
# Scale of the initial queries and keys of every block.
_BLOCK_SCALES = (0.8, 1.2, 1.2)


class VisionTrainer(nn.Module):
    """A vision tower with linear heads that are only used for training.

    Args:
        config: Configuration of the tower, with a pooling head.
    """

    places: Tensor

    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.tower: Any = SiglipVisionModel._from_config(config, attn_implementation="sdpa")
        self.read_patch = nn.Linear(config.hidden_size, sum(data.HEADS.values()))
        self.read_frame = nn.Linear(config.hidden_size, data.PHRASES)
        initialise_tower(self.tower)
        line = (2 * torch.arange(data.SIDE) + 1) / data.SIDE - 1
        places = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1)
        self.register_buffer("places", places.reshape(-1, 2))

    def forward(self, pixels: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Outputs per head (B, N, outputs) and per frame (B, PHRASES), from (B, H, W, 3) uint8."""
        out = self.tower(pixel_values=normalise(pixels))
        patches = self.read_patch(out.last_hidden_state)
        parts = torch.split(patches, list(data.HEADS.values()), dim=-1)
        return dict(zip(data.HEADS, parts, strict=True)), self.read_frame(out.pooler_output)

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Sum of the losses of all heads on a batch of `frame_batch`."""
        patches, frame = self(batch["pixels"])
        scene = batch["scene"][:, None].expand(-1, data.NUM_PATCHES)
        loss: Tensor = 0.5 * (patches["place"] - self.places).square().mean()
        for name, factor in (
            ("kind", 1),
            ("color", 1),
            ("digit", 1),
            ("count", 0.5),
            ("scene", 0.3),
        ):
            labels, weight = scene if name == "scene" else batch[name], torch.ones(data.HEADS[name])
            if name in _HEADS_WITH_NOTHING:
                weight[0] = _NOTHING_WEIGHT
            outputs = patches[name].flatten(0, 1)
            loss = loss + factor * F.cross_entropy(outputs, labels.flatten(), weight=weight)
        phrases, positive = batch["phrases"], torch.tensor(4.0)
        return loss + 4 * F.binary_cross_entropy_with_logits(frame, phrases, pos_weight=positive)


def normalise(pixels: Tensor) -> Tensor:
    """Convert (B, H, W, 3) uint8 to (B, 3, H, W) float32 in [-1, 1]."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


@torch.no_grad()
def initialise_tower(tower: Any) -> None:
    """Initialise positions as sines and cosines, and heads to attend to neighbouring patches.

    The heads of the first block attend to different neighbours, those of the second block to
    patches twice as far away. Half of the last block's heads attend to neighbours; the others are
    random.
    """
    config = tower.config
    size = config.hidden_size // config.num_attention_heads
    frequencies = torch.tensor([1.5, 1.0, 0.6, 0.3])
    line = torch.arange(data.SIDE)[:, None] * frequencies
    waves = torch.cat([line.sin(), line.cos()], dim=1)
    rows = waves[:, None].expand(data.SIDE, data.SIDE, -1)
    columns = waves[None].expand(data.SIDE, data.SIDE, -1)
    places = torch.cat([rows, columns], dim=-1).reshape(data.SIDE * data.SIDE, -1)
    table = tower.embeddings.position_embedding.weight
    table.normal_(0, 0.02)
    table[:, : places.shape[1]] += 1.5 * places
    # Initially only positions use these channels. Normalisation subtracts the mean of a patch from
    # all channels; one extra channel stays zero, so that the heads can undo the subtraction.
    zero = places.shape[1]
    kept = zero + 1
    table[:, zero] = 0
    tower.embeddings.patch_embedding.weight.mul_(0.5)
    tower.embeddings.patch_embedding.weight[:kept] = 0
    tower.embeddings.patch_embedding.bias[:kept] = 0
    for block in tower.encoder.layers:
        block.self_attn.out_proj.weight[:kept] = 0
        block.mlp.fc2.weight[:kept] = 0
    for layer, (reach, local) in enumerate(((1, 8), (2, 8), (1, 4))):
        attention = tower.encoder.layers[layer].self_attn
        for head in range(local):
            here = slice(head * size, (head + 1) * size)
            down, right = _NEIGHBOURS[head]
            shift = torch.block_diag(  # type: ignore[no-untyped-call]
                _rotation(reach * down * frequencies), _rotation(reach * right * frequencies)
            )
            pairs = (attention.q_proj, shift), (attention.k_proj, torch.eye(16))
            for projection, matrix in pairs:
                projection.weight[here] = 0
                projection.weight[here, :zero] = _BLOCK_SCALES[layer] * matrix
                projection.weight[here, zero] = -_BLOCK_SCALES[layer] * matrix.sum(dim=1)
                projection.bias[here] = 0


def _rotation(angles: Tensor) -> Tensor:
    """(8, 8) matrix that adds the given angles to those of sines and cosines."""
    sine, cosine = torch.diag(angles.sin()), torch.diag(angles.cos())
    return torch.cat([torch.cat([cosine, sine], dim=1), torch.cat([-sine, cosine], dim=1)])


# Scales of the initial weights: queries and keys; values and outputs.
_MATCH_SCALE = 1.3
_COPY_SCALE = 0.25
_OFFSET_BIAS = 4.5


class LanguageTrainer(nn.Module):
    """Language model, tied output projection and newline token of the built-in model.

    Args:
        config: Configuration of the whole model.

    Attributes:
        meaning: (len(TARGET_WORDS), D) initial embeddings of the words of synthetic tokens.
    """

    meaning: Tensor

    def __init__(self, config: LlavaOnevisionConfig) -> None:
        super().__init__()
        text = config.text_config
        self.language_model: Any = AutoModel.from_config(text, attn_implementation="sdpa")
        self.image_newline = nn.Parameter(torch.randn(text.hidden_size) / text.hidden_size**0.5)
        head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        head.weight = self.language_model.embed_tokens.weight
        self.lm_head = head
        self.register_buffer("meaning", torch.empty(len(data.TARGET_WORDS), text.hidden_size))
        initialise_language_model(self.language_model)
        with torch.no_grad():
            rows = [data.TOKEN_IDS[word] for word in data.TARGET_WORDS]
            self.meaning.copy_(self.language_model.embed_tokens.weight[rows])

    def forward(self, visual: Tensor, packed: data.Packed) -> Tensor:
        """Predict the tokens of all replies.

        Args:
            visual: (B, T * TOKENS_PER_FRAME, D) tokens of the clips.
            packed: Questions about the clips.

        Returns:
            (R, vocabulary) logits of the labelled positions of `packed.text`, row by row.
        """
        embed = self.language_model.embed_tokens
        hidden = torch.cat(
            [
                embed(torch.tensor(data.PROMPT_START)).expand(len(visual), -1, -1),
                visual,
                self.image_newline.expand(len(visual), 1, -1),
                embed(packed.text),
            ],
            dim=1,
        )
        states = self.language_model(
            inputs_embeds=hidden,
            position_ids=packed.positions,
            attention_mask=packed.mask,
            use_cache=False,
        ).last_hidden_state
        replies = states[:, -packed.text.shape[1] :][packed.labels >= 0]
        return self.lm_head(replies)  # type: ignore[no-any-return]

    def loss(self, visual: Tensor, packed: data.Packed) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the replies; and which questions were answered correctly, (Q,) bool.

        An answer is correct if all tokens of the reply are.
        """
        logits, is_reply = self(visual, packed), packed.labels >= 0
        targets = packed.labels[is_reply]
        hits = (logits.argmax(-1) == targets).long()
        right = torch.ones(len(packed.kinds), dtype=torch.long)
        right.scatter_reduce_(0, packed.question[is_reply], hits, "amin")
        return F.cross_entropy(logits.float(), targets), right.bool()


@torch.no_grad()
def initialise_language_model(model: Any) -> None:
    """Initialise attention so that every head copies from tokens with equal content.

    Words get orthogonal embeddings. Queries and keys have equal orthogonal weights; the output
    weights are the transposed value weights. In the first layer, two heads attend to the
    previous token and the one before it through their biases alone.
    """
    text = model.config
    width, heads, size = text.hidden_size, text.num_attention_heads, text.head_dim
    weight = model.embed_tokens.weight
    weight.normal_(0, width**-0.5)
    used = min(width, len(weight))
    weight[:used] = _orthogonal(used, width)
    for index, layer in enumerate(model.layers):
        attention = layer.self_attn
        for head in range(heads):
            here = slice(head * size, (head + 1) * size)
            match, copy = _orthogonal(size, width), _orthogonal(size, width)
            attention.q_proj.weight[here] = _MATCH_SCALE * match
            attention.k_proj.weight[here] = _MATCH_SCALE * match
            attention.v_proj.weight[here] = copy
            attention.o_proj.weight[:, here] = _COPY_SCALE * copy.T
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            projection.bias.zero_()
        # In the first layer, two heads attend to the previous token and the one before it.
        for head in (0, 1) if index == 0 else ():
            here = slice(head * size, (head + 1) * size)
            attention.q_proj.weight[here] = 0
            attention.k_proj.weight[here] = 0
            angles = (head + 1) * model.rotary_emb.inv_freq
            attention.q_proj.bias[here] = _OFFSET_BIAS * torch.cat([angles.cos(), -angles.sin()])
            attention.k_proj.bias[here][: size // 2] = _OFFSET_BIAS
        for projection in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            projection.weight.normal_(0, 0.5 * projection.weight.shape[1] ** -0.5)
        layer.mlp.down_proj.weight.mul_(0.5)


def _orthogonal(rows: int, columns: int) -> Tensor:
    """(rows, columns) with orthonormal rows (or columns, if these are fewer)."""
    return nn.init.orthogonal_(torch.empty(rows, columns))


def synthetic_tokens(
    embeddings: Tensor, samples: Sequence[data.Sample], noise: torch.Generator
) -> Tensor:
    """Noisy visual tokens of samples of `synthetic_sample`, (B, T * TOKENS_PER_FRAME, D).

    Args:
        embeddings: (len(TARGET_WORDS), D) embeddings of the words.
        samples: The samples.
        noise: Source of random numbers.
    """
    batch = torch.from_numpy(np.stack([one.visual for one in samples]))
    scale = 0.7 + 0.6 * torch.rand(*batch.shape[:2], 1, generator=noise)
    tokens = scale * (batch @ embeddings)
    return tokens + 0.05 * torch.randn(tokens.shape, generator=noise)


# Scales of the heads' outputs in the projector's first layer.
_HEAD_SCALES = {"kind": 0.3, "color": 0.3, "digit": 0.3, "count": 0.3, "scene": 0.3, "place": 2.0}
_RIDGE = 1e-3


def pooled(values: Tensor) -> Tensor:
    """Pool (F, N, C) patches to (F, TOKENS_PER_FRAME, C) tokens as the model does."""
    return pool_grid(values, (data.SIDE, data.SIDE), "bilinear")


@torch.no_grad()
def patch_states(trainer: VisionTrainer, pixels: Tensor) -> Tensor:
    """(F, N, D) input of the projector: states of the tower before its final normalisation."""
    tower = trainer.tower
    hidden: Tensor = tower.embeddings(normalise(pixels))
    for block in tower.encoder.layers:
        hidden = block(hidden, attention_mask=None)
    return hidden


@torch.no_grad()
def fit_projector(
    config: LlavaOnevisionConfig, trainer: VisionTrainer, states: Tensor, targets: Tensor
) -> LlavaOnevisionMultiModalProjector:
    """Build a projector whose pooled outputs are close to given tokens.

    The first layer contains the tower's linear heads (each class minus "nothing", positions with
    both signs); its remaining rows are random. The second layer is fitted by ridge regression.

    Args:
        config: Configuration of the whole model.
        trainer: A trained tower with its heads.
        states: (F, N, D) from `patch_states`.
        targets: (F, TOKENS_PER_FRAME, D) target tokens.
    """
    projector = LlavaOnevisionMultiModalProjector(config)
    rows, biases = _head_weights(trainer, states)
    width = projector.linear_1.weight.shape[0]
    rows, biases = rows[:width], biases[:width]
    centre = states.mean(dim=(0, 1))
    spread = states.flatten(0, 1).std(dim=0).norm()
    random = nn.init.orthogonal_(torch.empty(width - len(rows), rows.shape[1])) * 6 / spread
    projector.linear_1.weight.copy_(torch.cat([rows, random]))
    projector.linear_1.bias.copy_(torch.cat([biases, -random @ centre]))
    features = pooled(F.gelu(projector.linear_1(states))).flatten(0, 1)
    ones = torch.ones(len(features), 1)
    design = torch.cat([features, ones], dim=1).double()
    wanted = targets.flatten(0, 1).double()
    gram = design.T @ design / len(design)
    gram += _RIDGE * torch.diag(gram.diagonal())
    solution = torch.linalg.solve(gram, design.T @ wanted / len(design))
    projector.linear_2.weight.copy_(solution[:-1].T.float())
    projector.linear_2.bias.copy_(solution[-1].float())
    return projector


def _head_weights(trainer: VisionTrainer, states: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and biases of the heads for states before the tower's final normalisation.

    The normalisation divides by a norm that differs between patches; its mean is used for all.
    """
    norm = trainer.tower.post_layernorm
    centred = states - states.mean(dim=-1, keepdim=True)
    scale = (centred.square().mean(dim=-1) + norm.eps).rsqrt().mean()
    weight, bias = trainer.read_patch.weight, trainer.read_patch.bias
    parts = torch.split(weight, list(data.HEADS.values()))
    offsets = torch.split(bias, list(data.HEADS.values()))
    rows, biases = [], []
    for name, part, offset in zip(data.HEADS, parts, offsets, strict=True):
        if name == "place":
            part, offset = torch.cat([part, -part]), torch.cat([offset, -offset])
        elif name in _HEADS_WITH_NOTHING:
            part, offset = part[1:] - part[:1], offset[1:] - offset[:1]
        else:
            part, offset = part - part.mean(dim=0), offset - offset.mean()
        rows.append(_HEAD_SCALES[name] * part)
        biases.append(_HEAD_SCALES[name] * offset)
    row, shift = torch.cat(rows), torch.cat(biases)
    folded = row * norm.weight * scale
    folded = folded - folded.mean(dim=1, keepdim=True)
    return folded, shift + row @ norm.bias


def rendered_sample(vision: VisionTrainer, seed: int, index: int, num_frames: int) -> data.Sample:
    """Sample of a rendered clip: `visual` is the input of the projector, (T, N, D) in float16.

    Args:
        vision: A trained tower; it is not modified.
        seed: Seed of the clips.
        index: Index of the clip.
        num_frames: Number of its frames.
    """
    clip, moments = data.training_clip(seed, index, num_frames)
    states = patch_states(vision, torch.from_numpy(render(clip, moments)))
    return data.Sample(data.questions_of(clip, moments), states.numpy().astype(np.float16))


def projected_tokens(projector: nn.Module, samples: Sequence[data.Sample]) -> Tensor:
    """Visual tokens of samples of `rendered_sample`, (B, T * TOKENS_PER_FRAME, D)."""
    states = torch.from_numpy(np.stack([one.visual for one in samples])).float()
    tokens = pooled(projector(states.flatten(0, 1)))
    return tokens.reshape(len(samples), -1, tokens.shape[-1])


@torch.no_grad()
def assemble(
    config: LlavaOnevisionConfig,
    vision: VisionTrainer,
    projector: nn.Module,
    language: LanguageTrainer,
) -> LlavaOnevisionForConditionalGeneration:
    """Assemble the whole model from its trained parts, without the training heads."""
    whole = LlavaOnevisionForConditionalGeneration(config)
    whole.model.vision_tower.load_state_dict(vision.tower.state_dict())
    whole.model.multi_modal_projector.load_state_dict(projector.state_dict())
    whole.model.language_model.load_state_dict(language.language_model.state_dict())
    whole.model.image_newline.copy_(language.image_newline)
    whole.tie_weights()
    return whole.eval()
