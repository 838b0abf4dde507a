"""The model card: what the embedded model is, how it was trained, how accurate it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.training.curriculum import Phase
from jobs.training.held_out import Evaluation
from jobs.training.recipe import (
    FRAME_BATCH,
    JOINT_PHASES,
    LANGUAGE_PHASES,
    SEED_OFFSET,
    Recipe,
)
from tango_core.benchmarks.shapes.questions import ASKED
from tango_core.metrics import Estimate


def write_card(
    output: Path,
    evaluations: Sequence[Evaluation],
    seeds: Sequence[tuple[int, Evaluation]],
    recipe: Recipe,
) -> Path:
    """Write the card of a trained directory, from `card.md`.

    Args:
        output: The directory.
        evaluations: Accuracy of its weights; the first by type, the others in one sentence.
        seeds: Training seeds and their accuracy, the directory's own first.
        recipe: Recipe of all these trainings.

    Returns:
        The card's path.
    """
    path = output / "README.md"
    text = card_text(seeds[0][0], recipe, _accuracy_section(evaluations), _seeds_section(seeds))
    path.write_text(text, encoding="utf-8")
    return path


def card_text(seed: int, recipe: Recipe, accuracy: str, seeds: str) -> str:
    """The card with the numbers of a recipe, around the sections about accuracy and seeds."""
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
    """The numbers of frames in a curriculum, as words of a sentence."""
    lengths = sorted({length for phase in phases for length in phase.frames})
    return ", ".join(str(length) for length in lengths[:-1]) + f" or {lengths[-1]}"


def _not_asked(phases: Sequence[Phase]) -> str:
    """The types of questions in a curriculum that the benchmark does not ask, for a sentence."""
    kinds = dict.fromkeys(kind for phase in phases for kind in phase.kinds)
    return " and ".join(kind for kind in kinds if kind not in ASKED)


def _accuracy_section(evaluations: Sequence[Evaluation]) -> str:
    """The accuracy of the weights in the directory."""
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
    """The accuracy of every training seed."""
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
