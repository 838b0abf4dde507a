"""Qwen3-VL and Qwen3.5 as families of models: their options and the files of their checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tango_core.errors import InputError
from tango_core.local_files import read_text
from tango_core.models.family import Extras, ModelRequest, PatchFamily
from tango_core.models.language.chat import QWEN2_5_VL
from tango_core.models.options import EmptyBlocks, FrameAreaOptions
from tango_core.video.sampling import FrameTimes

if TYPE_CHECKING:
    from tango_core.models.checkpoints.directory import Checkpoint

_USER = "<|im_start|>user\n"
SYSTEM_TURN = QWEN2_5_VL.opening.removesuffix(_USER)
# How a Thinking checkpoint's template opens a reply; in JSON the line break is written out.
_THINKING = re.compile(r"<\|im_start\|>assistant(?:\\+n|\n)<think>")
_TEMPLATES = ("tokenizer_config.json", "chat_template.json", "chat_template.jinja")


@dataclass(frozen=True)
class StampedOptions(FrameAreaOptions):
    """Options of Qwen3.5, and of Qwen3-VL; the defaults are those of qwen-vl-utils 0.0.14.

    Cached tokens depend on the areas and `frame_times`, which are part of `ModelSpec.frames`.

    Attributes:
        published_pixels: As in `FrameAreaOptions`.
        max_pixels: Largest area of a frame in pixels; `None` for 768 tokens. Long clips get smaller
            frames.
        frame_area: As in `FrameAreaOptions`, instead of both bounds.
        min_pixels: Smallest area of a frame; `None` for 128 tokens.
        empty_blocks: Whether the time and the markers of a pair of frames without kept tokens
            stay, as in vLLM (`"keep"`), or are removed (`"drop"`).
        outer_marks: Whether another pair of markers (`<|vision_start|>`, `<|vision_end|>`) encloses
            the whole clip, as in the processor of transformers 5 but not in the release and vLLM.
        system_turn: Whether the conversation begins with `You are a helpful assistant.`
        frame_times: Times that the prompt states: those of the frames in the file (`"own"`), or
            number of the frame / average rate (`"average_rate"`), as the processor of transformers
            computes them. They differ where the frame rate varies.
    """

    min_pixels: int | None = None
    empty_blocks: EmptyBlocks = "keep"
    outer_marks: bool = False
    system_turn: bool = False
    frame_times: FrameTimes = "own"


@dataclass(frozen=True)
class Qwen3Options(StampedOptions):
    """Options of Qwen3-VL; cached tokens depend on `companions` too.

    Attributes:
        companions: DeepStack rows of merged tokens: merged with the same weights (`"merge"`), or
            those of the token at the merged token's position (`"anchor"`, as in FlashVID's
            release).
    """

    companions: Literal["merge", "anchor"] = "merge"

    def identity(self) -> dict[str, Any]:
        """The rule for companions."""
        return {"companions": self.companions}


class StampedFamily(PatchFamily):
    """Dense checkpoints, named as the modules of transformers 5; pixels in [-1, 1].

    Tokens of a frame, and of all frames of a clip, are bounded as by qwen-vl-utils 0.0.14. The chat
    template has no system turn unless one is given.
    """

    package = "tango_core.models.qwen3_vl"
    chat = replace(QWEN2_5_VL, opening=_USER)
    mean = std = (0.5, 0.5, 0.5)
    least_tokens, most_tokens, all_tokens = 128, 768, 115_200
    only_lowered = True

    def note(self, checkpoint: Checkpoint, request: ModelRequest, options: Any) -> str:
        """Note about the difference of the prompt's times from those of transformers."""
        if options.frame_times == "average_rate":
            return ""
        return (
            "where a video's frame rate varies, prompts state the frames' own times; transformers "
            "states number of the frame / average rate (model.frame_times: average_rate)"
        )


class HybridFamily(StampedFamily):
    """Qwen3.5; the reply begins behind an empty block of thoughts.

    The layers that predict several tokens at once (`mtp`) are not used, as in transformers.
    """

    model_type, title, kinds = "qwen3_5", "Qwen3.5", "'qwen3_5'"
    chat = replace(
        StampedFamily.chat, closing=f"{StampedFamily.chat.closing}<think>\n\n</think>\n\n"
    )
    unused = ("mtp.",)


class Qwen3Family(StampedFamily):
    """Qwen3-VL, with DeepStack rows beside the tokens."""

    model_type, title, kinds = "qwen3_vl", "Qwen3-VL", "'qwen3_vl'"

    def facts(self, config: Any, request: ModelRequest, options: Any) -> dict[str, Any]:
        """Adds the number of DeepStack rows per token; see `CheckpointFamily.facts`."""
        companions = len(config.vision_config.deepstack_visual_indexes)
        return super().facts(config, request, options) | {"companions": companions}

    def extras(self, checkpoint: Checkpoint) -> Extras:
        """Content of tango.json, or its defaults.

        Raises:
            ValueError: If the file is wrong, or this is a Thinking checkpoint and it names none.
        """
        extras = super().extras(checkpoint)
        files = (checkpoint.directory / name for name in _TEMPLATES)
        template = "\n".join(read_text(file) for file in files if file.is_file())
        if extras.chat is self.chat and _THINKING.search(template):
            raise InputError(
                f"{checkpoint.name} is a Thinking checkpoint, which reasons "
                "before it answers, longer than the replies that protocols allow; give the "
                "Instruct one, or state chat in tango.json, with <think> at the end of closing"
            )
        return extras


FAMILY = Qwen3Family(
    Qwen3Options,
    # `qwen3_vl` of lmms-eval, by its defaults; its frames are those of VLMEvalKit.
    harness={"lmms_eval": {"system_turn": True, "min_pixels": 200_704}},
    engines=("native", "vllm"),
)
