"""What a protocol is: how a question is put, how a reply is read, how a harness counts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tango_core.benchmarks.protocols.subtitles import SubtitleRule, Watched
from tango_core.types import Prompt, Question, Subtitles

Reword = Callable[[Prompt], Prompt]


@dataclass(frozen=True)
class Protocol:
    """How a question is put to a model and how an option is read from the reply.

    The functions are module-level, so that a protocol travels to other processes by name.

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
        wordings: (family, edit of a prompt) pairs: models that the harness asks in other words, by
            the `wording` of their family. Edits are functions of a module.
        subtitles: How a question is put where `benchmark.subtitles` is set; `None` if the harness
            shows a video model none.
    """

    name: str
    render: Callable[[Question], Prompt]
    read_choice: Callable[[str, Question], int | None]
    max_new_tokens: int = 16
    harness_score: Callable[[str, Question], float | None] | None = None
    failed_reply: str = ""
    macro: bool = False
    wordings: tuple[tuple[str, Reword], ...] = ()
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
            raise ValueError(f"protocol {self.name} cannot show subtitles with {question.id!r}")
        return self.subtitles.render(question, self.subtitles.choose(subtitles, watched))


def _reworded(reword: Reword, render: Callable[..., Prompt], *asked: Any) -> Prompt:
    """What a harness makes of a prompt for models that it asks in other words."""
    return reword(render(*asked))
