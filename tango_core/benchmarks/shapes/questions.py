"""Questions about a clip of the embedded world: eight types, their texts and their protocol.

A question is only asked where the frames that a sampler sees (by default eight of sixteen) answer
it and where more frames would not change the answer. Answers are evenly spread over all answers of
their type and over the letters, so that guessing without the clip is right in one of four cases.

A question about an icon, a digit or the flash is answered by that object; where several icons are
counted, by all of them. `tokens_of` says which tokens show it. Which scene comes first or last is
shown by no object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.scoring.multiple_choice import LETTERS, lettered, read_option
from tango_core.benchmarks.shapes import world
from tango_core.errors import InputError
from tango_core.types import Prompt, Question

TYPES: dict[str, str] = {
    "color": "What color is the {}?",
    "shape": "What shape is the {} icon?",
    "digit": "Which digit is shown?",
    "flash": "What color is the flash?",
    "order": "Which scene comes {}?",
    "inscene": "In which scene is the {}?",
    "object": "Which icon is {}?",
    "count": "How many {} icons are shown?",
}
"""Every type of question with its words."""

ASKED = ("color", "shape", "digit", "flash", "order", "inscene")
"""Types the benchmark asks: those the embedded model has learned, judged only by its accuracy with
all tokens. `questions` also gives the others, which it is trained with but has not learned: asked
about rendered test clips, its whole reply is right in 24 % (`object`) and 18 % (`count`). Its card
says what was tried."""

DIGITS = tuple("0123456789")
NUMBERS = ("1", "2", "3", "4")
INSTRUCTION = "Answer with the option's letter."
NUM_OPTIONS = 4

_SAMPLED = 8  # frames that must suffice to answer
_SUBJECTS = "first last in the shown"
# Nothing is asked with these words, but the embedded model has a token for each.
_UNUSED = "Where direction does move top bottom left right up down"

# Nearly all clips can ask these of the types in `ASKED`, and this share of 5,000 clips the others.
_ALWAYS, _OTHERS = ("color", "shape"), 0.74


def _vocabulary() -> tuple[str, ...]:
    """Collect every word of every prompt and reply."""
    texts = [*TYPES.values(), INSTRUCTION, _SUBJECTS, _UNUSED]
    spoken = {word for text in texts for word in words(text) if word != "{}"}
    spoken |= {word.lower() for word in spoken} | {*world.SHAPES, *world.SCENES, *world.COLORS}
    return (*sorted(spoken), *DIGITS, *LETTERS[:NUM_OPTIONS])


def words(text: str) -> list[str]:
    """Split a prompt or reply as `VOCABULARY` does: at spaces, without `?`, `.`, `,`, `:`."""
    return re.sub(r"[?.,:]", " ", text).split()


VOCABULARY: tuple[str, ...] = _vocabulary()
"""Every word that can occur in prompts or replies, as it is written there and in lower case."""


def questions(
    clip: world.ClipDescription, moments: Iterable[int] | None = None
) -> tuple[Question, ...]:
    """Return every question that a clip can be asked.

    Args:
        clip: Any clip.
        moments: What will be seen of it; `None` for eight frames, sampled uniformly. More frames
            never make an answer wrong.

    Returns:
        By type and then by subject; `groups` are `type`, `camera` and `scenes`; ids begin with the
        clip's name and are unique.
    """
    seen = set(world.sample_moments(clip.num_moments, _SAMPLED) if moments is None else moments)
    rng = world.rng_of(clip.split, clip.seed, clip.index, "questions")
    asked = []
    for kind, subject, answer, hard, every in _facts(clip, seen, rng):
        choices, right = _options(rng, answer, hard, every)
        asked.append(
            Question(
                id=f"{clip.name}-{kind}" + (f"-{subject.split()[-1]}" if subject else ""),
                text=TYPES[kind].format(subject),
                choices=choices,
                answer=right,
                groups={"type": kind, "camera": clip.camera, "scenes": str(len(clip.scenes))},
            )
        )
    return tuple(asked)


def pick(asked: Sequence[Question], number: int, rng: Generator) -> tuple[Question, ...]:
    """Choose up to `number` questions of different types, all of `ASKED`.

    Types become as equally frequent as they can: a type that few clips can ask is taken first
    where it can be.
    """
    by_type: dict[str, list[Question]] = {}
    for question in asked:
        if question.groups["type"] in ASKED:
            by_type.setdefault(question.groups["type"], []).append(question)
    rank = {kind: rng.random() ** (1.0 if kind in _ALWAYS else _OTHERS) for kind in by_type}
    chosen = sorted(by_type, key=lambda kind: -rank[kind])[:number]
    return tuple(
        by_type[kind][int(rng.integers(len(by_type[kind])))] for kind in TYPES if kind in chosen
    )


Fact = tuple[str, str, str, list[str], Sequence[str]]
"""Type, subject, answer, the hardest wrong answers, and all answers of the type."""


def _facts(clip: world.ClipDescription, seen: set[int], rng: Generator) -> Iterator[Fact]:
    """Yield what can be asked and is true."""
    icons = {name: own for name, own in clip.icons.items() if _is_seen(own[0], seen)}
    colors = [sprite.color for sprite in clip.sprites if sprite.kind != "plate"]
    kinds = [scene.kind for scene in clip.scenes]
    for name, (icon, *_) in icons.items():
        yield "color", name, icon.color, colors, list(world.COLORS)
    for name, (icon, *_) in icons.items():
        yield "shape", icon.color, name, list(clip.icons), world.SHAPES
    for sprite in clip.sprites:
        if sprite.kind == "plate" and _is_seen(sprite, seen):
            yield "digit", "", sprite.name, [], DIGITS
        elif sprite.kind == "flash" and _is_seen(sprite, seen):
            yield "flash", "", sprite.color, colors, list(world.COLORS)
    if len(kinds) > 1 and all(_is_seen(scene, seen) for scene in clip.scenes):
        yield "order", "first", kinds[0], kinds, world.SCENES
        yield "order", "last", kinds[-1], kinds, world.SCENES
        for name, (icon, *_) in icons.items():
            yield "inscene", name, kinds[icon.scene], kinds, world.SCENES
    yield from _members(clip, icons, rng)
    if clip.counted in icons:
        yield "count", clip.counted, str(len(icons[clip.counted])), [], NUMBERS


def _is_seen(shown: world.Sprite | world.Scene, seen: set[int]) -> bool:
    return not seen.isdisjoint(range(shown.start, shown.stop))


def _members(
    clip: world.ClipDescription, icons: dict[str, tuple[world.Sprite, ...]], rng: Generator
) -> Iterator[Fact]:
    """Yield which icon is in a scene, where enough others are not."""
    for number, scene in enumerate(clip.scenes):
        inside = [name for name, copies in clip.icons.items() if copies[0].scene == number]
        shown = [name for name in inside if name in icons]
        outside = [name for name in world.SHAPES if name not in inside]
        if shown and len(outside) >= NUM_OPTIONS - 1:
            where = "shown" if len(clip.scenes) == 1 else f"in the {scene.kind}"
            hard = [name for name in clip.icons if name not in inside]
            answer = shown[int(rng.integers(len(shown)))]
            yield "object", where, answer, hard, [answer, *outside]


def _options(
    rng: Generator, answer: str, hard: Iterable[str], every: Sequence[str]
) -> tuple[tuple[str, ...], int]:
    """Return four shuffled options, other values of the same clip before values of no clip."""
    near = [value for value in dict.fromkeys(hard) if value != answer]
    rest = [value for value in every if value != answer and value not in near]
    wrong = [str(v) for v in rng.permutation(near)] + [str(v) for v in rng.permutation(rest)]
    choices = [str(v) for v in rng.permutation([answer, *wrong[: NUM_OPTIONS - 1]])]
    return tuple(choices), choices.index(answer)


def render_prompt(question: Question) -> Prompt:
    """Put a question on one line: text, lettered options, instruction; the clip goes before it."""
    return Prompt("", " ".join([question.text, *lettered(question.choices), INSTRUCTION]))


def reply_to(question: Question) -> str:
    """Return the right reply: the option's text, then its letter, e.g. `"red A"`."""
    if question.answer is None:
        raise InputError(f"question {question.id!r} has no answer")
    return f"{question.choices[question.answer]} {LETTERS[question.answer]}"


