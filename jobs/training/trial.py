"""Ask the finished model about held-out clips: accuracy by type, confusions, and its saliency."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tango_core.benchmarks.shapes.benchmark import (
    PROTOCOL,
    TYPES,
    ShapesBenchmark,
    clip_at,
    sample_moments,
)
from tango_core.compressors import build_method
from tango_core.metrics import Accuracy, clustered_accuracy
from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.video import decode_frames


@dataclass(frozen=True)
class Trial:
    """What was found on held-out clips.

    Attributes:
        overall: Accuracy over all questions.
        by_type: Accuracy by type of question.
        seed: Of the benchmark.
        num_frames: Frames per clip.
        unparsed: Replies that name no option.
        confusions: By type, the most frequent wrong (right option, reply) pairs.
        saliency_share: Share of the pooling head's attention that falls on tokens of things.
        object_share: Share of tokens that things touch.
    """

    overall: Accuracy
    by_type: dict[str, Accuracy]
    seed: int
    num_frames: int
    unparsed: int
    confusions: dict[str, list[tuple[str, str, int]]]
    saliency_share: float
    object_share: float


def try_model(
    directory: Path,
    root: Path,
    *,
    clips: int = 200,
    seed: int = 0,
    num_frames: int = 8,
    split: str = "test",
) -> Trial:
    """Ask all questions of held-out clips, from their video files, all tokens kept.

    Args:
        directory: A checkpoint of the embedded model.
        root: Where the clips' files are or are written.
        clips: How many.
        seed: Of the benchmark.
        num_frames: Frames per clip.
        split: `"test"`, or `"validation"` while the recipe is being changed.
    """
    spec = describe_model("tiny", str(directory), num_frames=num_frames)
    encoder, language_model = load_encoder(spec), load_language_model(spec)
    compressor = build_method("full").compressor
    right: list[bool] = []
    clusters: list[str] = []
    kinds: list[str] = []
    confusions: dict[str, Counter[tuple[str, str]]] = {kind: Counter() for kind in TYPES}
    unparsed = 0
    masses, shares = [], []
    for index, item in enumerate(ShapesBenchmark(str(root), split, seed).items(clips)):
        frames = decode_frames(item.path, spec.frames)
        features = encoder.encode(frames, frozenset({"saliency"}))
        answers = language_model.answer(
            compressor.compress(features),
            [PROTOCOL.render(question) for question in item.questions],
            max_new_tokens=PROTOCOL.max_new_tokens,
        )
        for question, answer in zip(item.questions, answers, strict=True):
            assert question.answer is not None
            choice = PROTOCOL.read_choice(answer.text, question)
            unparsed += choice is None
            kind = question.groups["type"]
            right.append(choice == question.answer)
            clusters.append(item.video_id)
            kinds.append(kind)
            if choice != question.answer:
                confusions[kind][(question.choices[question.answer], answer.text)] += 1
        assert features.saliency is not None
        touched = _touched(split, seed, index, num_frames, features.grid[1])
        masses.append(float((features.saliency * touched).sum() / features.saliency.sum()))
        shares.append(float(touched.float().mean()))
    table = np.array(kinds)
    overall = clustered_accuracy(right, clusters)
    assert overall is not None
    by_type = {}
    for kind in dict.fromkeys(sorted(kinds, key=list(TYPES).index)):
        rows = np.flatnonzero(table == kind)
        found = clustered_accuracy(np.array(right)[rows], np.array(clusters)[rows])
        assert found is not None
        by_type[kind] = found
    return Trial(
        overall,
        by_type,
        seed,
        num_frames,
        unparsed,
        {
            kind: [(*pair, number) for pair, number in counter.most_common(3)]
            for kind, counter in confusions.items()
            if counter
        },
        float(np.mean(masses)),
        float(np.mean(shares)),
    )


def write_trials(trials: Sequence[Trial], path: Path) -> None:
    """Write what was found, for `read_trials`."""
    path.write_text(json.dumps([asdict(trial) for trial in trials], indent=2) + "\n")


def read_trials(path: Path) -> list[Trial]:
    """Read what `write_trials` wrote.

    Raises:
        FileNotFoundError: If the file is not there: the training has not finished.
    """
    return [_as_trial(found) for found in json.loads(path.read_text())]


def _as_trial(found: dict[str, Any]) -> Trial:
    """A trial from its JSON."""
    changed = {
        "overall": Accuracy(**found["overall"]),
        "by_type": {kind: Accuracy(**accuracy) for kind, accuracy in found["by_type"].items()},
        "confusions": {
            kind: [(right, reply, number) for right, reply, number in pairs]
            for kind, pairs in found["confusions"].items()
        },
    }
    return Trial(**{**found, **changed})


def _touched(split: str, seed: int, index: int, num_frames: int, side: int) -> torch.Tensor:
    """(T, side * side) bool: tokens that a thing touches, from the clip's description."""
    clip = clip_at(split, seed, index)
    moments = sample_moments(clip.num_moments, num_frames)
    touched = torch.zeros(len(moments), side, side, dtype=torch.bool)
    pixels = 128 / side
    for row, moment in enumerate(moments):
        for box in clip.boxes(moment):
            top, left = int(box.top // pixels), int(box.left // pixels)
            bottom, right = int(-(-box.bottom // pixels)), int(-(-box.right // pixels))
            touched[row, top:bottom, left:right] = True
    return touched.flatten(1)
