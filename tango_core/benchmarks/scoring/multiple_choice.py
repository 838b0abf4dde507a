"""Read the option that a reply to a multiple-choice question names.

`read_letter` is strict: the reply must be, or begin with, an option's letter. `read` is general:
the first of the rules in `RULES` that finds an option decides. A rule that finds several options
ends the search, so that nothing is guessed. The rules of evaluation harnesses are kept apart.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from string import ascii_uppercase
from typing import NamedTuple

from tango_core.errors import InputError

LETTERS = ascii_uppercase
LETTERED, BRACKETED = "{letter}. {text}", "({letter}) {text}"
"""Styles of `lettered`: `["A. red", "B. blue"]` and `["(A) red", "(B) blue"]`."""

# How reasoning models end and begin their reasoning, and how they mark the answer behind it.
_REASONING = r"(?:think|thinking|thought|reasoning|analysis)"
_REASONING_END = re.compile(rf"</{_REASONING}>|\u25c1/think\u25b7|\[/THINK\]", re.IGNORECASE)
_REASONING_START = re.compile(rf"<{_REASONING}>|\u25c1think\u25b7|\[THINK\]", re.IGNORECASE)
_FRAMED = re.compile(
    r"<answer>(.*?)(?:</answer>|$)|<\|begin_of_box\|>(.*?)<\|end_of_box\|>"
    r"|\\boxed\{(?:\\text\{)?([^{}]*)\}",
    re.IGNORECASE | re.DOTALL,
)

# Ends a letter that is no part of a word: not of "CUDA", "C++", "D:\\", "e.g.", "A-frame". Chinese,
# Japanese and Korean words may touch it.
_END = r"(?![A-Za-z0-9_'+#-]|:[\\/]|\.[A-Za-z])"
_BEGIN = r"(?<![A-Za-z0-9_'-])"
# "B", "(b)", " B. ": nothing but a letter and punctuation.
_ALONE = re.compile(r"[\W_]*([A-Za-z])[\W_]*")
# "(B) A dog", "[B] A dog", "B. A dog", "B: A dog"
_MARKED = r"\(\s*([A-Za-z])\s*\)|\[\s*([A-Za-z])\s*\]|([A-Za-z])\s*[.):](?![A-Za-z]\.|[\\/])"
# A letter that opens the reply, also "b, because it barks" but not "b, c".
_OPENING = re.compile(rf"\s*(?:{_MARKED}|([a-z])\s*,(?!\s*(?:(?:and|or)\b)?\s*[A-Za-z](?![\w'-])))")
_LINE_OPENING = re.compile(rf"^[^\S\n]*(?:{_MARKED})", re.MULTILINE)
# After the letter that opens "(A) or (B)", "(A)(B)" and "A), B)": another one, marked like it.
_ANOTHER = re.compile(
    r"(?:\s*(?:[,/&]|and\b|or\b))?\s*[(\[]\s*([A-Za-z])\s*[)\]]"
    r"|\s*(?:[,/&]|and\b|or\b)\s*([A-Z])\s*[.):](?!\w)"
)
# "the answer is B", "Final Answer: (B)", "I choose option B", and the same in other languages. A
# small letter must end the sentence: "the answer is a dog" names a text.
_ANSWER = (
    r"(?i:\b(?:answer|(?:correct|right|best)\s+(?:option|choice)|choose|pick|select|antwort"
    r"|r(?:esp(?:uesta|osta)|\u00e9ponse)|risposta)\b|\u043e\u0442\u0432\u0435\u0442"  # Russian
    r"|\u7b54\u6848|\u9009\u62e9|\u9009\u9879|\u9009|\u9078"  # Chinese
    r"|\u6b63\u89e3|\u7b54\u3048|\u56de\u7b54|\uc815\ub2f5|\ub2f5)"  # Japanese, Korean
)
_IS = (
    r"(?i:\s*(?:(?:is|would\s+be|should\s+be|must\s+be|es|est|ist|\u00e8)\b"
    r"|[\u662f\u4e3a\u306f\uc740]))?"
)
_MARKER = re.compile(
    rf"{_ANSWER}{_IS}\s*:?\s*(?i:(?:option|letter)\s+)?[\"'(\[]*"
    rf"([A-Z]{_END}|[a-z](?=[\"')\]]*\s*(?:[.,;!]|$)))"
)
# After that letter: " or B", ", (B)", "/B", "(B)".
_MORE = re.compile(
    rf"[\"')\]]*\s*(?:(?:[,/&]|and\b|or\b)\s*(?:option\s+)?[\"'(\[]*|[(\[]\s*)((?!I\b)[A-Z]){_END}"
)
_BRACKETED = re.compile(r"[(\[]\s*([A-Z])\s*[)\]]")
_BARE = re.compile(rf"{_BEGIN}((?!I\b)[A-Z]){_END}")
# What follows a letter in a sentence: the end of a clause, another script, or one of these words.
# "A dog" has an article. The same holds for every letter, so that none is read more often.
_VERBS = (
    r"(?:(?:best|most\s+closely|correctly|accurately|clearly|also)\s+)?(?:is|was|has|would|could|seems"
    r"|appears|looks|makes|fits|matches|describes|depicts|shows|represents|reflects|captures"
    r"|corresponds|aligns|explains|answers)"
)
_FOLLOWS = re.compile(
    r"[\"')\]]*(?:[^\S\n]*(?:$|\n|[^\sA-Za-z0-9'\"-])"
    rf"|\s+(?:[A-Z]|{_VERBS}|and|or|but|not|because|since|as|based|according|rather|instead|than|if"
    r"|The|There|This|That|It|He|His|She|Her|They|We|You|In|Because|Based|According)(?![\w'-]))"
)
# "not B", "rather than (B)"; "B is wrong", "(B) isn't shown", "B does not fit".
_DENIED = re.compile(
    r"(?:\b[Nn]ot|n't|\bcannot|\brather\s+than|\binstead\s+of)\s+(?:be\s+)?(?:option\s+)?"
    r"\(?[A-Z]\)?(?!\w)"
    r"|(?<![\w'(-])\(?[A-Z]\)?\s+(?:(?:is|was|does|can|could|would)(?:n't|not|\s+not\b)"
    r"|(?:is|was)\s+(?:wrong|incorrect|false)\b)"
)
# Dots, commas and colons between digits belong to a number.
_AROUND_WORDS = re.compile(r"(?:(?!(?<=\d)[.,:]\d)[^\w'%+-])+")
_APOSTROPHES = {0x2018: "'", 0x2019: "'", 0x02BC: "'"}


class Reading(NamedTuple):
    """What was read from a reply.

    Attributes:
        choice: Index of an option; `None` for none.
        rule: The rule that decided, one of `RULES`; "" if the reply names no option, or several.
    """

    choice: int | None
    rule: str


def letter_of(index: int) -> str:
    """Return the letter of the option at `index`: 0 is `"A"`.

    Raises:
        ValueError: If there is no letter for it.
    """
    if not 0 <= index < len(LETTERS):
        raise InputError(f"an option's index must be in [0, {len(LETTERS)}), got {index}")
    return LETTERS[index]


def lettered(choices: Sequence[str], style: str = LETTERED) -> list[str]:
    """Write options with letters: `["A. red", "B. blue"]`, or in the style `BRACKETED`."""
    return [style.format(letter=letter_of(i), text=text) for i, text in enumerate(choices)]


def answer_part(reply: str) -> str:
    """Return what a reply says behind its reasoning, in plain characters.

    Text up to a closing think tag is dropped, and all text behind an opening one that is never
    closed. Of an `<answer>` tag or a box the last one counts. Full-width letters become plain ones,
    and Markdown's stars and backquotes go.
    """
    ends = list(_REASONING_END.finditer(reply))
    text = reply[ends[-1].end() :] if ends else _REASONING_START.split(reply)[0]
    framed = list(_FRAMED.finditer(text))
    if framed:
        text = next(part for part in (*framed[-1].groups(), "") if part is not None)
    return re.sub(r"[*`]", "", unicodedata.normalize("NFKC", text))


def read_letter(reply: str, num_choices: int) -> int | None:
    """Read a reply that is a letter or begins with one: `"B"`, `"(b)"`, `"B. A dog"`, `"B: a dog"`.

    Returns:
        The option's index, or `None`, also for a letter beyond the last option and for several
        letters ("(A) or (B)", or a list with a letter in front of every line).
    """
    return _only(_opening_letters(answer_part(reply), num_choices), num_choices)


def read(reply: str, choices: Sequence[str], *, letters_first: bool = False) -> Reading:
    """Read the option that a reply names, by the first of these rules that finds one.

    1. `text`: the reply is an option's text.
    2. `letter`: it is or begins with a letter (`read_letter`).
    3. `line`: its first or last line is a letter.
    4. `marker`: a letter follows the last "answer is", "Final Answer:" or the like.
    5. `brackets`: a letter in brackets.
    6. `sentence`: a capital letter on its own.
    7. `mention`: an option's text occurs in it.

    A rule that finds several options, or a letter beyond the last one, ends the search. In a reply
    that repeats the list of options only the rules 3 and 4 count. A denied letter ("B is wrong")
    and the letter inside an option's text ("Vitamin A") are none.

    Args:
        reply: The model's text; only its `answer_part` counts.
        choices: Texts of the options.
        letters_first: Try rule 2 before rule 1, where options may be letters themselves.
    """
    text = answer_part(reply)
    several = lists_several(text, choices)
    unlettered = _DENIED.sub(" ", _without_lettered_texts(text, choices))
    if letters_first and not several:
        choice = read_letter(reply, len(choices))
        if choice is not None:
            return Reading(choice, "letter")
    for rule in RULES:
        if several and rule not in ("text", "line", "marker"):
            continue
        found = _found(rule, text, unlettered, choices)
        if found:
            choice = _only(found, len(choices))
            return Reading(choice, "" if choice is None else rule)
    return Reading(None, "")


RULES = ("text", "letter", "line", "marker", "brackets", "sentence", "mention")


def read_option(reply: str, choices: Sequence[str]) -> int | None:
    """Return the option of `read`."""
    return read(reply, choices).choice


def _found(rule: str, text: str, unlettered: str, choices: Sequence[str]) -> set[int]:
    """Indices that one rule finds, also beyond the last option."""
    if rule == "text":
        plain = _plain(text)
        return {i for i, choice in enumerate(choices) if plain and _plain(choice) == plain}
    if rule == "letter":
        return _opening_letters(text, len(choices))
    if rule == "line":
        lines = [line for line in text.splitlines() if line.strip()]
        alone = (_ALONE.fullmatch(line) for line in (lines[:1] + lines[-1:]))
        return {_index(letter[1]) for letter in alone if letter}
    if rule == "marker":
        matches = [
            match
            for match in _MARKER.finditer(unlettered)
            if match[1] != "A" or _FOLLOWS.match(unlettered, match.end(1))
        ]
        if not matches:
            return set()
        more = _MORE.match(unlettered, matches[-1].end())
        return {_index(matches[-1][1]), *([_index(more[1])] if more else [])}
    if rule == "mention":
        return set(mentioned(text, choices))
    if rule == "brackets":
        return {_index(letter) for letter in _BRACKETED.findall(unlettered)}
    bare = list(_BARE.finditer(unlettered))
    found = {_index(letter[1]) for letter in bare if _FOLLOWS.match(unlettered, letter.end())}
    # "Both A and B seem right" names two, although "B seem" alone would not be read.
    return found | {_index(letter[1]) for letter in bare if letter[1] != "A"} if found else found


def lists_several(reply: str, choices: Sequence[str]) -> bool:
    """Whether a reply repeats the list of options, or a part of it.

    It does if two lines open with the letters of two options, or if two options stand in it with
    their letters in front ("A. red B. blue").
    """
    repeated = [
        re.search(
            rf"(?<![\w'-])[(\[]?\s*{letter}\s*[.):\]]\s*{re.escape(text.strip())}(?!\w)",
            reply,
            re.IGNORECASE,
        )
        for letter, text in zip(LETTERS, choices, strict=False)
        if text.strip()
    ]
    return sum(map(bool, repeated)) > 1 or _lines_differ(reply, len(choices))


def _opening_letters(text: str, num_choices: int) -> set[int]:
    """The letter that a text is or begins with, and another one behind it."""
    alone = _ALONE.fullmatch(text)
    if alone:
        return {_index(alone[1])}
    opening = _OPENING.match(text)
    if not opening or _DENIED.match(text.lstrip()) or _lines_differ(text, num_choices):
        return set()
    another = _ANOTHER.match(text, opening.end())
    groups = (*opening.groups(), *(another.groups() if another else ()))
    return {_index(letter) for letter in groups if letter}


def _lines_differ(reply: str, num_choices: int) -> bool:
    """Whether lines open with the letters of two options, marked alike: "A." and "B.", not "A:"."""
    found: dict[str, set[int]] = {}
    for line in _LINE_OPENING.finditer(reply):
        letter = next(filter(None, line.groups()))
        mark = "".join(line[0].split()).replace(letter, "")
        found.setdefault(mark, set()).add(_index(letter))
    return any(sum(i < num_choices for i in letters) > 1 for letters in found.values())


def mentioned(reply: str, choices: Sequence[str]) -> list[int]:
    """Return the options whose whole text occurs in a reply, but not inside a longer match."""
    text = f" {_plain(reply)} "
    words = [f" {_plain(choice)} " for choice in choices]
    found = [i for i, phrase in enumerate(words) if phrase.strip() and phrase in text]
    return [
        i for i in found if not any(words[i] in words[j] and words[i] != words[j] for j in found)
    ]


def _without_lettered_texts(reply: str, choices: Sequence[str]) -> str:
    """Replace the texts of options that hold a letter of their own: "Vitamin A", "C major"."""
    for choice in sorted(choices, key=len, reverse=True):
        words = re.findall(r"[\w'%+-]+", choice)
        if len(words) > 1 and re.search(r"(?<![\w'-])[A-Z](?![\w'-])", choice):
            text = r"[^\w'%+-]+".join(map(re.escape, words))
            reply = re.sub(rf"(?<![\w'-]){text}(?![\w'-])", "this", reply, flags=re.IGNORECASE)
    return reply


def _only(found: set[int], num_choices: int) -> int | None:
    """The only index, if it is one of an option."""
    (index,) = found if len(found) == 1 else (num_choices,)
    return index if index < num_choices else None


def _index(letter: str) -> int:
    return LETTERS.index(letter.upper())


def _plain(text: str) -> str:
    """Fold case and spaces, and drop punctuation around words, not inside numbers: "2.5"."""
    folded = text.casefold().translate(_APOSTROPHES)
    return " ".join(_AROUND_WORDS.sub(" ", folded).split()).strip(" '")
