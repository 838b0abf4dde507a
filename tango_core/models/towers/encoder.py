"""Base classes of the vision encoders, and how a clip goes through a tower in batches.

A tower processes every frame (Qwen's: every pair of frames) independently, so a clip can be split
anywhere. Tokens are equal up to rounding, as the order of sums may depend on the number of rows. So
the batch size is not part of a cache's identity.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tango_core.errors import InputError
from tango_core.flops import positions_flops, tower_flops
from tango_core.models.base import ModelSpec, VisionEncoder, raise_if_not_provided
from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint
from tango_core.models.checkpoints.weights import load_module
from tango_core.models.family import CheckpointFamily
from tango_core.models.kernels import (
    IMPLEMENTATION,
    computes,
    pack_linears,
)
from tango_core.models.memory_faults import free_memory, is_out_of_memory
from tango_core.models.options import EncodeBatch
from tango_core.models.placement import resolve_device
from tango_core.models.towers.trace import (
    LayerNotes,
    Observer,
    TowerTrace,
    raise_if_no_layer,
    unobserved,
)
from tango_core.ops.transfer import upload
from tango_core.types import VideoFrames, VisualFeatures

logger = logging.getLogger(__name__)

Grid = tuple[int, int]

# Attention probabilities in memory at once, in float32 numbers: those of 4 frames of SigLIP so400m
# (16 heads x 729 x 729), of 2 frames of InternViT-300M (16 x 1025 x 1025).
_PROBABILITIES_AT_ONCE = 36 * 10**6

# Value of "auto" on a CPU, where more frames exceed its caches, and its maximum on accelerators,
# which suffices for full utilisation.
ON_CPU, AT_MOST = 4, 32


def largest_batch(setting: EncodeBatch, device: str, num_frames: int) -> int:
    """Number of frames per batch, as long as memory suffices.

    Args:
        setting: `ModelSpec.encode_batch`.
        device: `ModelSpec.device`, or a type of device.
        num_frames: Number of frames of a clip.
    """
    if setting != "auto":
        return min(setting, num_frames)
    cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    return min(ON_CPU if cpu else AT_MOST, num_frames)


@dataclass
class FrameBatches:
    """Runs a tower over a clip, some frames at a time.

    After out of memory, the same frames are retried in smaller batches, and later clips start with
    that size.

    Attributes:
        setting: `ModelSpec.encode_batch`.
        device: Device of the tower.
        shrunk_to: Batch size after out of memory; `None` before.
    """

    setting: EncodeBatch
    device: torch.device
    shrunk_to: int | None = field(default=None, init=False)

    def run(
        self,
        rows: Tensor,
        encode: Callable[[Tensor], dict[str, Tensor]],
        *,
        frames_per_row: int = 1,
    ) -> dict[str, Tensor]:
        """Encode a clip batch by batch and concatenate the maps.

        Args:
            rows: (N, ...) frames, or groups of frames that belong together, on the device.
            encode: Returns maps of some rows; their first dimension is that of the rows.
            frames_per_row: Number of frames per row.

        Raises:
            torch.OutOfMemoryError: If not even a single row fits.
        """
        size = largest_batch(self.setting, self.device.type, len(rows) * frames_per_row)
        size = max(1, min(size, self.shrunk_to or size) // frames_per_row)
        parts: list[dict[str, Tensor]] = []
        done = 0
        while done < len(rows):
            batch = rows[done : done + size]
            try:
                parts.append(encode(batch))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                refused = next(iter(str(error).splitlines()), type(error).__name__)
            else:
                done += len(batch)
                continue
            # Outside of `except`: the error holds the tensors of the failed attempt.
            free_memory()
            if size == 1:
                raise torch.OutOfMemoryError(
                    f"{self.device} has no room to encode {frames_per_row} frame(s) ({refused}); "
                    "give the compress pool a larger share of a GPU, or a larger GPU"
                )
            size = len(batch) // 2 or 1
            self.shrunk_to = size * frames_per_row
            logger.warning(
                "%s has no room for %d frames at once; going on with %d (model.encode_batch)",
                self.device,
                len(batch) * frames_per_row,
                self.shrunk_to,
            )
        if len(parts) == 1:
            return parts[0]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def upload_clip(
    pixels: NDArray[np.uint8], timestamps: NDArray[np.float64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Copy frames and their times to a device as bytes, in one transfer.

    Args:
        pixels: (..., h, w, 3) uint8, read-only or not.
        timestamps: (T,) float64.
        device: Where they go; on a CPU they are copied, because the input may be read-only.

    Returns:
        Pixels and timestamps in the same shapes.
    """
    # Times first, because float64 must be aligned to 8 bytes.
    times = np.ascontiguousarray(timestamps, np.float64).view(np.uint8)
    moved = upload(np.concatenate([times, pixels.ravel()]), device)
    # A copy, so that the times do not keep the pixels in memory.
    seconds = moved[: len(times)].view(torch.float64).clone()
    return moved[len(times) :].view(pixels.shape), seconds


