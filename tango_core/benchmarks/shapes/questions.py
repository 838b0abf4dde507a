"""Questions about a clip of the embedded world: ten types, their texts and their protocol.

A question is only asked where the frames that a sampler sees (by default eight of sixteen) answer
it and where more frames would not change the answer. Answers are evenly spread over all answers of
their type and over the letters, so that guessing without the clip is right in one of four cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

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
    "direction": "In which direction does the {} move?",
    "location": "Where is the {}?",
}
"""Every type of question with its words."""

ASKED = ("color", "shape", "digit", "flash", "order", "inscene")
"""Types the benchmark asks: those the embedded model has learned, judged only by its accuracy with
all tokens. `questions` also gives the others, for models that learn more. The embedded model has
not learned them: asked about rendered test clips, its whole reply is right in 24 % (`object`), 18 %
(`count`) and 0 % (`direction`, `location`). Its card says what was tried."""

CORNERS = ("top left", "top right", "bottom left", "bottom right")
DIGITS = tuple("0123456789")
NUMBERS = ("1", "2", "3", "4")
INSTRUCTION = "Answer with the option's letter."
NUM_OPTIONS = 4

_SAMPLED = 8  # frames that must suffice to answer
_CLEAR = 8.0  # screen pixels between an icon's centre and the lines between the corners
_TRAVEL = 12.0  # screen pixels between first and last position of an icon whose direction is asked
_FRAME_WORDS = ("first", "last", "in", "the", "shown")

# Share of clips that can ask each type (5,000 clips), so that `pick` takes all types equally often.
_AVAILABLE = {
    "color": 1.0,
    "shape": 1.0,
    "digit": 0.74,
    "flash": 0.74,
    "order": 0.74,
    "inscene": 0.74,
    "object": 0.87,
    "count": 0.79,
    "direction": 0.85,
    "location": 0.75,
}


def _vocabulary() -> tuple[str, ...]:
    """Collect every word of every prompt and reply."""
    texts = [*TYPES.values(), INSTRUCTION, *_FRAME_WORDS, *CORNERS, *world.DIRECTIONS]
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
    where it can be; see `_AVAILABLE`.
    """
    by_type: dict[str, list[Question]] = {}
    for question in asked:
        if question.groups["type"] in ASKED:
            by_type.setdefault(question.groups["type"], []).append(question)
    rank = {kind: rng.random() ** _AVAILABLE[kind] for kind in by_type}
    chosen = sorted(by_type, key=lambda kind: -rank[kind])[:number]
    return tuple(
        by_type[kind][int(rng.integers(len(by_type[kind])))] for kind in TYPES if kind in chosen
    )


Fact = tuple[str, str, str, list[str], Sequence[str]]
"""Type, subject, answer, the hardest wrong answers, and all answers of the type."""


def _facts(clip: world.ClipDescription, seen: set[int], rng: Generator) -> Iterator[Fact]:
    """Yield what can be asked and is true."""
    icons = {
        name: copies
        for name, copies in clip.icons.items()
        if any(moment in seen for moment in range(copies[0].start, copies[0].stop))
    }
    colors = [sprite.color for sprite in clip.sprites if sprite.kind != "plate"]
    kinds = [scene.kind for scene in clip.scenes]
    for name, (icon, *_) in icons.items():
        yield "color", name, icon.color, colors, list(world.COLORS)
    for name, (icon, *_) in icons.items():
        yield "shape", icon.color, name, list(clip.icons), world.SHAPES
    for sprite in clip.sprites:
        if seen.isdisjoint(range(sprite.start, sprite.stop)):
            continue
        if sprite.kind == "plate":
            yield "digit", "", sprite.name, [], DIGITS
        elif sprite.kind == "flash":
            yield "flash", "", sprite.color, colors, list(world.COLORS)
    if len(kinds) > 1 and all(not seen.isdisjoint(range(s.start, s.stop)) for s in clip.scenes):
        yield "order", "first", kinds[0], kinds, world.SCENES
        yield "order", "last", kinds[-1], kinds, world.SCENES
        for name, (icon, *_) in icons.items():
            yield "inscene", name, kinds[icon.scene], kinds, world.SCENES
    yield from _members(clip, icons, rng)
    if clip.counted in icons:
        yield "count", clip.counted, str(len(icons[clip.counted])), [], NUMBERS
    for name, copies in icons.items():
        if len(copies) > 1:
            continue
        direction = _direction(clip, copies[0], seen)
        if direction:
            yield "direction", name, direction, [], list(world.DIRECTIONS)
        corner = _corner(clip, copies[0])
        if corner:
            yield "location", name, corner, [], CORNERS


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


def _direction(clip: world.ClipDescription, icon: world.Sprite, seen: set[int]) -> str | None:
    """Return where an icon moves if that is clear, in canvas and in screen pixels alike."""
    if not icon.moves:
        return None
    sprite = clip.sprites.index(icon)
    centers = [box.center for moment in sorted(seen) if (box := clip.box(sprite, moment))]
    if len(centers) < 2:
        return None
    x, y = centers[-1][0] - centers[0][0], centers[-1][1] - centers[0][1]
    for name, (right, down) in world.DIRECTIONS.items():
        ahead, aside = x * right + y * down, abs(x * down) + abs(y * right)
        own = icon.velocity[0] * right + icon.velocity[1] * down
        if own > 0 and ahead >= _TRAVEL and ahead >= 1.5 * aside:
            return name
    return None


def _corner(clip: world.ClipDescription, icon: world.Sprite) -> str | None:
    """Return the quarter of the frame an icon stays in, clear of the middle, or `None`."""
    sprite = clip.sprites.index(icon)
    found = set()
    for moment in range(icon.start, icon.stop):
        box = clip.box(sprite, moment)
        x, y = (value - world.FRAME / 2 for value in box.center) if box else (0.0, 0.0)
        if min(abs(x), abs(y)) < _CLEAR:
            return None
        found.add(("bottom " if y > 0 else "top ") + ("right" if x > 0 else "left"))
    return found.pop() if len(found) == 1 else None


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
    words_after = [question.text, *lettered(question.choices), INSTRUCTION]
    return Prompt(before="", after=" ".join(words_after))


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
