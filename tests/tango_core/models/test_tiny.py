import numpy as np
import torch
from transformers import LlavaOnevisionForConditionalGeneration

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
