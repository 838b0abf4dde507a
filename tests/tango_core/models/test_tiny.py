"""The trained weights of the package, asked about held-out clips without video files."""

import re
from importlib.resources import files

import numpy as np
import pytest
import torch
from transformers import LlavaOnevisionForConditionalGeneration

from tango_core.benchmarks.shapes import questions, world
from tango_core.benchmarks.shapes.render import render
from tango_core.compressors import build_method
from tango_core.metrics import clustered_accuracy
from tango_core.models import describe_model, load_encoder, load_language_model, tiny
from tango_core.types import VideoFrames

NUM_CLIPS = 40
NUM_FRAMES = 8


@pytest.fixture(scope="module")
def spec():
    return describe_model("tiny", num_frames=NUM_FRAMES)


@pytest.fixture(scope="module")
def answered(spec):
    """Per question: type, clip, whether the reply is right."""
    encoder, language_model = load_encoder(spec), load_language_model(spec)
    keep_all = build_method("full").compressor
    rows = []
    for index in range(NUM_CLIPS):
        clip = world.clip_at("test", 0, index)
        moments = world.sample_moments(clip.num_moments, NUM_FRAMES)
        seconds = np.array(moments) * world.SECONDS_PER_MOMENT
        video = keep_all.compress(
            encoder.encode(VideoFrames(render(clip, moments), seconds), frozenset())
        )
        asked = questions.pick(questions.questions(clip), 5, world.rng_of("test", 0, index, "pick"))
        prompts = [questions.PROTOCOL.render(question) for question in asked]
        answers = language_model.answer(video, prompts, max_new_tokens=8)
        rows += [
            (
                question.groups["type"],
                index,
                questions.PROTOCOL.read_choice(reply.text, question) == question.answer,
            )
            for question, reply in zip(asked, answers, strict=True)
        ]
    return rows


def test_the_weights_answer_as_well_as_their_card_says(spec, answered):
    card = (files("tango_core") / "tiny" / "README.md").read_text()
    line = re.search(r"\*\*all\*\* \| ([\d.]+) % \| ([\d.]+) to ([\d.]+) %", card)
    promised = float(line[1]) / 100
    _, clips, right = zip(*answered, strict=True)
    found = clustered_accuracy(right, clips)
    assert found.low <= promised <= found.high


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
