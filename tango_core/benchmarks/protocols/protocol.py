"""What a protocol is: how a question is put, how a reply is read, how a harness counts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tango_core.types import Prompt, Question


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
        wordings: (family, render) pairs: models that the harness asks in other words, by the
            `wording` of their family.
    """

    name: str
    render: Callable[[Question], Prompt]
    read_choice: Callable[[str, Question], int | None]
    max_new_tokens: int = 16
    harness_score: Callable[[str, Question], float | None] | None = None
    failed_reply: str = ""
    macro: bool = False
    wordings: tuple[tuple[str, Callable[[Question], Prompt]], ...] = ()

    def for_family(self, wording: str) -> Protocol:
        """The protocol as the harness asks the models of a family.

        Args:
            wording: `ModelFamily.wording`; most have none and read the usual words.
        """
        return replace(self, render=dict(self.wordings).get(wording, self.render))
