"""YAML from people: read in bounded time and memory, whatever it holds.

A few lines can stand for billions of values (aliases of aliases), and a thousand brackets exhaust
the stack. The events of a document are therefore counted before anything is built from them.
"""

from __future__ import annotations

from typing import Any

import yaml

# The largest recipe that ships has 60 values, 6 deep, in 2 KB.
MAX_BYTES = 1 << 18
MAX_DEPTH = 32
MAX_VALUES = 20_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(ValueError):
    """A text that cannot be read; the message, one line, goes behind the name of the text."""


def load_yaml(text: str | bytes) -> Any:
    """Read one YAML document of plain values.

    Raises:
        YamlError: If it is not UTF-8 or not YAML, larger than `MAX_BYTES`, nested deeper than
            `MAX_DEPTH`, or of more than `MAX_VALUES` values, an alias counting as what it stands
            for.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"is larger than {MAX_BYTES >> 10} KiB, which no recipe is")
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        _raise_if_too_much(decoded)
        return yaml.load(decoded, Loader=_Loader)
    except UnicodeDecodeError as error:
        raise YamlError(f"is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise YamlError(f"is not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        if isinstance(error, YamlError):
            raise
        # The constructors of dates and numbers, e.g. 2025-13-99.
        raise YamlError(f"is not YAML: {error}") from error


def _raise_if_too_much(text: str) -> None:
    """Count depth and values, an alias with all it stands for."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []  # anchor, values before it
    total = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            total += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                sizes[event.anchor] = 1
        if len(open_nodes) > MAX_DEPTH:
            raise YamlError(f"is nested deeper than {MAX_DEPTH}, which no recipe is")
        if total > MAX_VALUES:
            raise YamlError(f"stands for more than {MAX_VALUES} values, which no recipe does")
