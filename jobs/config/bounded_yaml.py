"""YAML files of users, parsed within limits of size, depth and number of values.

A few lines can stand for billions of values (aliases of aliases), and a thousand brackets exhaust
the stack. The events of a document are therefore counted before anything is built from them. Two
equal keys in one mapping are refused too, because one of them would be lost without a word.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from tango_core.errors import InputError

# The largest recipe that ships has 60 values, 6 deep, in 2 KB.
MAX_BYTES = 1 << 18
MAX_DEPTH = 32
MAX_VALUES = 20_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(InputError):
    """A text that cannot be read; the message, one line, goes behind the name of the text."""


def load_yaml(text: str | bytes) -> Any:
    """Read one YAML document of plain values.

    Raises:
        YamlError: If it is not UTF-8 or not YAML, larger than `MAX_BYTES`, nested deeper than
            `MAX_DEPTH`, or of more than `MAX_VALUES` values, an alias counting as what it stands
            for; or if a value holds itself, or a mapping a key twice.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"is larger than {MAX_BYTES >> 10} KiB, which no recipe is")
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        _raise_if_refused(decoded)
        return yaml.load(decoded, Loader=_Loader)
    except UnicodeDecodeError as error:
        raise YamlError(f"is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except (yaml.YAMLError, RecursionError) as error:
        hint = "; indent with spaces, not with tabs" if _has_tab(decoded, error) else ""
        raise YamlError(f"is not YAML: {' '.join(str(error).split())}{hint}") from error
    except ValueError as error:
        if isinstance(error, YamlError):
            raise
        if str(error).startswith("Exceeds the limit"):  # of Python, for the digits of an integer
            raise YamlError(
                "holds a number of thousands of digits, which no recipe does"
            ) from error
        # The constructors of dates and numbers, e.g. 2025-13-99.
        raise YamlError(f"is not YAML: {error}") from error


def _has_tab(text: str, error: Exception) -> bool:
    """Whether the line that cannot be read is indented with a tab."""
    mark = getattr(error, "problem_mark", None)
    line = dict(enumerate(text.split("\n"))).get(mark.line, "") if mark else ""
    return "\t" in line[: len(line) - len(line.lstrip())]


def _raise_if_refused(text: str) -> None:
    """Count depth and values, an alias with all it stands for; look at every key."""
    known: dict[str, tuple[int, int]] = {}  # anchor: values it stands for, levels of them
    open_nodes: list[_Open] = []
    total = 0
    for event in yaml.parse(text, Loader=_Loader):
        if open_nodes and isinstance(event, yaml.NodeEvent):
            open_nodes[-1].add(event)
        below = 0
        if isinstance(event, yaml.AliasEvent):
            if any(node.anchor == event.anchor for node in open_nodes):
                raise YamlError(f"holds *{event.anchor} inside itself, which no recipe does")
            values, below = known.get(event.anchor or "", (1, 0))
            total += values
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append(_Open(event.anchor, total, isinstance(event, yaml.MappingStartEvent)))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            node = open_nodes.pop()
            below = node.levels + 1
            if node.anchor:
                known[node.anchor] = total - node.before, below
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                known[event.anchor] = 1, 0
        if open_nodes:
            open_nodes[-1].levels = max(open_nodes[-1].levels, below)
        if len(open_nodes) + below > MAX_DEPTH:
            raise YamlError(f"is nested deeper than {MAX_DEPTH}, which no recipe is")
        if total > MAX_VALUES:
            raise YamlError(f"stands for more than {MAX_VALUES} values, which no recipe does")


@dataclass
class _Open:
    """A collection whose end was not read yet."""

    anchor: str | None
    before: int  # values before it
    is_mapping: bool
    levels: int = 0  # of collections inside it
    children: int = 0  # keys and values so far
    keys: set[str] = field(default_factory=set)

    def add(self, child: Any) -> None:
        """Count one key or value; YAML itself would keep the last of two equal keys."""
        is_key = self.is_mapping and self.children % 2 == 0
        self.children += 1
        if not is_key or not isinstance(child, yaml.ScalarEvent) or child.value == "<<":
            return
        if child.value in self.keys:
            line = child.start_mark.line + 1 if child.start_mark else 0
            raise YamlError(f"holds {child.value!r} a second time on line {line}; write it once")
        self.keys.add(child.value)