def read_reply(reply: str, question: Question) -> int | None:
    """Read "red A": the letter that ends a reply decides, whatever text stands before it.

    A reply that ends in no letter is read by the general rules (`multiple_choice.read_option`), so
    "A. red", "The answer is A." and an option's text alone are understood too.
    """
    last = re.search(r"(?<![\w'])([A-Za-z])\W*$", reply)
    if last:
        index = LETTERS.index(last[1].upper())
        return index if index < len(question.choices) else None
    return read_option(reply, question.choices)


PROTOCOL = Protocol("shapes", render_prompt, read_reply, max_new_tokens=8)


# A token shows an object that covers at least this share of it. Each frame's best token counts in
# any case.
LEAST_COVER = 0.25


def clip_of(video_id: str) -> world.ClipDescription:
    """The clip that the benchmark calls so.

    Raises:
        ValueError: If it is no clip of the embedded world.
    """
    split, _, rest = video_id.partition("-")
    seed, _, index = rest.partition("-")
    if not (split and seed.isdecimal() and index.isdecimal()):
        raise InputError(
            f"{video_id!r} is no clip of benchmark shapes; only there it is known which tokens "
            "show what a question is about"
        )
    return world.clip_at(split, int(seed), int(index))


def sprites_asked(clip: world.ClipDescription, question: Question) -> tuple[int, ...]:
    """What answers a question: indices into `clip.sprites`; empty if no object does."""
    kind, words = question.groups["type"], set(question.text.rstrip("?").split())
    shown_as = {"digit": "plate", "flash": "flash"}.get(kind, "icon")
    if kind == "object" and question.answer is not None:  # the icon that is the answer
        words = {question.choices[question.answer]}
    return tuple(
        index
        for index, sprite in enumerate(clip.sprites)
        if sprite.kind == shown_as
        and (shown_as != "icon" or words & {sprite.color if kind == "shape" else sprite.name})
    )


