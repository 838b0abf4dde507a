import json

import numpy as np
import pytest
import torch
from llava_checkpoints import IMAGE_SIZE, WIDTH, build_llava, save_llava
from PIL import Image
from transformers import LlavaOnevisionImageProcessorPil

from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.types import CompressedVideo, Prompt, VideoFrames

NAME = "llava-onevision-7b"


@pytest.fixture(scope="module")
def encoder(checkpoint):
    return load_encoder(NAME, str(checkpoint))


def normalised(frames: VideoFrames) -> torch.Tensor:
    values = torch.tensor(frames.pixels).permute(0, 3, 1, 2).float()
    return (values * (1 / 255) - 0.5) / 0.5


@pytest.mark.parametrize("layer", [-1, -2])
@torch.no_grad()
def test_tokens_are_the_stock_video_features(tmp_path, frames, layer):
    stock = build_llava(feature_layer=layer)
    path = str(save_llava(stock, tmp_path))
    tokens = load_encoder(NAME, path).encode(frames).tokens
    expected = stock.model.get_video_features(normalised(frames)[None]).pooler_output
    assert tokens.shape == (3, 16, WIDTH)
    torch.testing.assert_close(tokens.flatten(0, 1), expected[0, :-1], rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_a_larger_step_interpolates_the_stock_projection_to_fewer_tokens(stock, checkpoint, frames):
    features = load_encoder(NAME, str(checkpoint), pooling_step=3).encode(frames)
    model = stock.model
    states = model.vision_tower(normalised(frames), output_hidden_states=True).hidden_states
    projected = model.multi_modal_projector(states[-1]).mT.reshape(3, WIDTH, 7, 7)
    expected = torch.nn.functional.interpolate(projected, size=(3, 3), mode="bilinear")
    assert features.grid == (3, 3)
    torch.testing.assert_close(features.tokens, expected.flatten(2).mT, rtol=1e-5, atol=1e-6)


def test_published_sinks_belong_to_their_grid_only(tmp_path, encoder, frames):
    assert encoder.encode(frames).sinks == ()
    assert encoder._sinks_on((14, 14)) == (28, 27, 41, 169, 11, 12)
    save_llava(build_llava(), tmp_path)
    (tmp_path / "tango.json").write_text(json.dumps({"sinks": [3, 0]}))
    assert load_encoder(NAME, str(tmp_path)).encode(frames).sinks == (3, 0)


def test_code_inside_a_checkpoint_is_not_run_even_if_somebody_would_say_yes(
    tmp_path, stock, monkeypatch
):
    save_llava(stock, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    own = {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": "Own"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | own))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nOwn = None")
    monkeypatch.setattr("builtins.input", lambda _: "y")
    with pytest.raises(ValueError, match="its tokenizer cannot be read") as error:
        load_language_model(NAME, str(tmp_path))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"chatt": {}}, "unexpected keyword argument 'chatt'; its keys are chat"),
        ({"chat": {"opening": ""}}, "missing 2 required positional arguments: 'after_clip'"),
    ],
)
def test_mistakes_in_tango_json_are_reported(tmp_path, stock, content, words):
    path = save_llava(stock, tmp_path)
    (path / "tango.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=words):
        describe_model(NAME, str(path))


def test_pixels_are_normalised_as_the_stock_processor_does(encoder):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (1, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    processor = LlavaOnevisionImageProcessorPil(
        do_resize=False,
        do_pad=False,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        image_grid_pinpoints=[[IMAGE_SIZE, IMAGE_SIZE]],
    )
    stock = processor(Image.fromarray(pixels[0]), return_tensors="np")["pixel_values"][0, 0]
    own = encoder._normalise(torch.tensor(pixels))[0]
    np.testing.assert_allclose(own.numpy(), stock, atol=1e-6)


@pytest.fixture(scope="module")
def language_model(checkpoint):
    return load_language_model(NAME, str(checkpoint))


def test_original_positions_are_those_of_the_full_sequence(language_model, video):
    full = CompressedVideo(torch.zeros(48, WIDTH), torch.arange(48), video.grid, video.timestamps)
    everything = language_model.layout.lay_out(full, Prompt("", "w1"), "original")
    assert everything.positions.tolist() == list(range(len(everything)))
    kept = language_model.layout.lay_out(video, Prompt("", "w1"), "original")
    places = [*range(2), *(video.indices + 2).tolist(), *range(50, len(everything))]
    assert kept.positions.tolist() == places
