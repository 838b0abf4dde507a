"""`VideoChat`: ask questions about any video without a benchmark, pipeline or cache.

    from tango_core import VideoChat

    chat = VideoChat("llava-onevision-7b", "/models/llava-onevision-7b")
    print(chat.ask("clip.mp4", "What does the man hold?", retention=0.1).text)

Further questions about the same clip reuse its tokens; the model is loaded once.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.compressors import Method, build_method, method_class
from tango_core.compressors.options import option_names
from tango_core.errors import InputError, MissingFileError
from tango_core.latency import LatencyProfile
from tango_core.models import (
    MODELS,
    LanguageModel,
    ModelSpec,
    VisionEncoder,
    describe_model,
    load_encoder,
    load_language_model,
    load_question_embedder,
    model_entry,
)
from tango_core.models.base import raise_if_not_provided
from tango_core.models.checkpoints.directory import ArchitectureError
from tango_core.models.placement import resolve_device
from tango_core.types import Answer, CompressedVideo, Prompt, Question
from tango_core.video import decode_frames

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

DEFAULT_RETENTION = 0.1
_MAX_NEW_TOKENS = 128

# Number of token sets kept for follow-up questions; all tokens of a clip take 45 MB for a 7B model.
_MAX_CLIPS = 16


@dataclass(frozen=True, kw_only=True)
class VideoAnswer(Answer):
    """An answer with its token counts and times.

    Attributes:
        choices: The options of the question.
        tokens_total: Visual tokens of the clip.
        tokens_kept: Visual tokens that the language model received.
        latency_ms: Milliseconds by stage. `decode_video`, `vision` and `compress` are missing for
            follow-up questions, whose clip is already compressed. The first question includes the
            device's warm-up; use `LatencyProfile` for reliable times.
        warnings: Warnings of the video decoder.
        method: Entry of `METHODS` that chose the tokens.
        retention: Requested share of the tokens; `None` for a method without this option.
    """

    choices: tuple[str, ...]
    tokens_total: int
    tokens_kept: int
    latency_ms: Mapping[str, float]
    warnings: tuple[str, ...]
    method: str = ""
    retention: float | None = None

    @property
    def letter(self) -> str | None:
        """The letter of the chosen option, or `None`."""
        return None if self.choice is None else LETTERS[self.choice]


class VideoChat:
    """A Video LLM that is loaded once and answers questions about any video.

    It is loaded with the first question, after its file and its method were checked. Tokens of the
    latest clips are kept, so that further questions about them do not run the encoder.

    Args:
        model: Entry of `MODELS`, a checkpoint (directory or hub id, whose entry is found by its
            configuration), or a `ModelSpec`.
        path: Checkpoint for the entry; `None` for the entry's default.
        protocol: Rules for prompts and for reading replies; `None` for the general rules, or for
            the built-in model those of its benchmark.
        **options: As in `describe_model`: `num_frames`, `device`, `saliency_from` and others.
            LLaVA without `saliency_from` uses SigLIP's published pooling head if a method needs it.

    Raises:
        ValueError: If the model or an option is unknown.
        FileNotFoundError: If the checkpoint does not exist.
    """

    def __init__(
        self,
        model: str | ModelSpec = "tiny",
        path: str | None = None,
        *,
        protocol: Protocol | None = None,
        **options: Any,
    ) -> None:
        self.spec = _describe(model, path, options)
        self._options = None if isinstance(model, ModelSpec) else options
        self.protocol = protocol or _protocol_for(self.spec.name)
        self._clips: OrderedDict[str, tuple[CompressedVideo, tuple[str, ...]]] = OrderedDict()

    @cached_property
    def encoder(self) -> VisionEncoder:
        """The vision encoder."""
        return load_encoder(self.spec)

    @cached_property
    def language_model(self) -> LanguageModel:
        """The language model."""
        return load_language_model(self.spec)

    @cached_property
    def question_embedder(self) -> Callable[[str], Tensor]:
        """The embeddings of questions, for methods that read them."""
        return load_question_embedder(self.spec)

    def ask(
        self,
        video: str | os.PathLike[str],
        question: str,
        choices: Sequence[str] = (),
        *,
        method: str = "tango",
        retention: float | None = None,
        clip: tuple[float, float] | None = None,
        max_new_tokens: int | None = None,
        **options: Any,
    ) -> VideoAnswer:
        """Answer one question about a clip.

        Args:
            video: A video file, or a directory of frames.
            question: Free-form, or about the options in `choices`.
            choices: Options of a multiple-choice question, without letters.
            method: Entry of `METHODS`, or `my_package.my_module:MyMethod`.
            retention: Share of the visual tokens to keep, in (0, 1]; `None` is 0.1 for methods
                that drop any.
            clip: (start, end) in seconds, or `None` for the whole video.
            max_new_tokens: Maximum length of the reply; `None` is 128, or the protocol's limit for
                multiple-choice questions.
            **options: Further options of the method.

        Returns:
            The answer; `status` is `"unparsed"` if the reply does not name one of the options.

        Raises:
            FileNotFoundError: If the video does not exist.
            ValueError: If the video cannot be decoded, or question, method or option is wrong.
            TypeError: If the video is not a path.
        """
        asked = _question(question, choices)
        path = Path(os.path.expanduser(video))
        if not path.exists():
            raise MissingFileError(f"video {video}: no such file or directory")
        if retention is None and "retention" in option_names(method_class(method)):
            retention = DEFAULT_RETENTION
        if retention is not None:
            options = {"retention": retention, **options}
        llm = self.spec.llm
        built = build_method(
            method,
            num_layers=llm.num_layers,
            model=self.spec.name,
            full_layers=llm.full_layers,
            **options,
        )
        self._add_pooling_head(built.compressor.needs)
        profile = LatencyProfile(resolve_device(self.spec.device), warm_up=0)
        with profile.clip() as latency:
            compressed, warnings = self._compress(str(path), clip, built, asked, profile)
            answer = self._answer(compressed, asked, built, max_new_tokens)
            for stage in ("prefill", "ttft", "decode"):
                profile.add(stage, getattr(answer, f"{stage}_ms"))
        return VideoAnswer(
            **{part.name: getattr(answer, part.name) for part in fields(answer)},
            choices=asked.choices,
            tokens_total=compressed.num_total,
            tokens_kept=compressed.num_kept,
            latency_ms=latency.stage_ms,
            warnings=warnings,
            method=method,
            retention=retention,
        )

    def _add_pooling_head(self, needs: frozenset[str]) -> None:
        """Add the published pooling head to the model's description if a method needs it."""
        missing, source = needs - self.spec.provides, self.spec.saliency_source
        by_head = missing <= {"saliency", "frame_embeddings"} and self.spec.saliency_from is None
        if missing and by_head and source is not None and self._options is not None:
            logger.info("ranking tokens with the pooling head of %s", source)
            options = {**self._options, "saliency_from": source}
            self.spec = describe_model(self.spec.name, self.spec.path, **options)
            vars(self).pop("encoder", None)
        raise_if_not_provided(self.spec, needs)

    def _compress(
        self,
        path: str,
        clip: tuple[float, float] | None,
        method: Method,
        asked: Question,
        profile: LatencyProfile,
    ) -> tuple[CompressedVideo, tuple[str, ...]]:
        """A clip's tokens and warnings, from memory if the file has not changed."""
        stat = os.stat(path)
        bounds = None if clip is None else [float(bound) for bound in clip]
        identity = method.compressor.identity()
        reads_question = method.compressor.question_field is not None
        text = method.compressor.question_text(asked) if reads_question else None
        seen = [os.path.abspath(path), stat.st_mtime_ns, stat.st_size, bounds, identity, text]
        key = json.dumps(seen, sort_keys=True)
        if key not in self._clips:
            with profile.stage("decode_video"):
                frames = decode_frames(path, self.spec.frames, clip)
            encoder = self.encoder
            with profile.stage("vision"):
                features = encoder.encode(frames, method.compressor.needs)
            if text is not None:
                embed = self.question_embedder
                features = method.compressor.with_question(features, text, embed)
            with profile.stage("compress"):
                compressed = method.compressor.compress(features)
            if clip is not None:
                compressed = compressed.counted_from(clip[0])
            damage = (f"damaged: {reason}" for reason in frames.damage)
            self._clips[key] = compressed, (*frames.warnings, *damage)
        self._clips.move_to_end(key)
        while len(self._clips) > _MAX_CLIPS:
            self._clips.popitem(last=False)
        return self._clips[key]

    def _answer(
        self, video: CompressedVideo, asked: Question, method: Method, max_new_tokens: int | None
    ) -> Answer:
        """Answer the question and read the chosen option from the reply."""
        prompt, bound = Prompt("", asked.text), _MAX_NEW_TOKENS
        if asked.choices:
            prompt, bound = self.protocol.render(asked), self.protocol.max_new_tokens
        (answer,) = self.language_model.answer(
            video,
            [prompt],
            pruner=method.pruner,
            positions=method.compressor.positions,
            max_new_tokens=bound if max_new_tokens is None else max_new_tokens,
        )
        if not asked.choices:
            return answer
        choice = self.protocol.read_choice(answer.text, asked)
        return replace(answer, choice=choice, status="unparsed" if choice is None else "ok")


