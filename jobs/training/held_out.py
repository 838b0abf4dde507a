"""Evaluate a trained model on held-out clips: accuracy by type, confusions, and saliency."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tango_core.benchmarks.shapes.benchmark import ShapesBenchmark
from tango_core.benchmarks.shapes.questions import PROTOCOL, TYPES
from tango_core.benchmarks.shapes.world import clip_at, sample_moments
from tango_core.compressors import build_method
from tango_core.metrics import Estimate, accuracy_by_group, clustered_accuracy
from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.video import decode_frames


@dataclass(frozen=True)
class Evaluation:
    """Results on held-out clips; the names of the attributes are keys of `trials.json`.

    Attributes:
        overall: Accuracy over all questions.
        by_type: Accuracy by type of question.
        seed: Seed of the benchmark.
        num_frames: Frames per clip.
        unparsed: Number of replies that name no option.
        confusions: By type, the most frequent wrong replies: (right option, reply, number).
        saliency_share: Share of the pooling head's attention on tokens that objects touch.
        object_share: Share of these tokens in all tokens.
    """

    overall: Estimate
    by_type: dict[str, Estimate]
    seed: int
    num_frames: int
    unparsed: int
    confusions: dict[str, list[tuple[str, str, int]]]
    saliency_share: float
    object_share: float


def evaluate_model(
    directory: Path,
    root: Path,
    *,
    clips: int = 200,
    seed: int = 0,
    num_frames: int = 8,
    split: str = "test",
) -> Evaluation:
    """Ask all questions about held-out clips, read from video files, with all tokens kept.

    Args:
        directory: A checkpoint of the embedded model.
        root: Directory of the clips' video files; missing ones are written.
        clips: Number of clips.
        seed: Seed of the benchmark.
        num_frames: Frames per clip.
        split: `"test"`; or `"validation"`, to compare recipes without using the test split.
    """
    spec = describe_model("tiny", str(directory), num_frames=num_frames)
    encoder, language_model = load_encoder(spec), load_language_model(spec)
    compressor = build_method("full").compressor
    right: list[bool] = []
    clusters: list[str] = []
    kinds: list[str] = []
    confusions: dict[str, Counter[tuple[str, str]]] = {kind: Counter() for kind in TYPES}
    unparsed = 0
    saliency_shares, object_shares = [], []
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
        on_objects = _object_tokens(split, seed, index, num_frames, features.grid[1])
        saliency_shares.append(
            float((features.saliency * on_objects).sum() / features.saliency.sum())
        )
        object_shares.append(float(on_objects.float().mean()))
    overall = clustered_accuracy(right, clusters)
    assert overall is not None
    by_type = accuracy_by_group(right, clusters, [{"type": kind} for kind in kinds])["type"]
    return Evaluation(
        overall,
        {kind: by_type[kind] for kind in TYPES if kind in by_type},
        seed,
        num_frames,
        unparsed,
        {
            kind: [(*pair, number) for pair, number in counter.most_common(3)]
            for kind, counter in confusions.items()
            if counter
        },
        float(np.mean(saliency_shares)),
        float(np.mean(object_shares)),
    )


def write_evaluations(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Write evaluations as JSON, for `read_evaluations`."""
    path.write_text(json.dumps([asdict(one) for one in evaluations], indent=2) + "\n")


def read_evaluations(path: Path) -> list[Evaluation]:
    """Read the file of `write_evaluations`.

    Raises:
        FileNotFoundError: If the file is missing: the training has not finished.
    """
    return [_from_json(found) for found in json.loads(path.read_text())]


def _from_json(found: dict[str, Any]) -> Evaluation:
    """An evaluation from its JSON."""
    changed = {
        "overall": Estimate(**found["overall"]),
        "by_type": {kind: Estimate(**accuracy) for kind, accuracy in found["by_type"].items()},
        "confusions": {
            kind: [(right, reply, number) for right, reply, number in pairs]
            for kind, pairs in found["confusions"].items()
        },
    }
    return Evaluation(**{**found, **changed})


def _object_tokens(split: str, seed: int, index: int, num_frames: int, side: int) -> torch.Tensor:
    """(T, side * side) bool: tokens that an object touches, from the clip's description."""
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
