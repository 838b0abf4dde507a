"""Interfaces of a Video LLM: description, vision encoder, language model, requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tango_core.errors import InputError
from tango_core.models.options import EncodeBatch, EngineName, FamilyOptions, SinkList
from tango_core.models.towers.trace import TowerTrace
from tango_core.types import Answer, CompressedVideo, Positions, Prompt, VideoFrames, VisualFeatures
from tango_core.video import FrameSpec, decoder_versions

if TYPE_CHECKING:
    from tango_core.compressors.base import LayerPruner

RequestT = TypeVar("RequestT")
# Called with every error of a request; raises if no other request can be answered after it.
Guard = Callable[[Exception], None]


def no_guard(error: Exception) -> None:
    """A guard that lets all work go on."""


@dataclass(frozen=True, eq=False)
class ClipPrompts:
    """All prompts about one clip under one method; see `LanguageModel.answer`.

    Attributes:
        video: Tokens from a `Compressor`.
        prompts: One per question.
        pruner: In-LLM method; forces one prefill per question.
        positions: Number kept tokens contiguously, or by their position in the full sequence.
        max_new_tokens: Upper bound on generated tokens per question.
        share_prefix: `False` prefills every question from scratch.
    """

    video: CompressedVideo
    prompts: Sequence[Prompt]
    pruner: LayerPruner | None = None
    positions: Positions = "renumbered"
    max_new_tokens: int = 16
    share_prefix: bool = True


class AnswerSession(ABC, Generic[RequestT]):
    """Processes requests about clips and returns their answers in any order.

    Call `add` while it is not `full`, then `step`; a failing request does not affect others.
    """

    @property
    def full(self) -> bool:
        """Whether enough requests wait for the next step; by default one is enough."""
        return self.busy

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether any request is unanswered."""

    def prepared(self, request: RequestT) -> RequestT:
        """Prepare a request before it is added; may run in another thread.

        Raises:
            ValueError: As `add`.
        """
        return request

    @abstractmethod
    def add(self, request: RequestT) -> None:
        """Add a request.

        Raises:
            ValueError: If the request is invalid; other requests are not affected.
        """

    @abstractmethod
    def step(self) -> list[tuple[RequestT, list[Answer] | Exception]]:
        """Do a part of the work; return finished requests with their answers or their error."""


def answers_to(request: RequestT, session: AnswerSession[RequestT]) -> list[Answer]:
    """Answer one request in a new session; raises its error."""
    session.add(request)
    while True:
        for _, found in session.step():
            if isinstance(found, Exception):
                raise found
            return found


class OneByOne(AnswerSession[RequestT]):
    """Answers one request per step.

    Args:
        answer: Answers a request.
        guard: Called with every error first; raises if no other request can be answered after it.
    """

    def __init__(self, answer: Callable[[RequestT], list[Answer]], guard: Guard = no_guard) -> None:
        self._answer = answer
        self._guard = guard
        self._waiting: deque[RequestT] = deque()

    @property
    def busy(self) -> bool:
        """See `AnswerSession`."""
        return bool(self._waiting)

    def add(self, request: RequestT) -> None:
        """See `AnswerSession`."""
        self._waiting.append(request)

    def step(self) -> list[tuple[RequestT, list[Answer] | Exception]]:
        """See `AnswerSession`."""
        request = self._waiting.popleft()
        try:
            return [(request, self._answer(request))]
        except Exception as error:
            self._guard(error)
            return [(request, error)]


