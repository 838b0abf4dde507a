"""The model card: what the embedded model is, how it was made, how well it answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.training.recipe import DRAWN, FRAME_BATCH, FRESH, SEEN, Recipe
from jobs.training.trial import Trial
from tango_core.benchmarks.shapes.benchmark import ASKED
from tango_core.metrics import Accuracy

CARD = "README.md"


def write_card(
    output: Path, trials: Sequence[Trial], seeds: Sequence[tuple[int, Trial]], recipe: Recipe
) -> Path:
    """Write the card of a trained directory.

    Args:
        output: The directory.
        trials: Accuracy of its weights; the first one in full, of the others the sum.
        seeds: Training seeds and their accuracy, beginning with the directory's own.
        recipe: What all were trained with.

    Returns:
        The card's path.
    """
    path = output / CARD
    parts = [
        _HEAD,
        _recipe_section(seeds[0][0], recipe),
        _accuracy_section(trials),
        _seeds_section(seeds),
        _LIMITS,
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _recipe_section(seed: int, recipe: Recipe) -> str:
    """How it was made, from the recipe itself."""
    vision, digits, again = recipe.vision, recipe.digits, recipe.again
    drawn, seen = recipe.drawn, recipe.seen
    return f"""## Recipe

`tango train-tiny --seed {seed}`; clips of the split `train`, drawn as they are needed, each once
per stage, from the data seeds {seed}, {seed + FRESH}, {seed + 2 * FRESH} and
{seed + 3 * FRESH}. AdamW (betas 0.9 and 0.98, weight decay
0.05 on matrices, gradients clipped to norm 1), linear warm-up, cosine down to 3 %. No token is
dropped in training and nothing was tuned for one pruning method against another.

One thing was added because of what methods showed: positions of visual tokens are 1, 1/2, 1/4, 1/8
or 1/16 apart in training (variable visual position encoding, as in InternVL3). Without it the
decoder read the order of scenes from absolute distances and lost it with every method that counts
the kept tokens anew: with 10 % random tokens `order` fell from 100 % to 31 % (32 questions), and
stayed at 100 % with the same tokens at their old positions.

| stage | learns | from | steps | highest rate |
|---|---|---|---|---|
| vision | tower and pooling head, then frozen | {FRAME_BATCH} labelled frames per step: what \
is in every patch, what is in the frame | {vision.steps} | {vision.rate:g} |
| digits | the same | frames with more digits | {digits.steps} | {digits.rate:g} |
| again | the same | the same, other frames | {again.steps} | {again.rate:g} |
| drawn | decoder | tokens drawn as mixtures of words from descriptions of clips, \
{_frames(DRAWN)} frames | {drawn.steps} | {drawn.rate:g} |
| projector | projector | least squares on {recipe.fit_frames} frames: tokens as drawn | - | - |
| seen | projector and decoder | rendered clips of {_frames(SEEN)} frames | {seen.steps} | \
{seen.rate:g} |

Heads of the first blocks start by looking at neighbours, heads of the decoder by looking up equal
contents; everything is trained from there. Replies are the option's text, then its letter. Types
asked to the end: {", ".join(ASKED)}.
"""


def _frames(plan: Sequence[object]) -> str:
    """Numbers of frames in a plan."""
    lengths = sorted({length for phase in plan for length in phase.frames})  # type: ignore[attr-defined]
    return ", ".join(str(length) for length in lengths[:-1]) + f" or {lengths[-1]}"


def _accuracy_section(trials: Sequence[Trial]) -> str:
    """The table of the weights in the directory."""
    trial, *further = trials
    overall = trial.overall
    lines = [
        "## Accuracy with all tokens\n",
        f"Clips of the split `test`, seed {trial.seed}, which training never sees, from their "
        f"H.264 files, {trial.num_frames} frames; weights as shipped, stored in float16. Intervals "
        "are 95 %, with clips as clusters. Guessing gives 25 %.\n",
        "| questions | right | interval | asked | clips |",
        "|---|---|---|---|---|",
        _line("**all**", overall),
    ]
    lines += [_line(f"`{kind}`", accuracy) for kind, accuracy in trial.by_type.items()]
    lines.append(
        f"\nReplies that name no option: {trial.unparsed}. The pooling head puts "
        f"{100 * trial.saliency_share:.1f} % of its attention (p-attn) on tokens that a thing "
        f"touches, which are {100 * trial.object_share:.1f} % of all tokens: "
        f"{trial.saliency_share / max(trial.object_share, 1e-9):.1f} times their share.\n"
    )
    if trial.confusions:
        lines += ["| type | most frequent mistakes: right option → reply |", "|---|---|"]
        for kind, pairs in trial.confusions.items():
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


def _line(name: str, accuracy: Accuracy) -> str:
    """A row of the table of accuracies."""
    return (
        f"| {name} | {100 * accuracy.value:.1f} % | {100 * accuracy.low:.1f} to "
        f"{100 * accuracy.high:.1f} % | {accuracy.num_questions} | {accuracy.num_clusters} |"
    )


def _seeds_section(trials: Sequence[tuple[int, Trial]]) -> str:
    """Training seeds beside each other; says so if there is only one."""
    if len(trials) == 1:
        return "One training seed was run; how much seeds differ is not known.\n"
    kinds = list(trials[0][1].by_type)
    lines = [
        "## Training seeds\n",
        "The same recipe with other seeds, on the clips of the table above; the first one ships.\n",
        "| training seed | all | " + " | ".join(kinds) + " |",
        "|---" * (len(kinds) + 2) + "|",
    ]
    for seed, trial in trials:
        values = [trial.overall, *(trial.by_type[kind] for kind in kinds)]
        lines.append(f"| {seed} | " + " | ".join(f"{100 * v.value:.1f}" for v in values) + " |")
    return "\n".join(lines) + "\n"


_HEAD = """# The embedded model

A LLaVA-OneVision of about two million parameters for the embedded world of shapes: SigLIP tower
with its pooling head, two-layer projector, Qwen2 decoder. It makes pruning methods measurable on
any laptop, with real layers and real video files.

## World

Clips of 16 moments, half a second apart, 128 x 128 pixels: coloured icons, digits and flashes in
one to three scenes with textured, noisy backgrounds; the camera pans, zooms or shakes in half of
the clips. A frame becomes 16 x 16 patches and 8 x 8 tokens. `tango_core/benchmarks/README.md`
describes it.
"""

_LIMITS = """## Not for

It answers the questions of this world in the words of this world and nothing else: its vocabulary
has fewer than a hundred words, and it has never seen a photograph. Results on it say how methods
behave where answers lie in few tokens; they say nothing about the accuracy of large models on real
videos.
"""