def tokens_of(
    clip: world.ClipDescription,
    sprites: Sequence[int],
    timestamps: Sequence[float],
    grid: tuple[int, int],
    least_cover: float = LEAST_COVER,
) -> npt.NDArray[np.bool_]:
    """The tokens that show some sprites.

    Args:
        clip: The clip.
        sprites: Indices into its sprites.
        timestamps: (T,) seconds of the temporal positions; one between two frames of the file
            shows both.
        grid: (H, W) tokens, which divide the frame evenly.
        least_cover: Share of a token that an object must cover, in (0, 1].

    Returns:
        (T, H * W) bool.
    """
    shown = np.zeros((len(timestamps), grid[0] * grid[1]), dtype=bool)
    for row, seconds in zip(shown, timestamps, strict=True):
        moment = seconds / world.SECONDS_PER_MOMENT
        for seen in {math.floor(moment + 1e-3), math.ceil(moment - 1e-3)}:
            for sprite in sprites:
                box = clip.box(sprite, min(max(seen, 0), clip.num_moments - 1))
                if box is not None:
                    cover = cover_of(box, grid).ravel()
                    row |= (cover >= least_cover) | (cover >= max(cover.max(), 1e-9))
    return shown


def cover_of(box: world.Box, grid: tuple[int, int]) -> npt.NDArray[np.float64]:
    """(H, W) share of every token that a box covers, in [0, 1]."""
    rows = _overlaps(box.top, box.bottom, grid[0])
    return np.outer(rows, _overlaps(box.left, box.right, grid[1]))


def _overlaps(start: float, stop: float, number: int) -> npt.NDArray[np.float64]:
    """(number,) share of every equal part of a frame's side that lies between two pixels."""
    edges = np.linspace(0, world.FRAME, number + 1)
    inside = np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start)
    return np.asarray(np.clip(inside, 0, None) * number / world.FRAME)