@dataclass(frozen=True)
class LinearAttention:
    """Sizes of the linear attention (gated delta net) of a hybrid language model.

    Attributes:
        layers: 0-based indices of the layers with it; all others have full attention.
        num_key_heads: Heads of queries and of keys.
        num_value_heads: Heads of values, each with a recurrent state.
        key_dim: Width of a query or key head.
        value_dim: Width of a value head.
        conv_width: Tokens that the convolution over time reads.
    """

    layers: tuple[int, ...]
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    def __post_init__(self) -> None:
        """Accept a list, as JSON has it."""
        object.__setattr__(self, "layers", tuple(self.layers))

    @property
    def mixed_width(self) -> int:
        """Width of queries, keys and values together, which the convolution reads."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim


@dataclass(frozen=True)
class LLMShape:
    """Sizes of a language model for cost formulas and planning.

    Attributes:
        num_layers: Layers of the language model.
        hidden_size: Width D.
        intermediate_size: Width of the gated MLP.
        num_heads: Number of query heads.
        num_kv_heads: Number of key/value heads.
        head_dim: Width of one head.
        vocab_size: Rows of the output projection.
        gated: Whether full attention has an output gate, as wide as its queries.
        linear: The layers with linear attention; `None` if there are none.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    gated: bool = False
    linear: LinearAttention | None = None

    @classmethod
    def of(cls, text_config: Any) -> LLMShape:
        """Read the sizes from the configuration of a text model."""
        heads = text_config.num_attention_heads
        kinds = getattr(text_config, "layer_types", None) or ()
        linear = None
        if "linear_attention" in kinds:
            linear = LinearAttention(
                tuple(at for at, kind in enumerate(kinds) if kind == "linear_attention"),
                text_config.linear_num_key_heads,
                text_config.linear_num_value_heads,
                text_config.linear_key_head_dim,
                text_config.linear_value_head_dim,
                text_config.linear_conv_kernel_dim,
            )
        return cls(
            num_layers=text_config.num_hidden_layers,
            hidden_size=text_config.hidden_size,
            intermediate_size=text_config.intermediate_size,
            num_heads=heads,
            num_kv_heads=text_config.num_key_value_heads,
            head_dim=getattr(text_config, "head_dim", None) or text_config.hidden_size // heads,
            vocab_size=text_config.vocab_size,
            gated=linear is not None,
            linear=linear,
        )

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of the layers with full attention, which have attention weights and keys."""
        linear = () if self.linear is None else self.linear.layers
        return tuple(layer for layer in range(self.num_layers) if layer not in linear)

    def weights_of(self, layer: int) -> int:
        """Weights of the matrices of a layer: projections and gated MLP."""
        linear, mlp = self.linear, 3 * self.intermediate_size
        if linear is not None and layer in linear.layers:
            values = linear.num_value_heads * linear.value_dim
            return self.hidden_size * (
                linear.mixed_width + 2 * values + 2 * linear.num_value_heads + mlp
            )
        projected = (2 + self.gated) * self.num_heads + 2 * self.num_kv_heads
        return self.hidden_size * (projected * self.head_dim + mlp)

    def token_bytes(self, itemsize: int) -> int:
        """Bytes of a token's keys and values in all layers with full attention."""
        return 2 * len(self.full_layers) * self.num_kv_heads * self.head_dim * itemsize

    def row_bytes(self, itemsize: int) -> int:
        """Bytes of a token's intermediate results in the widest layer."""
        return (4 * self.hidden_size + 3 * self.intermediate_size) * itemsize

    def state_bytes(self, itemsize: int) -> int:
        """Bytes of a sequence's recurrent states, which no length changes: 0 without linear layers.

        Args:
            itemsize: Bytes of a number of the model; the delta rule's states are float32.
        """
        linear = self.linear
        if linear is None:
            return 0
        rule = 4 * linear.num_value_heads * linear.key_dim * linear.value_dim
        return len(linear.layers) * (rule + itemsize * linear.conv_width * linear.mixed_width)


ALL_SIGNALS = frozenset({"attention", "frame_embeddings", "keys", "saliency"})
"""The optional fields of `VisualFeatures` that an encoder may compute."""


@dataclass(frozen=True)
class ModelSpec:
    """Everything known about a model from its configuration alone; no weights are loaded.

    Attributes:
        name: Entry of `MODELS`.
        path: Local directory or hub id.
        revision: Commit of a hub checkpoint; `None` for a local directory.
        digest: Digest of configuration and weights of a local directory (see
            `weights_digest`), or the hub revision; distinguishes checkpoints in cache keys.
        dtype: `"float32" | "float16" | "bfloat16"`, resolved.
        device: `"cpu"`, `"cuda"`, or `"auto"` (resolved in the process that loads the model).
        frames: How clips are sampled and resized for this model.
        llm: Shape of the language model.
        provides: Optional fields of `VisualFeatures` that its encoder can compute.
        saliency_from: Second checkpoint that holds the pooling head, or `None`.
        saliency_source: Checkpoint recommended for `saliency_from`, to add `saliency` and
            `frame_embeddings`; `None` if the family does not support it.
        options: Family-specific options.
        note: A sentence to show with every result (e.g. that the weights are untrained), or "".
        grid: (H, W) of the tokens of a frame; `None` if it depends on the clip.
        sinks: Positions that attract attention in every clip; `None` for the encoder's default.
        encode_batch: Frames that go through the tower together, or `"auto"` (resolved in the
            process that encodes, see `towers/encoder.py`); not part of the identity.
        companions: Number of rows per token that are added after the first layers (DeepStack).
        source_digest: Digest of the sources of a family from outside this package; `None` for the
            families of this package.
        engine: What generates replies: `"native"`, or `"vllm"`; not part of the identity.
    """

    name: str
    path: str
    revision: str | None
    digest: str
    dtype: str
    device: str
    frames: FrameSpec
    llm: LLMShape
    provides: frozenset[str]
    saliency_from: str | None = None
    saliency_source: str | None = None
    options: FamilyOptions = field(default_factory=FamilyOptions)
    note: str = ""
    grid: tuple[int, int] | None = None
    sinks: SinkList | None = None
    encode_batch: EncodeBatch = "auto"
    companions: int = 0
    source_digest: str | None = None
    engine: EngineName = "native"

    def identity(self) -> dict[str, Any]:
        """Fields of the cache fingerprint, without device and locations.

        `digest` covers the second checkpoint too. The version of the video decoder is included,
        because another version may decode different frames. `pooling` is included for every model
        for compatibility with old caches.

        Raises:
            DecoderUnavailableError: If the requested decoder is not installed.
        """
        return {
            "name": self.name,
            "digest": self.digest,
            "dtype": self.dtype,
            "frames": self.frames.identity(),
            "decoder": decoder_versions(self.frames.decoder),
            "pooling": None,
            **self.options.identity(),
            "sinks": None if self.sinks is None else list(self.sinks.positions),
            **({} if self.source_digest is None else {"source_digest": self.source_digest}),
        }


