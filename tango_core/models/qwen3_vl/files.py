"""Reads the files of Qwen3-VL and Qwen3.5 checkpoints."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tango_core.errors import InputError
from tango_core.local_files import read_text
from tango_core.models.checkpoints.directory import Checkpoint
from tango_core.models.family import ModelRequest
from tango_core.models.files import Extras, PatchFiles
from tango_core.models.language.chat import QWEN2_5_VL

_USER = "<|im_start|>user\n"
SYSTEM_TURN = QWEN2_5_VL.opening.removesuffix(_USER)
# How a Thinking checkpoint's template opens a reply; in JSON the line break is written out.
_THINKING = re.compile(r"<\|im_start\|>assistant(?:\\+n|\n)<think>")


class StampedFiles(PatchFiles):
    """Dense checkpoints, named as the modules of transformers 5; pixels in [-1, 1].

    Tokens of a frame, and of all frames of a clip, are bounded as by qwen-vl-utils 0.0.14. The chat
    template has no system turn unless one is given.
    """

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


class HybridFiles(StampedFiles):
    """Files of Qwen3.5; the reply begins behind an empty block of thoughts.

    The layers that predict several tokens at once (`mtp`) are not used, as in transformers.
    """

    model_type, title = "qwen3_5", "Qwen3.5"
    kinds = repr(model_type)
    chat = replace(StampedFiles.chat, closing=f"{StampedFiles.chat.closing}<think>\n\n</think>\n\n")
    unused = ("mtp.",)


class Qwen3Files(StampedFiles):
    """Files of Qwen3-VL."""

    model_type, title = "qwen3_vl", "Qwen3-VL"
    kinds = repr(model_type)

    def facts(
        self, checkpoint: Checkpoint, config: Any, request: ModelRequest, options: Any
    ) -> dict[str, Any]:
        """Adds the number of DeepStack rows per token; see `FamilyFiles.facts`."""
        companions = len(config.vision_config.deepstack_visual_indexes)
        return super().facts(checkpoint, config, request, options) | {"companions": companions}

    def extras(self, checkpoint: Checkpoint) -> Extras:
        """Content of tango.json, or its defaults.

        Raises:
            ValueError: If the file is wrong, or this is a Thinking checkpoint and it names none.
        """
        extras = super().extras(checkpoint)
        if extras.chat is self.chat and _THINKING.search(_template(checkpoint)):
            raise InputError(
                f"{checkpoint.name} is a Thinking checkpoint, which reasons "
                "before it answers, longer than the replies that protocols allow; give the "
                "Instruct one, or state chat in tango.json, with <think> at the end of closing"
            )
        return extras


FILES = Qwen3Files()
QWEN3_5 = HybridFiles()


def _template(checkpoint: Checkpoint) -> str:
    """Content of all files that may hold the chat template."""
    names = ("tokenizer_config.json", "chat_template.json", "chat_template.jinja")
    files = (checkpoint.directory / name for name in names)
    return "\n".join(read_text(file) for file in files if file.is_file())
