"""`ModelFamily`: how models of one architecture are described and loaded."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from tango_core.code_identity import is_outside, source_digest
from tango_core.errors import InputError
from tango_core.models.base import LanguageModel, ModelSpec, VisionEncoder
from tango_core.models.options import EngineName, FamilyOptions
from tango_core.video import DecoderName

if TYPE_CHECKING:
    from torch import Tensor

    from tango_core.models.checkpoints.directory import Checkpoint
    from tango_core.models.files import FamilyFiles

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

    The module that an entry of `MODELS` names holds one as `FAMILY`. Importing that module loads
    neither torch nor transformers: the methods import what they need.

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
class CheckpointFamily(ModelFamily):
    """A family described by data and three modules of a package.

    `files` holds `FILES`, a `FamilyFiles`, or one per family if the package has several; `encoder`
    holds `Encoder`, made from a description and the files; `layout` holds `Layout`, a
    `PromptLayout`.

    Attributes:
        package: Dotted path of the package.
        files_name: Name of the `FamilyFiles` in `files`.
    """

    package: str = ""
    files_name: str = "FILES"

    def files(self) -> FamilyFiles:
        """The reader of the family's checkpoint files."""
        return getattr(  # type: ignore[no-any-return]
            import_module(f"{self.package}.files"), self.files_name
        )

    def describe(self, request: ModelRequest, options: Any) -> ModelSpec:
        """Describe a checkpoint; see `ModelFamily.describe`."""
        return self.files().describe(request, options)

    def load_encoder(self, spec: ModelSpec) -> VisionEncoder:
        """Load the vision half."""
        module = import_module(f"{self.package}.encoder")
        return module.Encoder(spec, self.files())  # type: ignore[no-any-return]

    def load_language_model(self, spec: ModelSpec) -> LanguageModel:
        """Load the language half."""
        from tango_core.models.language_half import load_language_half

        layout = import_module(f"{self.package}.layout").Layout
        return load_language_half(spec, self.files(), layout)

    def load_question_embedder(self, spec: ModelSpec) -> Callable[[str], Tensor]:
        """Open the embedding matrix; no other weight is read."""
        from tango_core.models.language_half import QuestionEmbedder

        return QuestionEmbedder(spec, self.files())

    def half_files(self, checkpoint: Checkpoint, half: Half) -> tuple[str, ...]:
        """Weight files of one half; see `ModelFamily.half_files`."""
        from tango_core.models.checkpoints.weights import files_of_half

        files = self.files()
        files.read_config(checkpoint)
        return files_of_half(checkpoint, files.rename(half))


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
