"""Letters for options, and two ways to read a letter back from a reply.

`read_letter` is strict: the reply must be, or begin with, an option's letter. `read_option` is
general: it also understands a sentence or an option's text. Neither ever guesses: a reply that
names no option, or several, reads as `None`. The two evaluation harnesses have rules of their own,
which are kept apart from these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

LETTERS = ascii_uppercase

# "B", "(b)", "**B**", " B. ": nothing but a letter and decoration.
_ALONE = re.compile(r"[\W_]*([A-Za-z])[\W_]*")
# "(B) A dog", "[B] A dog", "B. A dog", "B: A dog"; no letter is that of "e.g." or "C:\\clip.mp4".
_MARKED = r"\(\s*([A-Za-z])\s*\)|\[\s*([A-Za-z])\s*\]|([A-Za-z])\s*[.):](?![A-Za-z]\.|[\\/])"
# A letter that opens the reply, also "b, because it barks" but not "b, c".
_OPENING = re.compile(rf"\s*(?:{_MARKED}|([a-z])\s*,(?!\s*(?:(?:and|or)\b)?\s*[A-Za-z](?![\w'-])))")
_LINE_OPENING = re.compile(rf"^[^\S\n]*(?:{_MARKED})", re.MULTILINE)
# Verbs that say what an option does. They stand in the third person, which is also a plural, and
# no plural follows "A" at once; left out is what is one thing, too ("A works council", "A means to
# an end"), what begins the name of one ("A sports car") and what also denies ("A does not fit").
_VERBS = (
    r"(?:is|was|has|had|would|should|could|seems|appears|looks|sounds|makes|matches|fits|suits"
    r"|describes|depicts|shows|represents|reflects|captures|contains|includes|corresponds|aligns"
    r"|agrees|answers|summarizes|summarises|explains|identifies|indicates|suggests|mentions"
    r"|says|gives|refers|applies|follows)(?![\w'-])"
)
# Before such a verb: "A best describes it", "A most closely matches it". Without one they may
# describe a thing: "A best friend", "A clearly visible dog". They are listed because of "A family
# has" and "A butterfly appears".
_ADVERBS = (
    r"(?:(?:best|better|most|only|also|just|accurately|actually|apparently|certainly|clearly"
    r"|closely|completely|correctly|definitely|directly|exactly|fully|likely|obviously|perfectly"
    r"|precisely|probably|properly|really|simply|truly)[^\S\n]+){1,2}"
)
# Words that go on after a letter, and that no thing is called: neither nouns nor what stands in
# front of one. Not so "A while ago", "A before picture", "A given day", "A due date".
_AFTER_LETTER = (
    r"(?:and|or|nor|but|because|since|as|based|according|considering|rather|instead|not|than|for"
    r"|from|with|in|on|at|by|to|of|the|this|that|these|those|it|its|he|his|she|her|they|their|we|you"
    r"|there|which|who|where|when|if|unless|although|whereas|after|during|alone"
    r"|(?:due|judging|owing)[^\S\n]+(?:to|by|from)|out[^\S\n]+of)(?![\w'-])"
)
_NEXT_SENTENCE = (
    r"(?:And|Or|But|Because|Since|As|Based|According|In|The|There|This|That|These|Those|It|Its|He"
    r"|His|She|Her|They|Their|We|You)\b"
)
# "A dog", "A CUDA error": an article. "A or B", "A because ...", "A is correct", "A B", "A The man
# is holding it", and whatever ends its line: a letter.
_ARTICLE = (
    rf"A[^\S\n]+(?!(?:{_ADVERBS})?{_VERBS}|{_AFTER_LETTER}|{_NEXT_SENTENCE}|[A-Z](?![\w'-]))"
    r"[A-Za-z]"
)
# "the answer is B", "Answer: (B)", "I choose option B". A small letter must end the sentence, and
# a capital A must not begin a phrase: "answer is a dog" and "answer is A dog" name a text.
_PHRASE = re.compile(
    r"(?i:\b(?:(?:answer|choice|option)(?:\s+(?:is|would\s+be|should\s+be|must\s+be))?"
    r"|choose|pick|select)\s*:?\s*(?:option\s+|letter\s+)?)[\"'*(\[]*"
    rf"(?!{_ARTICLE})([A-Z](?![\w'])|[a-z](?=[\"'*)\]]*\s*(?:[.,;!]|$)))",
)
# After that letter: " or B", ", (B)", "/B".
_CONTINUED = re.compile(
    rf"[\"'*)\]]*\s*(?:[,/&]|and\b|or\b)\s*(?:option\s+)?[\"'*(\[]*"
    rf"(?!{_ARTICLE}|I\b)([A-Z])(?![\w'-])"
)
_IN_BRACKETS = re.compile(r"\(\s*([A-Z])\s*\)")
# A capital on its own; "A dog" begins with an article, "I" is a pronoun unless it is marked, and
# "C++" and "C:\\" are no letters.
_BARE = re.compile(rf"(?<![\w'-])(?!{_ARTICLE}|I\b)([A-Z])(?![\w'+#-]|:[\\/])")
# After the letter that opens "(A) or (B)", "(A)(B)" and "A), B)": another one, marked like it.
_ANOTHER = re.compile(
    r"(?:\s*(?:[,/&]|and\b|or\b))?\s*[(\[]\s*([A-Za-z])\s*[)\]]"
    r"|\s*(?:[,/&]|and\b|or\b)\s*([A-Z])\s*[.):](?!\w)"
)
# "not B", "cannot be B", "rather than (B)"; "B is wrong", "(B) isn't what is shown".
_DENIED = re.compile(
    r"(?:\b[Nn]ot|n't|\bcannot|\brather\s+than|\binstead\s+of)\s+(?:be\s+)?(?:option\s+)?"
    r"\(?[A-Z]\)?(?!\w)"
    r"|(?<![\w'(-])\(?[A-Z]\)?\s+(?:is|was)(?:n't|\s+(?:not|wrong|incorrect|false))\b"
)
# Dots, commas and colons between digits belong to a number.
_AROUND_WORDS = re.compile(r"(?:(?!(?<=\d)[.,:]\d)[^\w'%+-])+")
_APOSTROPHES = {0x2018: "'", 0x2019: "'", 0x02BC: "'"}


def letter_of(index: int) -> str:
    """Return the letter of the option at `index`: 0 is `"A"`.

    Raises:
        ValueError: If there is no letter for it.
    """
    if not 0 <= index < len(LETTERS):
        raise ValueError(f"an option's index must be in [0, {len(LETTERS)}), got {index}")
    return LETTERS[index]


def lettered(choices: Sequence[str], style: str = "{letter}. {text}") -> list[str]:
    """Write options with letters: `["A. red", "B. blue"]`, or as `"({letter}) {text}"` says."""
    return [style.format(letter=letter_of(i), text=text) for i, text in enumerate(choices)]


def read_letter(reply: str, num_choices: int) -> int | None:
    """Read a reply that is a letter or begins with one: `"B"`, `"(b)"`, `"B. A dog"`, `"B: a dog"`.

    Returns:
        The option's index, or `None`, also for a letter beyond the last option and for several
        letters ("(A) or (B)", or a list with a letter in front of every line).
    """
    alone = _ALONE.fullmatch(reply)
    if alone:
        return _index(alone[1], num_choices)
    opening = _opening(reply)
    if opening and not _lines_differ(reply, num_choices):
        letter = next(filter(None, opening.groups())).upper()
        another = _ANOTHER.match(reply, opening.end())
        if another and next(filter(None, another.groups())).upper() != letter:
            return None
        return _index(letter, num_choices)
    return None


def read_option(reply: str, choices: Sequence[str]) -> int | None:
    """Read the option that a reply names, by its text or by its letter.

    The first rule that names an option decides: the reply is an option's text; it is or begins
    with a letter (`read_letter`); a phrase such as "the answer is B"; a letter in brackets; a
    capital letter on its own; an option's text occurs in it. A rule that names several options ends
    the search with `None`, and so does a letter beyond the last option. The "A" of an option
    "Vitamin A" is no letter where the reply holds the whole option. In a reply that lists several
    options (`lists_several`) only a phrase can name one of them.
    """
    whole = [i for i, text in enumerate(choices) if _plain(text) == _plain(reply) != ""]
    if whole:
        return whole[0] if len(whole) == 1 else None
    several = lists_several(reply, choices)
    if not several and (_ALONE.fullmatch(reply) or _opening(reply)):
        return read_letter(reply, len(choices))
    said = _DENIED.sub(" ", _without_lettered_texts(reply, choices))
    for pattern in (_PHRASE,) if several else (_PHRASE, _IN_BRACKETS, _BARE):
        letters = {letter.upper() for letter in pattern.findall(said)}
        if pattern is _PHRASE:
            continued = (_CONTINUED.match(said, match.end()) for match in pattern.finditer(said))
            letters |= {more[1] for more in continued if more}
        if letters:
            return _index(letters.pop(), len(choices)) if len(letters) == 1 else None
    return None if several else _only_mention(reply, choices)


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


def _opening(reply: str) -> re.Match[str] | None:
    """The letter that opens a reply, unless it is denied at once: "(A) is wrong"."""
    return None if _DENIED.match(reply.lstrip()) else _OPENING.match(reply)


def _lines_differ(reply: str, num_choices: int) -> bool:
    """Whether lines open with the letters of two options, marked alike: "A." and "B.", not "A:"."""
    found: dict[str, set[int | None]] = {}
    for line in _LINE_OPENING.finditer(reply):
        letter = next(filter(None, line.groups()))
        mark = "".join(line[0].split()).replace(letter, "")
        found.setdefault(mark, set()).add(_index(letter, num_choices))
    return any(len(letters - {None}) > 1 for letters in found.values())


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


def _only_mention(reply: str, choices: Sequence[str]) -> int | None:
    """Return the option that is mentioned if exactly one is."""
    found = mentioned(reply, choices)
    return found[0] if len(found) == 1 else None


def _index(letter: str, num_choices: int) -> int | None:
    """Turn a letter into an index, or `None` beyond the last option."""
    index = LETTERS.index(letter.upper())
    return index if index < num_choices else None


def _plain(text: str) -> str:
    """Fold case and spaces, and drop punctuation around words, not inside numbers: "2.5"."""
    folded = text.casefold().translate(_APOSTROPHES)
    return " ".join(_AROUND_WORDS.sub(" ", folded).split()).strip(" '")
