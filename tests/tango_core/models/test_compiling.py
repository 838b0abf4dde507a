"""`model.compile`: what is compiled, that results stay, and what happens without a compiler."""

import logging
from dataclasses import replace

import pytest
import torch
from small_families import SMALL_FAMILIES

from tango_core.compressors import build_method
from tango_core.models import describe_model, kernels, load_encoder, load_language_model
from tango_core.types import Prompt, VideoFrames

SIGNALS = frozenset({"attention", "keys"})
QUESTIONS = [Prompt("", "w1 w2"), Prompt("", "w3 w4 w5")]


class Counted:
    """A backend that runs the graphs it is given as they are."""

    def __init__(self):
        self.graphs = self.calls = 0

    def __call__(self, graph, inputs):
        self.graphs += 1

        def run(*given):
            self.calls += 1
            return graph.forward(*given)

        return run


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    kernels._compiles.cache_clear()
    yield
    torch.compiler.reset()
    kernels._compiles.cache_clear()


@pytest.fixture
def backend(monkeypatch):
    """Graphs are made as for a GPU and run by the stock kernels: nothing is rounded otherwise."""
    counted = Counted()
    monkeypatch.setattr(kernels, "BACKEND", counted)
    return counted


def refuses(graph, inputs):
    """A backend as on a machine without a compiler."""
    raise RuntimeError("no compiler\nmore lines")


FAMILIES = [
    pytest.param(name, marks=pytest.mark.slow if name != "llava-onevision-7b" else ())
    for name in SMALL_FAMILIES
]


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request, small_paths):
    """Name and directory of a small model of a family."""
    return request.param, small_paths[request.param]


def clips(name):
    """Clips of 5 and of 3 frames, for Qwen's towers of two shapes."""
    family = SMALL_FAMILIES[name]
    other = replace(family, grid=(3, 2)) if family.pairs else family
    return family.frames(5), other.frames(3)


def replies(model, features, pruner=None):
    """Of a clip with all and with some tokens, two questions each, eight tokens long."""
    model.engine.eos_ids = frozenset()
    methods = build_method("full"), build_method("uniform", retention=0.4)
    return [
        answer.text
        for method in methods
        for answer in model.answer(
            method.compressor.compress(features), QUESTIONS, pruner=pruner, max_new_tokens=8
        )
    ]


def test_tokens_and_signals_of_a_compiled_tower_are_the_same(saved, backend):
    name, path = saved
    plain = load_encoder(name, path, device="cpu")
    compiled = load_encoder(name, path, device="cpu", compile=True)
    probe = backend.graphs
    longer, shorter = clips(name)
    for frames in (longer, shorter, longer):
        expected, found = plain.encode(frames, SIGNALS), compiled.encode(frames, SIGNALS)
        assert backend.graphs > probe
        for field in ("tokens", "companions", *sorted(SIGNALS)):
            values = getattr(expected, field)
            if values is not None:
                torch.testing.assert_close(getattr(found, field), values, rtol=1e-5, atol=1e-5)
    # All blocks share a program, or one each before and after attention. It is made again for
    # other sizes, and for what is a view of another tensor: six times at most, however deep.
    made = backend.graphs
    assert made - probe <= 6
    compiled.encode(clips(name)[1], SIGNALS)
    assert backend.graphs == made


@pytest.mark.parametrize("pruned", [False, True], ids=["", "pruned"])
def test_replies_of_compiled_layers_are_the_same(saved, backend, pruned):
    name, path = saved
    family = SMALL_FAMILIES[name]
    options = {"num_layers": family.num_layers, "retention": 0.6, **family.inside("fastv")}
    pruner = build_method("fastv", **options).pruner if pruned else None
    plain = load_language_model(name, path, device="cpu")
    compiled = load_language_model(name, path, device="cpu", compile=True)
    longer, shorter = (
        load_encoder(name, path, device="cpu").encode(frames) for frames in clips(name)
    )
    expected = replies(plain, longer, pruner)
    assert backend.calls == 1, "only the probe"
    assert replies(compiled, longer, pruner) == expected
    made = backend.graphs
    assert replies(compiled, shorter, pruner) == replies(plain, shorter, pruner)
    assert backend.graphs == made, "lengths are no part of the program"


def test_without_a_compiler_one_line_says_so_and_both_halves_work(saved, monkeypatch, caplog):
    monkeypatch.setattr(kernels, "BACKEND", refuses)
    name, path = saved
    found = []
    with caplog.at_level(logging.WARNING, "tango_core"):
        for compile in (True, False):
            encoder = load_encoder(name, path, device="cpu", compile=compile)
            model = load_language_model(name, path, device="cpu", compile=compile)
            features = encoder.encode(clips(name)[1])
            found.append((features.tokens, replies(model, features)))
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert record.getMessage().startswith(
        "model.compile does nothing: torch cannot compile for cpu"
    )
    assert "no compiler" in record.getMessage()
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_embedded_model_with_real_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = []
    for compile in (False, True):
        spec = describe_model("tiny", device="cpu", compile=compile)
        encoder, model = load_encoder(spec), load_language_model(spec)
        pixels = torch.zeros(8, *spec.frames.size, 3, dtype=torch.uint8)
        pixels[:, 20:90, 30:70, 1] = 200
        frames = VideoFrames(pixels.numpy(), torch.arange(8.0, dtype=torch.float64).numpy())
        features = encoder.encode(frames, frozenset({"saliency"}))
        video = build_method("tango", retention=0.2).compressor.compress(features)
        answers = model.answer(video, [Prompt("", "What color is the cross?")])
        found.append((features, [answer.text for answer in answers]))
    assert list(tmp_path.rglob("*.so")), "kernels were compiled"
    (plain, said), (compiled, said_compiled) = found
    torch.testing.assert_close(compiled.tokens, plain.tokens, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(compiled.saliency, plain.saliency, rtol=1e-3, atol=1e-6)
    assert said == said_compiled
