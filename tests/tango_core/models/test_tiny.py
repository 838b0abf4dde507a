import numpy as np
import pytest
import torch
from transformers import LlavaOnevisionForConditionalGeneration

from tango_core.benchmarks.shapes.questions import VOCABULARY
from tango_core.compressors import build_method
from tango_core.models import describe_model, load_encoder, load_language_model, tiny
from tango_core.types import Prompt, VideoFrames


def test_a_clip_is_encoded_compressed_and_asked_about():
    spec = describe_model("tiny", num_frames=4)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, *spec.frames.size, 3), dtype=np.uint8)
    encoder = load_encoder(spec)
    features = encoder.encode(VideoFrames(pixels, np.arange(4.0)), spec.provides)
    assert features.tokens.shape == (4, 64, 128)
    assert str(features.tokens.dtype) == "torch.float32"
    assert features.grid == (8, 8)
    video = build_method("topk", retention=0.1).compressor.compress(features)
    (answer,) = load_language_model(spec).answer(video, [Prompt("", "What color is the circle?")])
    # <|im_start|> user, tokens, newline, five words, <|im_end|> <|im_start|> assistant
    assert answer.prompt_tokens == 2 + video.num_kept + 1 + 5 + 3


def test_the_stock_class_loads_the_same_checkpoint():
    directory = tiny.embedded_checkpoint()
    stock, report = LlavaOnevisionForConditionalGeneration.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    language_model = load_language_model("tiny")
    for name, value in language_model.engine.model.language_model.state_dict().items():
        assert torch.equal(value, stock.model.language_model.state_dict()[name]), name
    head = stock.lm_head.weight
    assert torch.equal(language_model.engine.model.lm_head.weight, head)


def test_words_are_tokens_and_punctuation_is_none():
    tokenizer = tiny.tiny_tokenizer(["A", "red", "What"])

    def tokens(text: str) -> list[str]:
        return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False).input_ids)

    assert tokens("What: red?\nA. red") == ["What", "red", "A", "red"]
    assert tokens("<|im_start|>user<video> blue") == ["<|im_start|>", "user", "<video>", "<unk>"]
    assert tokenizer.decode(tokenizer("red A <|im_end|>").input_ids, skip_special_tokens=True) == (
        "red A"
    )


def test_the_tokenizer_knows_every_word_of_the_world():
    words = VOCABULARY
    tokenizer = tiny.tiny_tokenizer(words)
    ids = tokenizer(" ".join(words), add_special_tokens=False).input_ids
    assert len(ids) == len(set(ids)) == len(words)
    assert tokenizer.unk_token_id not in ids
    assert max(ids) < tiny.tiny_config(len(words)).text_config.vocab_size


def test_a_repeated_word_is_refused():
    with pytest.raises(ValueError, match="distinct"):
        tiny.tiny_tokenizer(["red", "red"])


def test_the_configuration_marks_the_tokens_of_the_tokenizer():
    config, tokenizer = tiny.tiny_config(3), tiny.tiny_tokenizer(["a", "b", "c"])
    assert config.video_token_index == tokenizer.convert_tokens_to_ids("<video>")
    assert config.text_config.eos_token_id == tokenizer.eos_token_id
    assert config.text_config.pad_token_id == tokenizer.pad_token_id