def raise_if_not_provided(spec: ModelSpec, needs: frozenset[str]) -> None:
    """Raise for signals that an encoder cannot compute; the message names the remedy.

    Raises:
        ValueError: If `needs` holds more than `spec.provides`.
    """
    missing = sorted(needs - spec.provides)
    if not missing:
        return
    remedy = ""
    if spec.saliency_source is not None and set(missing) <= {"saliency", "frame_embeddings"}:
        remedy = f"; set model.saliency_from to {spec.saliency_source}, or use score: attention"
    elif "merged_attention" in missing:
        remedy = "; set model.merge_layers, e.g. to '6,21,23', of a LLaVA model"
    raise InputError(
        f"model {spec.name} cannot compute {', '.join(missing)}; it provides "
        f"{', '.join(sorted(spec.provides))}{remedy}"
    )


class VisionEncoder(ABC):
    """Tower, projector and pooling; holds no weight of the language model."""

    spec: ModelSpec

    @abstractmethod
    def encode(self, frames: VideoFrames, needs: frozenset[str] = frozenset()) -> VisualFeatures:
        """Encode one clip.

        Args:
            frames: Pixels already sampled and resized as `spec.frames` says.
            needs: Optional signals to compute, each in `spec.provides`.

        Raises:
            ValueError: If this encoder cannot compute a requested signal, or the frames' size is
                wrong.
        """

    @property
    def num_layers(self) -> int | None:
        """Number of the tower's blocks that the model uses; `None` if `trace` is unsupported."""
        return None

    def trace(self, frames: VideoFrames, layers: Collection[int]) -> TowerTrace:
        """Activations of the tower's layers for a clip.

        Args:
            frames: As `encode`.
            layers: Layers whose activations are returned, from 0 (embeddings) to `num_layers`;
                norms are returned for all layers.

        Raises:
            ValueError: If a layer does not exist, or this encoder does not support tracing.
        """
        raise InputError(
            f"the encoder of model {self.spec.name} does not show its layers; "
            "implement VisionEncoder.trace and num_layers"
        )


class LanguageModel(ABC):
    """Embedding, layers and output projection; holds no weight of the vision tower."""

    spec: ModelSpec

    @abstractmethod
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
        """Answer all prompts about one clip, greedily.

        The part of the sequence up to and including the clip is prefilled once and shared by all
        prompts, unless a pruner depends on the question. `Answer.choice` is `None`; the protocol
        reads the option from the text.

        Args:
            video: Tokens from a `Compressor`.
            prompts: One per question.
            pruner: In-LLM method; forces one prefill per question.
            positions: Number kept tokens contiguously, or by their position in the full sequence.
            max_new_tokens: Upper bound on generated tokens per question.
            share_prefix: `False` prefills every question from scratch (used to measure latency).

        Returns:
            One answer per prompt, in order.
        """

    def session(
        self, batch_tokens: int | None = None, guard: Guard = no_guard
    ) -> AnswerSession[ClipPrompts]:
        """Answer prompts about many clips and methods together.

        By default clips are answered one after another with `answer`.

        Args:
            batch_tokens: Maximum number of tokens in flight, replies included; `None` lets the
                model choose, 1 means one clip after another.
            guard: Called with every error first; raises if no other request can be answered after
                it.
        """
        return OneByOne(lambda asked: self.answer(**vars(asked)), guard)
