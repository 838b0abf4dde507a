"""`Protocol`: renders a question, reads a reply, computes the harness's score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tango_core.benchmarks.protocols.subtitles import SHOWN, SubtitleRule, Watched
from tango_core.benchmarks.scoring.multiple_choice import LETTERED, lettered, read, read_option
from tango_core.errors import InputError
from tango_core.types import Prompt, Question, Subtitles

Score = Callable[[str, Question], float | None]

LETTER_PLEASE = "Answer with the option's letter from the given choices directly."

# VLMEvalKit's own text for a question that failed. Its rules read it as the answer A (Video-MME,
# LongVideoBench), as right (MVBench) or as minus one point (MLVU); lmms-eval's models write an
# empty text, which leaves MVBench's denominator, or a sentence with the video's path, whose letters
# are read. The two texts below are written instead: no rule of the harness reads an option in them,
# so that the question is wrong there as it is here.
FAILED_REPLY = "Failed to obtain answer via API."
# "Z" is VLMEvalKit's own letter for a reply that names no option.
NO_REPLY = "Z (no reply was obtained)"
# The sentence of lmms-eval's `llava_vid`, without the path.
NOT_LOADED = "Video can not load, check the source"
_FAILED_REPLIES = {"vlmevalkit": NO_REPLY, "lmms_eval": NOT_LOADED}

# Harness -> its newest version here, and the one before the rules changed. `vlmevalkit@2026-05` is
# VLMEvalKit by the rules of that month; only `Protocol.harness_score` differs between versions. A
# bare name stands for the newest version; results record the name that the recipe gave.
VERSIONS = {"vlmevalkit": ("e8e78f05", "2026-05"), "lmms_eval": ("0.7.3", "2024-10")}


@dataclass(frozen=True)
class PromptTemplate:
    """The user turn of a question, as text with `{question}`, `{options}` and `{subtitles}`.

    Attributes:
        after: Text after the clip.
        before: Text before the clip, without fields.
        option: Form of one option; options are separated by line breaks.
        strip: Whether white space at the end of the options is dropped.
        subtitles: What `{subtitles}` stands for, with the field `{lines}`; nothing where a question
            is rendered without subtitles.
        omit_empty: Whether `{subtitles}` stands for nothing also where no line was selected.
    """

    after: str
    before: str = ""
    option: str = LETTERED
    strip: bool = False
    subtitles: str = ""
    omit_empty: bool = False

    def __call__(self, question: Question, lines: str | None = None) -> Prompt:
        """Render a question.

        Args:
            question: The question.
            lines: Subtitles to show with it, already selected; `None` for none.
        """
        options = "\n".join(lettered(question.choices, self.option))
        hidden = lines is None or (self.omit_empty and not lines)
        after = self.after.format(
            question=question.text,
            options=options.rstrip() if self.strip else options,
            subtitles="" if hidden else self.subtitles.format(lines=lines),
        )
        return Prompt(self.before, after)


@dataclass(frozen=True)
class Protocol:
    """How a question is put to a model and how an option is read from the reply.

    Protocols are pickled, so their functions are those of a module or `PromptTemplate`s.

    Attributes:
        name: E.g. `"vlmevalkit"` or, by the rules of a version, `"vlmevalkit@2026-05"`.
        render: Question -> `Prompt`.
        read_choice: (reply, question) -> index of the option the reply names, or `None`. Strict:
            the headline counts a reply that names none, or several, as wrong.
        max_new_tokens: Tokens a reply may have.
        harness_score: (reply, question) -> what the evaluation harness of that name would have
            counted for the same reply, faults included: 1 right, 0 wrong, other values where it has
            them (VLMEvalKit's MVBench counts an empty reply as right, its MLVU a failure as -1),
            `None` where it leaves the question out of the mean (lmms-eval's MVBench an empty
            reply). `None` if the protocol belongs to no harness.
        failed_reply: What is written into that harness's file for a question that was never
            answered: a text in which its rules read no option. Its score is the question's.
        macro: Whether that harness averages over the values of the benchmark's `macro_group`
            instead of over its questions.
        wordings: (family, change of a prompt) pairs: model families whose prompts the harness
            changes, by the `wording` of the family.
        subtitles: How a question is put where `benchmark.subtitles` is set; `None` if the harness
            shows a video model none.
    """

    name: str
    render: Callable[[Question], Prompt]
    read_choice: Callable[[str, Question], int | None]
    max_new_tokens: int = 16
    harness_score: Score | None = None
    failed_reply: str = ""
    macro: bool = False
    wordings: tuple[tuple[str, Callable[[Prompt], Prompt]], ...] = ()
    subtitles: SubtitleRule | None = None

    def for_family(self, wording: str) -> Protocol:
        """The protocol as the harness asks the models of a family.

        Args:
            wording: `ModelFamily.wording`; most have none and read the usual words.
        """
        reword, rule = dict(self.wordings).get(wording), self.subtitles
        if rule is not None and rule.families and wording not in rule.families:
            rule = None
        if reword is None:
            return self if rule is self.subtitles else replace(self, subtitles=rule)
        if rule is not None:
            rule = replace(rule, render=partial(_reworded, reword, rule.render))
        return replace(self, render=partial(_reworded, reword, self.render), subtitles=rule)

    def prompt(
        self, question: Question, subtitles: Subtitles | None = None, watched: Watched | None = None
    ) -> Prompt:
        """Put a question, with the subtitles if there are any to be shown.

        Raises:
            ValueError: If there are and the protocol shows none, or nothing is known of the clip.
        """
        if subtitles is None:
            return self.render(question)
        if self.subtitles is None or watched is None:
            raise InputError(f"protocol {self.name} cannot show subtitles with {question.id!r}")
        return self.subtitles.render(question, self.subtitles.choose(subtitles, watched))


def _reworded(
    reword: Callable[[Prompt], Prompt], render: Callable[..., Prompt], *arguments: Any
) -> Prompt:
    return reword(render(*arguments))


def render_prompt(question: Question) -> Prompt:
    """Put the question after the clip: text, options by line, instruction; or the text alone."""
    if not question.choices:
        return Prompt("", question.text)
    return PromptTemplate(f"{{question}}\n{{options}}\n{LETTER_PLEASE}")(question)


def read_reply(reply: str, question: Question) -> int | None:
    """Read the option a reply names by the general rules; a free-form reply names none."""
    return read_option(reply, question.choices) if question.choices else None


def read_choice(reply: str, question: Question) -> int | None:
    """Read the option a reply names; `None` if it names none, or several.

    Both harnesses ask for a letter, so a letter comes first even where it is also the text of
    another option, as in six questions of MVBench ("What letter did the person write?").
    """
    return read(reply, question.choices, letters_first=True).choice


PLAIN = Protocol("plain", render_prompt, read_reply, max_new_tokens=128)
"""The protocol of a benchmark that has none of its own."""


def in_versions(
    name: str,
    render: Callable[[Question], Prompt],
    score: Score,
    older: Score | None = None,
    read_choice: Callable[[str, Question], int | None] = read_choice,
    **settings: Any,
) -> dict[str, Protocol]:
    """List a harness's protocol under its bare name and under that of each version.

    Args:
        name: It begins with the harness's.
        render: As in `Protocol`.
        score: `Protocol.harness_score` by the newest rules.
        older: The same by the rules before they changed; `None` where they did not.
        read_choice: As in `Protocol`.
        settings: Other attributes of the protocol.
    """
    harness = next(start for start in VERSIONS if name.startswith(start))
    newest, before = VERSIONS[harness]
    settings = {"failed_reply": _FAILED_REPLIES[harness], **settings}
    scores = {name: score, f"{name}@{newest}": score, f"{name}@{before}": older or score}
    return {
        listed: Protocol(listed, render, read_choice, harness_score=counted, **settings)
        for listed, counted in scores.items()
    }


def unscored(name: str, protocol: Protocol) -> dict[str, Protocol]:
    """List a protocol also under the name of a harness that does not have the benchmark."""
    return {name: replace(protocol, name=name, harness_score=None, failed_reply="")}


def of_lmms_eval(
    render: Callable[[Question], Prompt], score: Score, **settings: Any
) -> dict[str, Protocol]:
    """List the protocols of a benchmark that VLMEvalKit lacks: lmms-eval's under both names.

    Args:
        render: As in `Protocol`.
        score: `Protocol.harness_score`; under VLMEvalKit's name there is none.
        settings: As in `in_versions`.
    """
    found = in_versions("lmms_eval", render, score, **settings)
    return {**found, **unscored("vlmevalkit", found["lmms_eval"])}


def under_each_harness(protocol: Protocol) -> Mapping[str, Protocol]:
    """The `protocols` of a benchmark that no harness has: its own one, whichever is named."""
    return dict.fromkeys(VERSIONS, protocol)


def harness_of(name: str) -> str:
    """Return a protocol's name without the version: what it asks and shows depends on no more.

    Subtitles stay in the name: with them other prompts are asked.
    """
    return name.partition("@")[0].removesuffix(SHOWN) + (SHOWN if name.endswith(SHOWN) else "")


def listed_name(protocols: Mapping[str, Protocol], name: str) -> str:
    """Return the name by which a benchmark lists a protocol.

    Where it does not list a version of a harness, that version has the rules of the bare name.

    Args:
        protocols: Those of the benchmark, by name.
        name: E.g. `"vlmevalkit@2026-05"`.
    """
    harness, _, version = name.partition("@")
    known = version in VERSIONS.get(harness, ()) and harness in protocols
    return harness if known and name not in protocols else name


def is_failure(reply: str) -> bool:
    """Whether a reply in a harness's file says that there was none; an empty reply does not."""
    return (
        FAILED_REPLY in reply
        or reply.strip() == NO_REPLY
        or (reply.startswith("Video ") and reply.endswith(NOT_LOADED.removeprefix("Video ")))
    )