@dataclass(frozen=True, eq=False)
class Normalisation:
    """Normalisation (pixel * scale - mean) / std per colour channel.

    Attributes:
        scale: Factor that maps pixels to [0, 1].
        mean: (3, 1, 1) float32 mean per channel.
        std: (3, 1, 1) float32 standard deviation per channel.
    """

    scale: float
    mean: Tensor
    std: Tensor

    def __call__(self, pixels: Tensor) -> Tensor:
        """(..., h, w, 3) uint8 -> (..., 3, h, w) float32."""
        return (pixels.movedim(-1, -3).float() * self.scale - self.mean) / self.std


def read_normalisation(
    checkpoint: Checkpoint, family: CheckpointFamily, device: torch.device
) -> Normalisation:
    """How pixels are normalised, on a device: as the preprocessor files say, if they do."""
    nested = checkpoint.read_json("processor_config.json") or {}
    content: dict[str, Any] = (
        checkpoint.read_json("video_preprocessor_config.json")
        or checkpoint.read_json("preprocessor_config.json")
        or nested.get("video_processor")
        or nested.get("image_processor")
        or {}
    )
    values = (content.get("image_mean") or family.mean, content.get("image_std") or family.std)
    mean, std = torch.tensor(values, device=device).view(2, -1, 1, 1)
    return Normalisation(float(content.get("rescale_factor") or 1 / 255), mean, std)


