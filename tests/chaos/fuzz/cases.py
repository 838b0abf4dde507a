"""What is told of a case, whatever it is about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How a case ended.

    Attributes:
        kind: What was damaged: `videos`, `files`, `recipes`, `annotations`, `resume`.
        about: The file, e.g. `"h264.mp4"` or `"facts.json"`.
        what: How it ended, in two or three words, to be counted.
        problem: What must not be; "" if all is right.
        mutations: What was done to the file.
        said: The status and the message that a user gets.
    """

    kind: str
    about: str
    what: str
    problem: str = ""
    mutations: tuple[object, ...] = ()
    said: str = ""
