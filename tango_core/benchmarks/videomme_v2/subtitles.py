"""The subtitles of Video-MME-v2: one word per line of JSON, all of which both harnesses show."""

from __future__ import annotations

import json

from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.types import Subtitles


def all_words(subtitles: Subtitles, _: Watched) -> str:
    """All words with a space between them, whatever frames are shown; "" for a damaged file.

    lmms-eval shows no subtitles of such a file either; VLMEvalKit ends there.
    """
    words = []
    for line in (subtitles.text or "").split("\n"):
        if line.strip():
            try:
                words.append(str(json.loads(line)["text"]))
            except (ValueError, KeyError, TypeError, RecursionError):
                return ""
    return " ".join(words)