class TowerEncoder(VisionEncoder):
    """Runs a tower of transformers over a clip in batches of rows (frames or frame groups).

    Args:
        spec: From `describe_model`.
        family: Of the model.

    Attributes:
        published_sinks: Published sinks by grid.
        frames_per_row: Number of frames per row.
        class_tokens: Number of positions of a row besides its patches.

    Raises:
        FileNotFoundError: If weights are missing.
        ValueError: If weights and configuration do not fit.
    """

    published_sinks: Mapping[Grid, tuple[int, ...]] = MappingProxyType({})
    frames_per_row = 1
    class_tokens = 0

    def __init__(self, spec: ModelSpec, family: CheckpointFamily) -> None:
        self.spec = spec
        self.device = resolve_device(spec.device)
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        self.config: Any = family.read_config(checkpoint)
        self.model: Any = load_module(
            self.build,
            checkpoint,
            family.rename("encoder"),
            dtype=self._dtype,
            device=self.device,
        )
        self._normalisation = read_normalisation(checkpoint, family, self.device)
        self._batches = FrameBatches(spec.encode_batch, self.device)
        self._own_sinks = family.extras(checkpoint).sinks

    @property
    def num_layers(self) -> int:
        """Number of the tower's blocks that the model uses; all of them by default."""
        return len(list(self.blocks()))

    @abstractmethod
    def build(self) -> nn.Module:
        """The vision half without weights, named as in the checkpoint."""

    @abstractmethod
    def grid_of(self, frames: VideoFrames) -> Grid:
        """(H, W) of the tokens of a frame.

        Raises:
            ValueError: If the frames' size is wrong.
        """

    @abstractmethod
    def patch_grid(self, grid: Grid) -> Grid:
        """(rows, columns) of the tower's patches."""

    @abstractmethod
    def blocks(self) -> Iterable[nn.Module]:
        """Blocks of the tower."""

    @abstractmethod
    def projectors(self, grid: Grid) -> tuple[Sequence[nn.Module], int]:
        """What follows the tower, and the positions of a row that go through it."""

    @abstractmethod
    def encode_rows(self, rows: Tensor, grid: Grid, needs: frozenset[str]) -> dict[str, Tensor]:
        """Tokens and signals of some rows, (n, ..., h, w, 3) uint8."""

    @abstractmethod
    def trace_rows(self, rows: Tensor, grid: Grid, layers: Collection[int]) -> dict[str, Tensor]:
        """Result of `LayerNotes.maps` for some rows."""

    def rows_of(self, frames: VideoFrames) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        """Rows of a clip, and their times."""
        return frames.pixels, frames.timestamps

    def facts(self) -> dict[str, Any]:
        """Additional fields of the features of every clip."""
        return {}

    @torch.no_grad()
    def encode(self, frames: VideoFrames, needs: frozenset[str] = frozenset()) -> VisualFeatures:
        """Encode one clip; see `VisionEncoder.encode`."""
        raise_if_not_provided(self.spec, needs)
        return self._features(frames, needs)

    @torch.no_grad()
    def trace(self, frames: VideoFrames, layers: Collection[int]) -> TowerTrace:
        """Activations of the tower's layers; see `VisionEncoder.trace`."""
        raise_if_no_layer(layers, self.num_layers, self.spec.name)
        grid = self.grid_of(frames)
        maps, _ = self._in_batches(frames, lambda rows: self.trace_rows(rows, grid, layers))
        hidden = {layer: maps[f"layer {layer}"] for layer in layers}
        return TowerTrace(self.patch_grid(grid), maps["norms"], hidden, maps["attention"])

    def flops(self, grid: Grid, rows: Sequence[int]) -> float:
        """Floating-point operations of encoding a clip, those of signals left out.

        Args:
            grid: Of the tokens of a frame.
            rows: For every block of the tower the rows that enter it.
        """
        patches = math.prod(self.patch_grid(grid))
        positions = self.class_tokens + patches
        blocks = list(self.blocks())[: len(rows)]
        width = self.config.vision_config.hidden_size
        cost = tower_flops(blocks, rows, positions, self.reach(positions), width)
        convolutions = (nn.Conv2d, nn.Conv3d)  # the patch embedding
        first = [one for one in self.model.modules() if isinstance(one, convolutions)]
        cost += sum(rows[0] * positions_flops(module, patches) for module in first)
        modules, projected = self.projectors(grid)
        return cost + sum(rows[-1] * positions_flops(module, projected) for module in modules)

    def reach(self, positions: int) -> list[int]:
        """For every block that is run the positions that a position attends to."""
        return [positions] * self.num_layers

    def _features(self, frames: VideoFrames, needs: frozenset[str]) -> VisualFeatures:
        grid = self.grid_of(frames)
        num_rows = -(-len(frames.pixels) // self.frames_per_row)
        maps, timestamps = self._in_batches(
            frames, lambda rows: self.encode_rows(rows, grid, needs)
        )
        flops = self.flops(grid, [num_rows] * self.num_layers)
        return self._features_of(frames, grid, timestamps=timestamps, encoder_flops=flops, **maps)

    def _features_of(self, frames: VideoFrames, grid: Grid, **maps: Any) -> VisualFeatures:
        """Features of a clip with its sinks and its source."""
        sinks = self._sinks_on(grid)
        return VisualFeatures(grid=grid, sinks=sinks, source=frames.source, **self.facts(), **maps)

    def _in_batches(
        self, frames: VideoFrames, look: Callable[[Tensor], dict[str, Tensor]]
    ) -> tuple[dict[str, Any], Tensor]:
        """Maps of all rows of a clip, and their times."""
        rows, timestamps = upload_clip(*self.rows_of(frames), self.device)
        return self._batches.run(rows, look, frames_per_row=self.frames_per_row), timestamps

    def _sinks_on(self, grid: Grid) -> tuple[int, ...]:
        """Sinks of frames with this grid: of the recipe, the checkpoint, or the published ones."""
        if self.spec.sinks is not None:
            return self.spec.sinks.on(grid, self.spec.name)
        own = self._own_sinks
        return self.published_sinks.get(grid, ()) if own is None else tuple(own)


@dataclass(frozen=True, eq=False)
class FrameTowerOutput:
    """What one pass of frames through a tower leaves.

    Attributes:
        features: (F, P, C) states of the patches that are projected.
        hidden: (F, N, Dv) output of the last block that was run; N counts a class token, if any.
        block_input: (F, N, Dv) input of that block.
        attention: Attention module of that block.
        norm: Norm in front of it.
        earlier: Index of a block -> (F, N, Dv) its input, for the blocks asked for.
    """

    features: Tensor
    hidden: Tensor
    block_input: Tensor
    attention: Any
    norm: Any
    earlier: Mapping[int, Tensor] = field(default_factory=dict)

    def heads(self, kind: str, states: Tensor) -> Tensor:
        """Queries ("q") or keys ("k") of (F, n, Dv) normed states: (F, heads, n, head_dim)."""
        projected = getattr(self.attention, f"{kind}_proj")(states)
        if (norm := getattr(self.attention, f"{kind}_norm", None)) is not None:
            projected = norm(projected)
        split: Tensor = projected.view(*states.shape[:2], -1, self.attention.head_dim)
        return split.transpose(1, 2)

    def paid(self, queries: Tensor, states: Tensor) -> Tensor:
        """Attention that some rows pay, averaged over heads and those rows.

        Args:
            queries: (F, n, Dv) normed states of the rows.
            states: (F, N, Dv) normed states of all rows.

        Returns:
            (F, N) float32; every row sums to 1.
        """
        rows, keys = self.heads("q", queries).float(), self.heads("k", states).float()
        logits: Tensor = rows @ keys.mT * self.attention.scale
        return logits.softmax(dim=-1).mean(dim=(1, 2))

    def received(self) -> Tensor:
        """(F, N) float32 mean self-attention that each row receives, a few frames at a time."""
        states = self.norm(self.block_input)
        per_frame = self.attention.num_heads * states.shape[1] ** 2
        at_once = max(1, _PROBABILITIES_AT_ONCE // per_frame)
        return torch.cat([self.paid(chunk, chunk) for chunk in states.split(at_once)])

    def mean_keys(self) -> Tensor:
        """(F, N, head_dim) float32 keys, averaged over heads."""
        return self.heads("k", self.norm(self.block_input)).float().mean(dim=1)


class FrameEncoder(TowerEncoder):
    """A tower that encodes every frame independently, at a fixed size."""

    def __init__(self, spec: ModelSpec, family: CheckpointFamily) -> None:
        super().__init__(spec, family)
        if computes(self._dtype, self.device):
            pack_linears([self.model], self._dtype, self.device)
            self.model.vision_tower.set_attn_implementation(IMPLEMENTATION)

    def _normalise(self, rows: Tensor) -> Tensor:
        """(f, h, w, 3) uint8 -> (f, 3, h, w) in the dtype of the tower; computed in float32."""
        return self._normalisation(rows).to(self._dtype)

    def projectors(self, grid: Grid) -> tuple[Sequence[nn.Module], int]:
        """See `TowerEncoder.projectors`."""
        return [self.model.multi_modal_projector], math.prod(grid)

    @abstractmethod
    def run(
        self, pixels: Tensor, observe: Observer = unobserved, needs: frozenset[str] = frozenset()
    ) -> FrameTowerOutput:
        """Run the tower on normalised (f, 3, h, w) pixels; `needs` names signals wanted after."""

    @abstractmethod
    def signal(self, name: str, output: FrameTowerOutput) -> Tensor:
        """Compute a signal from the result of `run`."""

    @abstractmethod
    def project(self, output: FrameTowerOutput) -> Tensor:
        """(f, L, D) tokens from the result of `run`."""

    def of_patches(self, hidden: Tensor) -> Tensor:
        """The patch rows of a layer's output."""
        return hidden[:, self.class_tokens :]

    def grid_of(self, frames: VideoFrames) -> Grid:
        """The model's fixed grid."""
        size, wanted = frames.pixels.shape[1:3], self.spec.frames.size
        if size != wanted:
            raise InputError(
                f"frames must be {wanted} pixels for model {self.spec.name}, got {size}"
            )
        assert self.spec.grid is not None
        return self.spec.grid

    def encode_rows(self, rows: Tensor, grid: Grid, needs: frozenset[str]) -> dict[str, Tensor]:
        """See `TowerEncoder.encode_rows`."""
        return self.maps_of(self.run(self._normalise(rows), needs=needs), needs)

    def maps_of(self, output: FrameTowerOutput, needs: frozenset[str]) -> dict[str, Tensor]:
        """Tokens and signals from the result of `run`."""
        signals = {name: self.signal(name, output) for name in sorted(needs)}
        return {"tokens": self.project(output), **signals}

    def trace_rows(self, rows: Tensor, grid: Grid, layers: Collection[int]) -> dict[str, Tensor]:
        """See `TowerEncoder.trace_rows`."""
        notes = LayerNotes(layers, self.of_patches)
        received = self.run(self._normalise(rows), notes).received()
        return notes.maps(self.of_patches(received[..., None])[..., 0])
