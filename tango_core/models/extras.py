"""The optional tango.json beside config.json: what config.json has no place for.

    {"chat": {"opening": "a", "after_clip": "b", "closing": "c"}, "sinks": [28], "note": "d"}

`chat` is the text around clip and question (`language/chat.py`), `sinks` are positions of the token
grid that attract attention in every clip, `note` is shown with every result. Any key may be left
out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tango_core.models.checkpoints.directory import Checkpoint
from tango_core.models.language.chat import ChatFormat, chat_format


@dataclass(frozen=True)
class Extras:
    """Content of the optional tango.json of a checkpoint."""

    chat: ChatFormat
    sinks: tuple[int, ...] | None
    note: str


def read_extras(checkpoint: Checkpoint, default_chat: ChatFormat) -> Extras:
    """Content of tango.json, or its defaults.

    Args:
        checkpoint: Where the file may be.
        default_chat: Conversation of a checkpoint whose file names none.

    Raises:
        ValueError: If it has unknown keys or wrong values.
    """
    content = checkpoint.read_json("tango.json") or {}
    unknown = sorted(set(content) - {"chat", "sinks", "note"})
    if unknown:
        raise ValueError(
            f"{checkpoint.source}/tango.json: unknown key {unknown[0]!r}; "
            "known are chat, sinks, note"
        )
    sinks = content.get("sinks")
    return Extras(
        chat=chat_format(content.get("chat"), checkpoint.source, default_chat),
        sinks=None if sinks is None else tuple(int(sink) for sink in sinks),
        note=str(content.get("note", "")),
    )