def _describe(model: str | ModelSpec, path: str | None, options: dict[str, Any]) -> ModelSpec:
    """Describe a model; for a bare checkpoint, use the entry that fits best."""
    if isinstance(model, ModelSpec):
        if path is not None or options:
            raise TypeError("a ModelSpec is complete: pass a model's name to choose options")
        return model
    is_name = model in MODELS or ":" in model or not ("/" in model or Path(model).is_dir())
    if path is None and not is_name:
        return describe_checkpoint(model, **options)
    return describe_model(model, path, **options)


def describe_checkpoint(model: str, **options: Any) -> ModelSpec:
    """Describe a checkpoint by the entry of `MODELS` that it fits best.

    Args:
        model: A directory or a hub id.
        **options: As in `describe_model`.

    Raises:
        ValueError: If no entry fits.
        FileNotFoundError: If the checkpoint does not exist.
    """
    fitting, refusals = [], []
    for name in (name for name, entry in MODELS.items() if not entry.embedded):
        try:
            fitting.append(describe_model(name, model, **options))
        except ValueError as refusal:
            refusals.append(refusal)
    if not fitting:
        # Errors of the checkpoint's own family are more specific than `ArchitectureError`.
        own = [one for one in refusals if not isinstance(one, ArchitectureError)]
        raise (own or refusals)[0]
    # Several entries may fit; those that the checkpoint was not made for add a note.
    chosen = min(fitting, key=lambda spec: len(spec.note))
    logger.info("%s is read as %s; to change that, give model name and path", model, chosen.name)
    return chosen


def _protocol_for(name: str) -> Protocol:
    """The general rules; for the built-in model those of its benchmark and vocabulary."""
    if model_entry(name).embedded:
        from tango_core.benchmarks.shapes.questions import PROTOCOL
    else:
        from tango_core.benchmarks.custom import PROTOCOL
    return PROTOCOL


def _question(text: str, choices: Sequence[str]) -> Question:
    """Check the question and its options."""
    text, options = text.strip(), tuple(choice.strip() for choice in choices)
    distinct = {choice.casefold() for choice in options} - {""}
    if (
        not text
        or len(distinct) < len(options)
        or len(options) not in (0, *range(2, len(LETTERS) + 1))
    ):
        raise InputError(
            "the question must not be empty, and choices must be none, for a free-form answer, or "
            f"2 to {len(LETTERS)} distinct options, got {text!r} and {list(choices)}"
        )
    return Question("asked", text, options)
