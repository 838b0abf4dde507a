import pytest
from without_cache import answered

from tango_core.models import load_language_model
from tango_core.models.language.batching import MAX_BATCH
from tango_core.models.language.prompt import LaidOutPrompt
from tango_core.types import Prompt

NUM_NEW = 12
PROMPTS = [
    Prompt("", " ".join(f"w{(7 * index + step) % 80}" for step in range(3 + 5 * index % 11)))
    for index in range(MAX_BATCH + 3)
]


@pytest.fixture(scope="module")
def model(checkpoint):
    language_model = load_language_model("llava-onevision-7b", str(checkpoint))
    language_model.engine.eos_ids = frozenset()
    return language_model


@pytest.fixture
def replies(model, monkeypatch):
    """Token ids instead of text, so that every token counts."""
    monkeypatch.setattr(model.engine, "decode_text", lambda ids: " ".join(map(str, ids)))

    def run(prompts: list[LaidOutPrompt], **options) -> list[list[int]]:
        answers = answered(model.engine, prompts, max_new_tokens=NUM_NEW, **options)
        return [[int(token) for token in one.text.split()] for one in answers]

    return run


@pytest.mark.parametrize(
    ("texts", "num_shared"),
    [
        (["w1 w2 w3 w4", "w1 w2 w5", "w1 w2 w3"], 2),
        (["w1 w2", "w1 w2 w3", "w9"], 0),
        (["w1 w2 w3", "w1 w2 w3"], 5),  # a prompt keeps a token of its own, of six with the closing
    ],
)
def test_words_that_all_questions_begin_with_are_prefilled_once(
    model, replies, video, monkeypatch, texts, num_shared
):
    prompts = [model.layout.lay_out(video, Prompt("", text)) for text in texts]
    alone = replies(prompts, share_prefix=False)
    run, lengths = model.engine.layer_loop.run, []

    def counted(hidden, *arguments, **options):
        lengths.append(len(hidden))
        return run(hidden, *arguments, **options)

    monkeypatch.setattr(model.engine.layer_loop, "run", counted)
    assert replies(prompts) == alone
    own = sum(len(prompt.question) - num_shared for prompt in prompts)
    assert lengths[0] == prompts[0].prefix_length + num_shared + own
    assert max(lengths[1:NUM_NEW]) <= len(prompts)  # the rest is decoding


def test_a_reply_ends_with_the_end_of_turn_token(model, replies, video, monkeypatch):
    prompts = [model.layout.lay_out(video, prompt) for prompt in PROMPTS[:5]]
    endless = replies(prompts)
    end = endless[0][3]
    monkeypatch.setattr(model.engine, "eos_ids", frozenset({end}))
    expected = [reply[: reply.index(end) + 1] if end in reply else reply for reply in endless]
    assert len({len(reply) for reply in expected}) > 1
    for share_prefix in (True, False):
        assert replies(prompts, share_prefix=share_prefix) == expected
    answers = model.answer(video, PROMPTS[:5], max_new_tokens=NUM_NEW)
    assert [one.new_tokens for one in answers] == [len(reply) for reply in expected]
