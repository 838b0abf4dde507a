"""Checkpoint files of a family: configuration, tensor names, pixels, chat format.

Describing a model must not load the code of its networks, so nothing here imports it. The optional
tango.json beside config.json holds what config.json has no place for:

    {"chat": {"opening": "a", "after_clip": "b", "closing": "c"}, "sinks": [28], "note": "d"}

`chat` is the text around clip and question (`language/chat.py`), `sinks` are positions of the token
grid that attract attention in every clip, `note` is shown with every result. Any key may be left
out.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING

from tango_core.errors import InputError
from tango_core.models.base import ALL_SIGNALS, LLMShape, ModelSpec
from tango_core.models.checkpoints.directory import (
    ArchitectureError,
    Checkpoint,
    resolve_checkpoint,
    weights_digest,
)
from tango_core.models.checkpoints.weights import Rename
from tango_core.models.family import Half, ModelRequest
from tango_core.models.language.chat import ChatFormat
from tango_core.models.placement import resolve_dtype
from tango_core.models.towers.patches import PatchLayout
from tango_core.video import FrameSpec


@dataclass(frozen=True)
class Extras:
    """Content of the optional tango.json of a checkpoint."""

    chat: ChatFormat
    sinks: Sequence[int] | None = None
    note: str = ""


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


class FamilyFiles(ABC):
    """Reads the files of checkpoints of one architecture.

    Attributes:
        title: Name of the architecture in messages.
        kinds: Its `model_type`s in messages.
        chat: Chat format of a checkpoint whose tango.json has none.
        mean: Default mean of the pixels per channel.
        std: Default standard deviation of the pixels per channel.
        vision: Prefixes of the vision half's tensor names in transformers 5.
        language: Prefixes of the language half's tensor names.
        vision_root: Prefix to remove from the names of the vision half.
        unused: Prefixes of tensors that no half reads.
        renames: Replacements from names in other layouts to those of transformers 5, in order.
        has_newline: Whether the language half holds the embedding of a newline token.
        ranks_itself: Whether the tower ranks tokens without a second checkpoint.
    """

    title: str
    kinds: str
    chat: ChatFormat
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    vision: tuple[str, ...] = ("model.vision_tower.", "model.multi_modal_projector.")
    language: tuple[str, ...] = ("model.language_model.", "lm_head.")
    unused: tuple[str, ...] = ()
    vision_root: str = "model."
    renames: tuple[tuple[re.Pattern[str], str], ...] = ()
    has_newline = False
    ranks_itself = True

    def read_config(self, checkpoint: Checkpoint) -> Any:
        """Configuration of the architecture in transformers.

        Raises:
            ArchitectureError: If the checkpoint is of another architecture.
            ValueError: If this project does not support its variant.
        """
        content = checkpoint.config()
        config = self.config_of(checkpoint, content)
        if config is None:
            raise ArchitectureError(
                f"{checkpoint.name} holds a {content.get('model_type')!r} "
                f"model, not {self.kinds}; choose another model.name or give a {self.title} "
                "checkpoint"
            )
        for name, value, known in self.limits(config):
            if value not in known:
                supported = " or ".join(map(repr, known))
                raise InputError(
                    f"{checkpoint.name}: {name} of config.json is "
                    f"{value!r}, but only {supported} is supported; use another checkpoint"
                )
        return config

    @abstractmethod
    def config_of(self, checkpoint: Checkpoint, content: dict[str, Any]) -> Any:
        """The configuration for the content of config.json; `None` for another architecture."""

    def limits(self, config: Any) -> tuple[tuple[str, Any, tuple[Any, ...]], ...]:
        """(setting, its value, the supported values) of settings that may differ."""
        return ()

    @abstractmethod
    def facts(
        self, checkpoint: Checkpoint, config: Any, request: ModelRequest, options: Any
    ) -> dict[str, Any]:
        """Fields of `ModelSpec` that depend on the family; `frames` is required.

        Raises:
            ValueError: If an option does not fit the checkpoint.
        """

    def note(self, checkpoint: Checkpoint, request: ModelRequest, options: Any) -> str:
        """A sentence to show with every result, or ""."""
        return ""

    def extras(self, checkpoint: Checkpoint) -> Extras:
        """Content of tango.json, or its defaults.

        Raises:
            ValueError: If it has unknown keys or wrong values.
        """
        content = checkpoint.read_json("tango.json") or {}
        try:
            chat = ChatFormat(**content["chat"]) if "chat" in content else self.chat
            return Extras(**{**content, "chat": chat})
        except TypeError as error:
            raise InputError(
                f"{checkpoint.source}/tango.json: {error}; its keys are chat (opening, after_clip, "
                "closing), sinks and note"
            ) from None

    def normalisation(self, checkpoint: Checkpoint, device: torch.device) -> Normalisation:
        """How pixels are normalised, on a device: as the preprocessor files say, if they do."""
        nested = checkpoint.read_json("processor_config.json") or {}
        content: dict[str, Any] = (
            checkpoint.read_json("video_preprocessor_config.json")
            or checkpoint.read_json("preprocessor_config.json")
            or nested.get("video_processor")
            or nested.get("image_processor")
            or {}
        )
        values = (content.get("image_mean") or self.mean, content.get("image_std") or self.std)
        mean, std = torch.tensor(values, device=device).view(2, -1, 1, 1)
        return Normalisation(float(content.get("rescale_factor") or 1 / 255), mean, std)

    def rename(self, half: Half) -> Rename:
        """Map names of tensors to those in one half, and those of the other half to `None`.

        A name of neither half is passed through, so that loading reports it as unknown.
        """
        own = self.vision if half == "encoder" else self.language
        root = self.vision_root if half == "encoder" else "model."

        def renamed(name: str) -> str | None:
            for pattern, replacement in self.renames:
                name = pattern.sub(replacement, name)
            known = self.vision + self.language + self.unused
            if name.startswith(known) and not name.startswith(own):
                return None
            return name.removeprefix(root)

        return renamed

    def describe(self, request: ModelRequest, options: Any) -> ModelSpec:
        """Describe a checkpoint; see `ModelFamily.describe`."""
        checkpoint = resolve_checkpoint(request.path, request.revision)
        config = self.read_config(checkpoint)
        if request.saliency_from is not None and self.ranks_itself:
            raise InputError(
                f"model.saliency_from is no setting of model {request.name}; leave it out"
            )
        facts = self.facts(checkpoint, config, request, options)
        notes = (self.extras(checkpoint).note, self.note(checkpoint, request, options))
        common: dict[str, Any] = {
            "name": request.name,
            "path": request.path,
            "revision": checkpoint.revision,
            "dtype": resolve_dtype(request.dtype, request.device),
            "device": request.device,
            "llm": LLMShape.of(config.text_config),
            "provides": ALL_SIGNALS,
            "options": options,
            "note": "; ".join(filter(None, notes)),
        }
        if "digest" not in facts:
            common["digest"] = weights_digest(checkpoint)
        return ModelSpec(**{**common, **facts})


class PatchFiles(FamilyFiles):
    """Files of models whose tower takes pairs of frames at native aspect ratio (Qwen's).

    Attributes:
        model_type: `model_type` of config.json.
        least_tokens: Default minimum number of tokens of a frame.
        most_tokens: Default maximum number of tokens of a frame.
        all_tokens: Maximum number of tokens of a clip, two frames counting as one; `None` for none.
        only_lowered: Whether a `max_pixels` above `most_tokens` is limited to `most_tokens`.
    """

    vision = ("model.visual.",)
    vision_root = "model.visual."
    model_type: str
    least_tokens: int
    most_tokens: int
    all_tokens: int | None = None
    only_lowered = False

    def config_of(self, checkpoint: Checkpoint, content: dict[str, Any]) -> Any:
        """See `FamilyFiles.config_of`."""
        if content.get("model_type") != self.model_type:
            return None
        return CONFIG_MAPPING[self.model_type].from_dict(content)

    def patch_layout(self, config: Any) -> PatchLayout:
        """Sizes of patches and tokens."""
        vision = config.vision_config
        return PatchLayout(vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)

    def facts(
        self, checkpoint: Checkpoint, config: Any, request: ModelRequest, options: Any
    ) -> dict[str, Any]:
        """Bounds of the area of a frame; see `FamilyFiles.facts`."""
        multiple = self.patch_layout(config).multiple
        token, area = multiple**2, options.frame_area
        most = self.most_tokens * token
        largest = area or options.max_pixels or most
        if self.only_lowered and area is None:
            largest = min(largest, most)
        if largest < token:
            raise InputError(
                f"model.{'frame_area' if area else 'max_pixels'} must be at least one token of "
                f"{multiple} x {multiple} pixels, {token}, got {largest}"
            )
        smallest = getattr(options, "min_pixels", None) or self.least_tokens * token
        frames = FrameSpec(
            num_frames=request.num_frames,
            sampling="round",
            decoder=request.decoder,
            max_pixels=largest,
            min_pixels=0 if area else min(smallest, largest),
            multiple=multiple,
            total_pixels=None if area or self.all_tokens is None else self.all_tokens * token,
            area=area,
            times=getattr(options, "frame_times", "own"),
        )
        return {"frames": frames}
