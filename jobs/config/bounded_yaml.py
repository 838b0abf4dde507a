"""Read YAML written by users: one document of plain values, of limited size, with unique keys."""

from __future__ import annotations

from typing import Any

import yaml

from tango_core.errors import InputError

# The largest recipe that ships has 60 values, 6 deep, in 2 KB.
MAX_BYTES = 1 << 18
MAX_DEPTH = 32
MAX_VALUES = 20_000


class YamlError(InputError):
    """Invalid YAML; the one-line message is meant to follow the name of the file or option."""


class _Loader(yaml.SafeLoader):
    """Loader that refuses duplicate keys, of which PyYAML would silently keep the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """See `SafeLoader`; merged mappings (`<<`) may repeat keys."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise YamlError(f"repeats the key {key.value!r} on line {line}")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(text: str | bytes) -> Any:
    """Read one YAML document of plain values.

    Raises:
        YamlError: If it is not UTF-8 or not YAML, larger than `MAX_BYTES`, nested deeper than
            `MAX_DEPTH`, has more than `MAX_VALUES` values (aliases expanded), or repeats a key in
            a mapping.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"is larger than the maximum of {MAX_BYTES >> 10} KiB")
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        content = yaml.load(decoded, Loader=_Loader)
    except UnicodeDecodeError as error:
        raise YamlError(f"is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except RecursionError as error:
        raise YamlError(f"is nested deeper than the maximum of {MAX_DEPTH} levels") from error
    except yaml.YAMLError as error:
        hint = "; indent with spaces, not with tabs" if _has_tab(decoded, error) else ""
        raise YamlError(f"is not YAML: {' '.join(str(error).split())}{hint}") from error
    except YamlError:
        raise
    except ValueError as error:  # from the constructors of dates and numbers, e.g. 2025-13-99
        raise YamlError(f"is not YAML: {error}") from error
    _raise_if_too_large(content)
    return content


def _has_tab(text: str, error: Exception) -> bool:
    """Whether the invalid line is indented with a tab."""
    mark = getattr(error, "problem_mark", None)
    line = dict(enumerate(text.split("\n"))).get(mark.line, "") if mark else ""
    return "\t" in line[: len(line) - len(line.lstrip())]


def _raise_if_too_large(content: Any) -> None:
    """Check the number of values and the depth, with aliases expanded."""
    waiting, total = [(content, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        total += 1
        if depth > MAX_DEPTH:
            raise YamlError(f"is nested deeper than the maximum of {MAX_DEPTH} levels")
        if total > MAX_VALUES:
            raise YamlError(f"has more than the maximum of {MAX_VALUES} values")
        if isinstance(value, dict):
            waiting += ((part, depth + 1) for pair in value.items() for part in pair)
        elif isinstance(value, list):
            waiting += ((part, depth + 1) for part in value)
