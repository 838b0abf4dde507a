"""Accuracy of a trained model on held-out clips, and the model card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter

from jobs.training.data import Phase
from jobs.training.stages import FRAME_BATCH, JOINT_PHASES, LANGUAGE_PHASES, SEED_OFFSET, Recipe
from tango_core.benchmarks.shapes.benchmark import ShapesBenchmark
from tango_core.benchmarks.shapes.questions import ASKED, PROTOCOL, TYPES
from tango_core.benchmarks.shapes.world import clip_at, sample_moments
from tango_core.compressors import build_method
from tango_core.metrics import Estimate, clustered_accuracy
from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.video import decode_frames


@dataclass(frozen=True)
class Evaluation:
    """Results on held-out clips; the attribute names are keys of the JSON file.

    Attributes:
        overall: Accuracy over all questions.
        by_type: Accuracy by type of question.
        seed: Seed of the benchmark.
        num_frames: Frames per clip.
        unparsed: Number of replies that do not name an option.
        confusions: By type, the most frequent wrong replies: (right option, reply, number).
        saliency_share: Share of the pooling head's attention on tokens that objects touch.
        object_share: Share of these tokens among all tokens.
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
        directory: A checkpoint of the built-in model.
        root: Directory of the clips' video files; missing ones are written.
        clips: Number of clips.
        seed: Seed of the benchmark.
        num_frames: Frames per clip.
        split: `"test"`, or `"validation"` to compare recipes without using the test split.
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
    by_type: dict[str, Estimate] = {}
    for kind in TYPES:
        own = [at for at, one in enumerate(kinds) if one == kind]
        found = clustered_accuracy([right[at] for at in own], [clusters[at] for at in own])
        if found is not None:
            by_type[kind] = found
    return Evaluation(
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
        float(np.mean(saliency_shares)),
        float(np.mean(object_shares)),
    )


_EVALUATIONS = TypeAdapter(list[Evaluation])


def write_evaluations(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Write evaluations as JSON, for `read_evaluations`."""
    path.write_bytes(_EVALUATIONS.dump_json(list(evaluations), indent=2) + b"\n")


def read_evaluations(path: Path) -> list[Evaluation]:
    """Read the file of `write_evaluations`.

    Raises:
        FileNotFoundError: If the file is missing: the training has not finished.
    """
    return _EVALUATIONS.validate_json(path.read_bytes())


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


def write_card(
    output: Path,
    evaluations: Sequence[Evaluation],
    seeds: Sequence[tuple[int, Evaluation]],
    recipe: Recipe,
) -> Path:
    """Write the card of a trained directory, from `card.md`.

    Args:
        output: The directory.
        evaluations: Evaluations of its weights; the first is shown by type, the others in one
            sentence.
        seeds: Training seeds and their accuracy, the directory's own first.
        recipe: Common recipe of these trainings.

    Returns:
        The card's path.
    """
    path = output / "README.md"
    text = card_text(seeds[0][0], recipe, _accuracy_section(evaluations), _seeds_section(seeds))
    path.write_text(text, encoding="utf-8")
    return path


def card_text(seed: int, recipe: Recipe, accuracy: str, seeds: str) -> str:
    """Fill in the card's template: the recipe, and the sections about accuracy and seeds."""
    template = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    vision, digits, repeat, language, joint = recipe.stages
    return template.format(
        **{f"seed_{number + 1}": seed + number * SEED_OFFSET for number in range(4)},
        vision=vision,
        digits=digits,
        repeat=repeat,
        language=language,
        joint=joint,
        accuracy=accuracy,
        seeds=seeds,
        frame_batch=FRAME_BATCH,
        fit_frames=recipe.fit_frames,
        language_frames=_frames(LANGUAGE_PHASES),
        joint_frames=_frames(JOINT_PHASES),
        asked=", ".join(ASKED),
        asked_in_drawn=_not_asked(LANGUAGE_PHASES),
    )


def _frames(phases: Sequence[Phase]) -> str:
    """The numbers of frames in a curriculum as an enumeration."""
    lengths = sorted({length for phase in phases for length in phase.frames})
    return ", ".join(str(length) for length in lengths[:-1]) + f" or {lengths[-1]}"


def _not_asked(phases: Sequence[Phase]) -> str:
    """The curriculum's question types that the benchmark does not ask, as an enumeration."""
    kinds = dict.fromkeys(kind for phase in phases for kind in phase.kinds)
    return " and ".join(kind for kind in kinds if kind not in ASKED)


def _accuracy_section(evaluations: Sequence[Evaluation]) -> str:
    """The section about the accuracy of the weights in the directory."""
    evaluation, *further = evaluations
    overall = evaluation.overall
    lines = [
        "## Accuracy with all tokens\n",
        f"Clips of the split `test`, seed {evaluation.seed}, which are not used in training, "
        f"read from H.264 files, {evaluation.num_frames} frames; weights as shipped, stored in "
        "float16. Intervals are 95 %, with clips as clusters. Guessing gives 25 %.\n",
        "| questions | right | interval | asked | clips |",
        "|---|---|---|---|---|",
        _line("**all**", overall),
    ]
    lines += [_line(f"`{kind}`", accuracy) for kind, accuracy in evaluation.by_type.items()]
    lines.append(
        f"\nReplies that name no option: {evaluation.unparsed}. The pooling head puts "
        f"{100 * evaluation.saliency_share:.1f} % of its attention (p-attn) on tokens that an "
        f"object touches, which are {100 * evaluation.object_share:.1f} % of all tokens: "
        f"{evaluation.saliency_share / max(evaluation.object_share, 1e-9):.1f} times their share.\n"
    )
    if evaluation.confusions:
        lines += ["| type | most frequent mistakes: right option → reply |", "|---|---|"]
        for kind, pairs in evaluation.confusions.items():
            text = ", ".join(f"{right} → {reply} ({number})" for right, reply, number in pairs)
            lines.append(f"| `{kind}` | {text} |")
        lines.append("")
    if further:
        found = "; ".join(
            f"seed {one.seed} with {one.num_frames} frames: {100 * one.overall.value:.1f} % of "
            f"{one.overall.num_questions}, no type below "
            f"{100 * min(kind.value for kind in one.by_type.values()):.1f} %"
            for one in further
        )
        lines.append(f"Other held-out clips and numbers of frames: {found}.\n")
    return "\n".join(lines)


def _line(name: str, accuracy: Estimate) -> str:
    """A row of the table of accuracies."""
    return (
        f"| {name} | {100 * accuracy.value:.1f} % | {100 * accuracy.low:.1f} to "
        f"{100 * accuracy.high:.1f} % | {accuracy.num_questions} | {accuracy.num_clusters} |"
    )


def _seeds_section(seeds: Sequence[tuple[int, Evaluation]]) -> str:
    """The section about the accuracy of every training seed."""
    if len(seeds) == 1:
        return "One training seed was run; how much seeds differ is not known.\n"
    kinds = list(seeds[0][1].by_type)
    lines = [
        "## Training seeds\n",
        "The same recipe with other seeds, on the clips of the table above; the weights of the "
        "first one are shipped.\n",
        "| training seed | all | " + " | ".join(kinds) + " |",
        "|---" * (len(kinds) + 2) + "|",
    ]
    for seed, evaluation in seeds:
        values = [evaluation.overall, *(evaluation.by_type[kind] for kind in kinds)]
        lines.append(f"| {seed} | " + " | ".join(f"{100 * v.value:.1f}" for v in values) + " |")
    return "\n".join(lines) + "\n"
