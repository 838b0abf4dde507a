r"""Convert text to a form that every file format, terminal and table can represent.

Python represents bytes of file names that are not UTF-8 by lone surrogates, and JSON may contain
lone surrogates as `\ud83d`. Neither can be written to Parquet, JSON or a terminal.
"""

from __future__ import annotations

from dataclasses import replace

from tango_core.types import Subtitles, VideoItem


def is_printable(text: str) -> bool:
    """Whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    r"""The text with lone surrogates spelled out: a byte 0xE9 of a file name becomes `\xe9`."""
    return text if is_printable(text) else "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    """One character, or its code if it is a lone surrogate."""
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte encoded by `surrogateescape`
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if 0xD800 <= code <= 0xDFFF else character


def printable_item(item: VideoItem) -> VideoItem:
    """A clip whose name, questions and subtitles are printable.

    Its path is unchanged.
    """
    shown = item.subtitles.text if item.subtitles else None
    texts = [item.video_id, shown or ""]
    for one in item.questions:
        texts += [one.id, one.text, *one.choices, *one.groups, *one.groups.values(), *one.accepted]
    if is_printable("".join(texts)):
        return item
    questions = [
        replace(
            one,
            id=printable(one.id),
            text=printable(one.text),
            choices=tuple(map(printable, one.choices)),
            groups={printable(k): printable(v) for k, v in one.groups.items()},
            accepted=tuple(map(printable, one.accepted)),
        )
        for one in item.questions
    ]
    subtitles = item.subtitles if shown is None else Subtitles(printable(shown))
    name = printable(item.video_id)
    return replace(item, video_id=name, subtitles=subtitles, questions=tuple(questions))
