"""What surrounds the clip: conversations, marks, and where a reply ends."""

import json

import pytest
from golden_files import GOLDEN_DIR
from qwen_by_hand import some
from qwen_checkpoints import VIDEO_PAD
from releases import PROTOCOLS

from tango_core.types import Question

pytestmark = pytest.mark.usefixtures("no_gradients")
GOLDEN = json.loads((GOLDEN_DIR / "prompts.json").read_text(encoding="utf-8"))


class TestPrompts:
    QUESTION = Question(
        "q", "What does the man hold?", ("A cup.", "A bag.", "A book.", "A pen."), answer=1
    )

    @pytest.mark.parametrize("benchmark", sorted(PROTOCOLS))
    def test_conversations_are_the_published_ones_byte_for_byte(self, model, benchmark):
        prompt = model.layout.lay_out(
            some((2, 2, 2), 3), PROTOCOLS[benchmark]["vlmevalkit"].render(self.QUESTION)
        )
        ids = [*prompt.spans[0].ids, VIDEO_PAD, *prompt.question]
        text = model.layout.tokenizer.decode(ids, skip_special_tokens=False)
        assert text == GOLDEN["vlmevalkit"][benchmark]["qwen2_5_vl"]
        assert list(model.layout.tokenizer(text).input_ids) == ids
