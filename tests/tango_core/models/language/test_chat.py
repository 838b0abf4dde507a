from tango_core.models.language.chat import QWEN_1_5
from tango_core.types import Prompt


def test_llava_gets_a_system_turn_and_the_clip_before_all_words():
    """The string that the evaluation harness of the publications builds for MVBench."""
    prompt = Prompt(before="Watch carefully.\n", after="Question: What?\nOptions:\n(A) x")
    assert QWEN_1_5.left() + "<image>" + QWEN_1_5.right(prompt) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<image>\nWatch carefully.\nQuestion: What?\nOptions:\n(A) x<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
