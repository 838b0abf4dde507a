"""SToP against its release, and what the careful version does otherwise."""

import logging

import official
import pytest
import torch

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.stop import Stop

CLIPS = ["blob12_7", "pan8_7", "static8_7"]
HOSTS = ["visionzip", "fastvid", "holitom", "flashvid"]


def _compress(name, features, retention=0.2, **options):
    return build_method(name, retention=retention, **options).compressor.compress(features)


# Host -> signals in its golden files, and the arrays of positions and tokens.
RELEASED = {
    "visionzip": ({"attention": "attn", "keys": "key_metric"}, "kept_output_order", "tokens"),
    "fastvid": ({"attention": "attn", "frame_embeddings": "global_features"}, "kept", "feat"),
    "holitom": ({"attention": "attn"}, "kept_output_order", "tokens"),
}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("host", RELEASED)
def test_same_tokens_and_sink_scores_as_the_release(host, clip):
    signals, kept, tokens = RELEASED[host]
    arrays, configurations = official.load2(f"stop_{host}_{clip}.npz")
    features = official.features(arrays, **signals)
    for label, settings in configurations.items():
        stop = {"spatial": settings["mu_s"], "legacy": True}
        options = {"stop": stop}
        if host == "holitom":
            options["tau"], stop["temporal"] = settings["tau"], settings["mu_t"]
        ours = _compress(host, features, settings["r"], **options)
        official.assert_same_tokens(ours, arrays[f"{label}/{kept}"], arrays[f"{label}/{tokens}"])
    scores = Stop(0.03, 0.0).sink_scores(features.attention)
    expected = torch.from_numpy(arrays["sink_score"])
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("host", HOSTS)
def test_a_clip_of_one_frame_is_compressed_without_it_and_a_warning_says_so(host, caplog):
    features = make_clip(num_frames=1, grid=(6, 6))
    options = {"inner": None} if host in ("holitom", "flashvid") else {}
    with caplog.at_level(logging.WARNING):
        ours = _compress(host, features, stop={}, **options)
    assert "stop is skipped for a clip of one frame" in caplog.text
    if host == "fastvid":  # ranks by attention with the option, and by saliency without
        plain = _compress(host, features, stop={"spatial": 0.0})
    else:
        plain = _compress(host, features, **options)
    assert torch.equal(ours.indices, plain.indices)
    assert torch.equal(ours.tokens, plain.tokens)


def test_at_the_published_strength_still_attention_is_ranked_backwards():
    """Why one frame is refused: the least attended tokens would be kept."""
    attention = torch.rand(1, 196, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    lowered = Stop(0.03, 0.0).lowered(attention * 196 / 729)
    assert set(lowered[0].topk(16).indices.tolist()) == set(
        attention[0].topk(16, largest=False).indices.tolist()
    )


@pytest.mark.parametrize("host", HOSTS)
def test_strengths_that_are_not_given_are_the_published_ones(host):
    published = {
        "visionzip": (0.03, 0.0),
        "fastvid": (0.02, 0.0),
        "flashvid": (0.02, 0.0),
        "holitom": (0.04, 0.07),
    }[host]
    stop = build_method(host, retention=0.1, stop={}).options["stop"]
    assert (stop["spatial"], stop["temporal"]) == published
    assert (stop["gamma"], stop["legacy"]) == (1.1, False)


def test_holitom_counts_what_really_is_static():
    """The release's share is of fewer static places, so it keeps less than asked."""
    arrays, _ = official.load2("stop_holitom_blob12_7.npz")
    features = official.features(arrays, attention="attn")
    stop = {"spatial": 0.0, "temporal": 0.5}
    asked = round(0.2 * 12 * 49)
    careful = _compress("holitom", features, stop=stop).num_kept
    released = _compress("holitom", features, stop={**stop, "legacy": True}).num_kept
    assert released < asked <= careful


def test_flashvid_lowers_attention_in_scenes_of_several_frames_only():
    features = make_clip(num_frames=6, grid=(5, 5), kind="noise")
    options = {"inner": None, "selection": "v2", "num_segments": 6}
    plain = _compress("flashvid", features, **options)
    careful = _compress("flashvid", features, stop={"spatial": 1.0}, **options)
    released = _compress("flashvid", features, stop={"spatial": 1.0, "legacy": True}, **options)
    assert torch.equal(plain.indices, careful.indices)
    assert not torch.equal(plain.indices, released.indices)
