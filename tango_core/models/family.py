"""Model families: how models of one architecture are described and loaded.

Recipes are checked and models described without the code of their networks, so importing this
module, or that of a family, loads neither torch nor transformers: methods import what they need.

The optional tango.json beside config.json holds what config.json has no place for:

    {"chat": {"opening": "a", "after_clip": "b", "closing": "c"}, "sinks": [28], "note": "d"}

`chat` is the text around clip and question (`language/chat.py`), `sinks` are positions of the token
grid that attract attention in every clip, `note` is shown with every result. Any key may be left
out.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from tango_core.code_identity import is_outside, source_digest
from tango_core.errors import InputError
from tango_core.models.base import ALL_SIGNALS, LanguageModel, LLMShape, ModelSpec, VisionEncoder
from tango_core.models.language.chat import ChatFormat
from tango_core.models.options import EngineName, FamilyOptions
from tango_core.video import DecoderName, FrameSpec

if TYPE_CHECKING:
    from torch import Tensor

    from tango_core.models.checkpoints.directory import Checkpoint
    from tango_core.models.checkpoints.weights import Rename

Half = Literal["encoder", "language"]


@dataclass(frozen=True)
class ModelRequest:
    """Arguments of `describe_model` common to all families.

    Attributes:
        name: Entry of `MODELS`.
        path: Directory or hub id.
        num_frames: Frames per clip.
        dtype: Data type or `"auto"`.
        device: Device or `"auto"`.
        decoder: Library that decodes videos.
        revision: Revision of a hub checkpoint.
        saliency_from: SigLIP checkpoint with a pooling head.
    """

    name: str
    path: str
    num_frames: int
    dtype: str
    device: str
    decoder: DecoderName
    revision: str | None
    saliency_from: str | None


@dataclass(frozen=True)
class ModelFamily(ABC):
    """Everything this project knows about models of one architecture.

    The module that an entry of `MODELS` names holds one as `FAMILY`.

    Attributes:
        options: Class of the family-specific options.
        harness: Per prefix of a protocol's name, arguments of `describe_model` that its harness
            sets differently from VLMEvalKit, e.g. `{"lmms_eval": {"sampling": "thinned"}}`.
        wording: Name of this family in protocols, for harnesses with family-specific prompts
            (`Protocol.wordings`); "" for the common prompts.
        engines: The engines that generate replies exactly.
    """

    options: type[FamilyOptions] = FamilyOptions
    harness: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    wording: str = ""
    engines: tuple[EngineName, ...] = ("native",)

    @abstractmethod
    def describe(self, request: ModelRequest, options: Any) -> ModelSpec:
        """Describe a checkpoint from its configuration files; no weights are loaded.

        Args:
            request: The checkpoint and its settings.
            options: An instance of `self.options`; it becomes `ModelSpec.options`.

        Raises:
            ValueError: If the checkpoint is of another kind, or an option does not fit it.
            FileNotFoundError: If it does not exist.
        """

    @abstractmethod
    def load_encoder(self, spec: ModelSpec) -> VisionEncoder:
        """Load the vision half; no weight of the language model is read."""

    @abstractmethod
    def load_language_model(self, spec: ModelSpec) -> LanguageModel:
        """Load the language half; no weight of the vision tower is read."""

    def load_question_embedder(self, spec: ModelSpec) -> Callable[[str], Tensor]:
        """Load what turns a question into (M, D) input embeddings, for query-aware methods.

        Raises:
            ValueError: If the family does not support it.
        """
        raise InputError(
            f"model {spec.name} does not offer the embeddings of a question; implement "
            "ModelFamily.load_question_embedder, or use a method that does not read the question"
        )

    def half_files(self, checkpoint: Checkpoint, half: Half) -> tuple[str, ...]:
        """Names of the weight files that one half is loaded from; here all of them.

        Args:
            checkpoint: The checkpoint; only its configuration files need to be local.
            half: The half.

        Raises:
            ValueError: If the checkpoint is of another kind.
        """
        return checkpoint.weight_files()

    def harness_settings(self, protocol: str) -> Mapping[str, Any]:
        """Settings of a protocol's harness that differ from VLMEvalKit's."""
        found = (own for start, own in self.harness.items() if protocol.startswith(start))
        return next(found, {})


@dataclass(frozen=True)
class Extras:
    """Content of the optional tango.json of a checkpoint."""

    chat: ChatFormat
    sinks: Sequence[int] | None = None
    note: str = ""


class CheckpointFamily(ModelFamily):
    """A family that is described by the files of its checkpoints.

    Of its package, `encoder` holds `Encoder`, made from a description and the family; `layout`
    holds `Layout`, a `PromptLayout`.

    Attributes:
        package: Dotted path of the package.
        title: Name of the architecture in messages.
        kinds: Its `model_type`s in messages.
        chat: Chat format of a checkpoint whose tango.json has none.
        mean: Default mean of the pixels per channel.
        std: Default standard deviation of the pixels per channel.
        supported: Settings of the configuration -> values with which the model is computed here, of
            which the first is the default.
        vision: Prefixes of the vision half's tensor names in transformers 5.
        language: Prefixes of the language half's tensor names.
        vision_root: Prefix to remove from the names of the vision half.
        unused: Prefixes of tensors that no half reads.
        renames: Replacements from names in other layouts to those of transformers 5, in order.
        has_newline: Whether the language half holds the embedding of a newline token.
        ranks_itself: Whether the tower ranks tokens without a second checkpoint.
    """

    package: str
    title: str
    kinds: str
    chat: ChatFormat
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    supported: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    vision: tuple[str, ...] = ("model.vision_tower.", "model.multi_modal_projector.")
    language: tuple[str, ...] = ("model.language_model.", "lm_head.")
    unused: tuple[str, ...] = ()
    vision_root: str = "model."
    renames: tuple[tuple[re.Pattern[str], str], ...] = ()
    has_newline = False
    ranks_itself = True

    @abstractmethod
    def config_of(self, checkpoint: Checkpoint, content: dict[str, Any]) -> Any:
        """The configuration for the content of config.json; `None` for another architecture."""

    @abstractmethod
    def facts(self, config: Any, request: ModelRequest, options: Any) -> dict[str, Any]:
        """Fields of `ModelSpec` that depend on the family; `frames` is required.

        Raises:
            ValueError: If an option does not fit the checkpoint.
        """

    def note(self, checkpoint: Checkpoint, request: ModelRequest, options: Any) -> str:
        """A sentence to show with every result, or ""."""
        return ""

    def read_config(self, checkpoint: Checkpoint) -> Any:
        """Configuration of the architecture in transformers.

        Raises:
            ArchitectureError: If the checkpoint is of another architecture.
            ValueError: If this project does not support its variant.
        """
        from tango_core.models.checkpoints.directory import ArchitectureError

        content = checkpoint.config()
        config = self.config_of(checkpoint, content)
        if config is None:
            raise ArchitectureError(
                f"{checkpoint.name} holds a {content.get('model_type')!r} "
                f"model, not {self.kinds}; choose another model.name or give a {self.title} "
                "checkpoint"
            )
        for name, supported in self.supported:
            part, _, setting = name.rpartition(".")
            value = getattr(getattr(config, part) if part else config, setting, supported[0])
            if value not in supported:
                raise InputError(
                    f"{checkpoint.name}: {name} of config.json is {value!r}, but only "
                    f"{' or '.join(map(repr, supported))} is supported; use another checkpoint"
                )
        return config

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
        from tango_core.models.checkpoints.directory import resolve_checkpoint, weights_digest
        from tango_core.models.placement import resolve_dtype

        checkpoint = resolve_checkpoint(request.path, request.revision)
        config = self.read_config(checkpoint)
        second = request.saliency_from
        if second is not None and self.ranks_itself:
            raise InputError(
                f"model.saliency_from is no setting of model {request.name}; leave it out"
            )
        facts = {"provides": ALL_SIGNALS, **self.facts(config, request, options)}
        notes = (self.extras(checkpoint).note, self.note(checkpoint, request, options))
        digest = weights_digest(checkpoint)
        if second is not None:
            head = resolve_checkpoint(second, setting="model.saliency_from")
            digest = f"{digest}+{weights_digest(head)}"
        return ModelSpec(
            name=request.name,
            path=request.path,
            revision=checkpoint.revision,
            digest=digest,
            dtype=resolve_dtype(request.dtype, request.device),
            device=request.device,
            llm=LLMShape.of(config.text_config),
            saliency_from=second,
            options=options,
            note="; ".join(filter(None, notes)),
            **facts,
        )

    def load_encoder(self, spec: ModelSpec) -> VisionEncoder:
        """Load the vision half."""
        module = import_module(f"{self.package}.encoder")
        return module.Encoder(spec, self)  # type: ignore[no-any-return]

    def load_language_model(self, spec: ModelSpec) -> LanguageModel:
        """Load the language half."""
        from tango_core.models.language_half import load_language_half

        return load_language_half(spec, self, import_module(f"{self.package}.layout").Layout)

    def load_question_embedder(self, spec: ModelSpec) -> Callable[[str], Tensor]:
        """Open the embedding matrix; no other weight is read."""
        from tango_core.models.language_half import load_question_embedder

        return load_question_embedder(spec, self)

    def half_files(self, checkpoint: Checkpoint, half: Half) -> tuple[str, ...]:
        """Weight files of one half; see `ModelFamily.half_files`."""
        from tango_core.models.checkpoints.weights import files_of_half

        self.read_config(checkpoint)
        return files_of_half(checkpoint, self.rename(half))


class PatchFamily(CheckpointFamily):
    """A family whose tower takes pairs of frames at native aspect ratio (Qwen's).

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
        """See `CheckpointFamily.config_of`."""
        from transformers import CONFIG_MAPPING

        if content.get("model_type") != self.model_type:
            return None
        return CONFIG_MAPPING[self.model_type].from_dict(content)

    def facts(self, config: Any, request: ModelRequest, options: Any) -> dict[str, Any]:
        """Bounds of the area of a frame; see `CheckpointFamily.facts`."""
        multiple = config.vision_config.patch_size * config.vision_config.spatial_merge_size
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


@dataclass(frozen=True)
class ModelEntry:
    """An entry of `MODELS`, or a user-defined model.

    Attributes:
        family: Dotted path of the module that holds `FAMILY`, of this package or of any other.
        path: Checkpoint used when the caller gives none, a hub id or a directory; `None` if there
            is none, or for the built-in model.
        num_frames: Default number of frames per clip: the setting of the publications.
        embedded: Whether the checkpoint is the one that comes with this package.
    """

    family: str
    path: str | None
    num_frames: int
    embedded: bool = False

    def digest_of_sources(self) -> str | None:
        """16 hexadecimal digits for the sources of a family from outside this package."""
        family = self.load_family()
        parts = (sys.modules[self.family], type(family))
        digests = [source_digest(part) for part in parts if is_outside(part)]
        return sha256("".join(digests).encode()).hexdigest()[:16] if digests else None

    def load_family(self) -> ModelFamily:
        """Import the family."""
        return import_module(self.family).FAMILY  # type: ignore[no-any-return]
