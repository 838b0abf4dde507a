"""The model card: what the embedded model is, how it was trained, how accurate it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.training.data.curriculum import Phase
from jobs.training.evaluation.held_out import Evaluation
from jobs.training.files import CARD
from jobs.training.recipe import (
    FRAME_BATCH,
    JOINT_PHASES,
    LANGUAGE_PHASES,
    SEED_OFFSET,
    Recipe,
)
from tango_core.benchmarks.shapes.benchmark import ASKED
from tango_core.metrics import Estimate


def write_card(
    output: Path,
    evaluations: Sequence[Evaluation],
    seeds: Sequence[tuple[int, Evaluation]],
    recipe: Recipe,
) -> Path:
    """Write the card of a trained directory.

    Args:
        output: The directory.
        evaluations: Accuracy of its weights; the first by type, the others in one sentence.
        seeds: Training seeds and their accuracy, the directory's own first.
        recipe: Recipe of all these trainings.

    Returns:
        The card's path.
    """
    path = output / CARD
    parts = [
        INTRODUCTION,
        recipe_section(seeds[0][0], recipe),
        _accuracy_section(evaluations),
        _seeds_section(seeds),
        LIMITS,
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def recipe_section(seed: int, recipe: Recipe) -> str:
    """How the model was trained, with the numbers of the recipe."""
    vision, digits, repeat, language, joint = recipe.stages
    return f"""## Recipe

`tango train-tiny --seed {seed}`; clips of the split `train`, each used once per
stage, from the data seeds {seed}, {seed + SEED_OFFSET}, {seed + 2 * SEED_OFFSET} and
{seed + 3 * SEED_OFFSET}. AdamW (betas 0.9 and 0.98, weight decay
0.05 on matrices, gradients clipped to norm 1), linear warm-up, cosine down to 3 %. No token is
dropped in training and nothing was tuned in favour of one pruning method.

One choice was made because of pruning methods: in training the positions of visual tokens grow by
1, 1/2, 1/4, 1/8 or 1/16 (variable visual position encoding, as in InternVL3). Without it the
language model read the order of scenes from absolute distances, and failed with every method that
renumbers the kept tokens: with 10 % random tokens `order` fell from 100 % to 31 % (32 questions),
and stayed at 100 % with the same tokens at their old positions.

| stage | trains | on | steps | highest learning rate |
|---|---|---|---|---|
| vision | tower and pooling head, then frozen | {FRAME_BATCH} labelled frames per step: \
labels of every patch and of the frame | {vision.steps} | {vision.rate:g} |
| digits | the same | frames with more digits | {digits.steps} | {digits.rate:g} |
| again | the same | the same, other frames | {repeat.steps} | {repeat.rate:g} |
| drawn | language model | synthetic tokens: sums of word embeddings, from descriptions of clips; \
{_frames(LANGUAGE_PHASES)} frames | {language.steps} | {language.rate:g} |
| projector | projector | least squares on {recipe.fit_frames} frames, to the \
synthetic tokens | - | - |
| seen | projector and language model | rendered clips of {_frames(JOINT_PHASES)} frames | \
{joint.steps} | {joint.rate:g} |

Initially, heads of the first blocks of the tower attend to neighbouring patches, and heads of the
language model to tokens with equal content; then everything is trained. Replies are the option's
text, then its letter. Types of questions in all phases: {", ".join(ASKED)}.
"""


def _frames(phases: Sequence[Phase]) -> str:
    """The numbers of frames in a curriculum, as words of a sentence."""
    lengths = sorted({length for phase in phases for length in phase.frames})
    return ", ".join(str(length) for length in lengths[:-1]) + f" or {lengths[-1]}"


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


INTRODUCTION = """# The embedded model

A LLaVA-OneVision of about two million parameters for the embedded world of shapes: SigLIP tower
with its pooling head, two-layer projector, Qwen2 language model. It makes pruning methods
measurable on any laptop, with real layers and real video files.

## World

Clips of 16 moments, half a second apart, 128 x 128 pixels: coloured icons, digits and flashes in
one to three scenes with textured, noisy backgrounds; the camera pans, zooms or shakes in half of
the clips. A frame becomes 16 x 16 patches and 8 x 8 tokens. `tango_core/benchmarks/README.md`
describes it.
"""

LIMITS = """## Not for

It answers the questions of this world and no others: its vocabulary has fewer than a hundred words,
and it was not trained on photographs. Results on it show how methods behave where answers lie in
few tokens; they do not show the accuracy of large models on real videos.
"""
