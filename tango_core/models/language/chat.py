"""Chat formats: text before the clip, after it, and after the question."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tango_core.types import Prompt


@dataclass(frozen=True)
class ChatFormat:
    """A conversation of one user turn with the clip at its start, as LLaVA was trained.

    The two sides of the clip are tokenised separately, as the original code does, so that no token
    spans it.

    Attributes:
        opening: Text before the clip.
        after_clip: Text between the clip and the prompt.
        closing: Text after the prompt, up to where the reply begins.
    """

    opening: str
    after_clip: str
    closing: str

    def right(self, prompt: Prompt, about_clip: str = "") -> str:
        """Text after the clip; for LLaVA and InternVL, also the protocol's text before the clip.

        Args:
            prompt: The prompt that the protocol built.
            about_clip: Text about the clip itself, in front of the prompt (LLaVA-Video).
        """
        return self.after_clip + about_clip + prompt.before + prompt.after + self.closing


# Template "qwen_1_5" of LLaVA-NeXT. The chat template inside llava-hf checkpoints has no system
# turn; the published accuracies were measured with it.
QWEN_1_5 = ChatFormat(
    opening="<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n",
    after_clip="\n",
    closing="<|im_end|>\n<|im_start|>assistant\n",
)

# The chat template of Qwen2.5-VL with its default system turn. The tokens around the clip
# (<|vision_start|>, <|vision_end|>) come from the configuration as ids.
QWEN2_5_VL = replace(QWEN_1_5, after_clip="")

# Template "internvl2_5" of InternVL, 2.5 to 3.5, with its default system turn ("You are InternVL, a
# multimodal model by Shanghai AI Laboratory, Tsinghua University and others"). The line break ends
# the line of the last frame.
INTERNVL2_5 = ChatFormat(
    opening="<|im_start|>system\n你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及"  # noqa: RUF001
    "多家合作单位联合开发的多模态大语言模型。<|im_end|>\n<|im_start|>user\n",
    after_clip="\n",
    closing=QWEN_1_5.closing,
)
