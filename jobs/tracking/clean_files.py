"""What of a text file is uploaded: the file, or the same without its secrets.

In JSON and YAML every text is redacted for itself and the document is written anew: in their own
spelling a secret may be escaped, and `***` in its place may be no value, or only half of one.
"""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

import yaml

from jobs.config.bounded_yaml import load_yaml
from pipeline.redaction import redacted, redacted_inside

# Text files that may quote a URL with a password.
_TEXT = (".yaml", ".json", ".html", ".md", ".csv")


def without_secrets(path: Path) -> str | None:
    """What is uploaded instead of a file; `None` for the file as it is.

    Numbers stay as they are, also where a secret is one. A file that cannot be read as what its
    name says is redacted as text.

    Args:
        path: Of the file; text files are UTF-8.
    """
    if path.suffix not in _TEXT:
        return None
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".json":
            return _json(text)
        if path.suffix == ".yaml":
            return _yaml(text)
    except (ValueError, RecursionError):
        pass
    clean = redacted(text)
    return clean if clean != text else None


def _json(text: str) -> str | None:
    """The document without secrets; `None` if it has none."""
    held = json.loads(text)
    clean = redacted_inside(held)
    return None if _same(clean, held) else json.dumps(clean, indent=2, ensure_ascii=False) + "\n"


def _yaml(text: str) -> str | None:
    """The same, with the comment at the start; any other is lost where something is redacted."""
    comment = "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))
    held, shown = load_yaml(text), redacted(comment)
    clean = redacted_inside(held)
    if _same(clean, held):
        return None if shown == comment else shown + text[len(comment) :]
    return shown + yaml.safe_dump(clean, sort_keys=False, allow_unicode=True)


def _same(one: object, other: object) -> bool:
    """Whether two documents are equal; a number that is none (NaN) is equal to itself."""
    return repr(one) == repr(other)
