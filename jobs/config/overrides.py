"""A recipe before it is checked: the file, and the changes of `--set a.b=c`.

Three rules make one override do what a person means by it:

- `--set benchmark.name=shapes` in a recipe that lists `benchmarks` replaces the list, and `--set
  method.name=full` a list `methods`: a recipe has one or the other.
- Another `benchmark.name` or `model.name` leaves behind what belongs to the old one (its files,
  its checkpoint, the options only it has), unless they are set as well. The embedded model also
  leaves `pools` behind: it needs no GPU.
- A number is a place in a list, from 0: `--set methods.1.inner.layer=2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

# section -> keys that mean the same under another name of the section
_COMMON_KEYS = {"benchmark": ("seed", "protocol"), "model": ("num_frames", "device")}
_LISTS = {"benchmark": "benchmarks", "method": "methods"}


class RecipeError(ValueError):
    """A recipe or a `--set` that cannot be used; the message is one line for the user."""


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the content of a recipe file.

    Raises:
        RecipeError: If it cannot be read, is not YAML, or holds something else than sections.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RecipeError(
            f"cannot read recipe {path}: {error.strerror}; see jobs/recipes for examples"
        ) from error
    return recipe_of(text, str(path))


def recipe_of(text: bytes, source: str) -> dict[str, Any]:
    """Return the content of a recipe; `source` is named in errors.

    Raises:
        RecipeError: If it is not YAML, or holds something else than sections.
    """
    try:
        content = yaml.safe_load(text.decode())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{source} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise RecipeError(
            f"{source}: a recipe is a mapping with benchmark, model and method; see jobs/recipes"
        )
    return content


def with_overrides(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of a recipe with all `a.b=c` applied, in their order.

    Args:
        content: The recipe as YAML gives it.
        overrides: The values of `--set`.

    Raises:
        RecipeError: If one of them is malformed or leads nowhere, in one line.
    """
    changes = [_parsed(override) for override in overrides]
    result = dict(content)
    for (section, *rest), value, _ in changes:
        if section in _LISTS and (rest or value is not None):
            result.pop(_LISTS[section], None)
    for (section, *rest), value, _ in changes:
        old = result.get(section)
        if rest == ["name"] and isinstance(old, dict) and old.get("name") not in (None, value):
            common = _COMMON_KEYS.get(section, ())
            result[section] = {key: kept for key, kept in old.items() if key in common}
            if (section, value) == ("model", "tiny"):
                result.pop("pools", None)
    for keys, value, override in changes:
        result = _replaced(result, keys, value, override)
    return result


def _parsed(override: str) -> tuple[list[str], Any, str]:
    """Keys, value and text of one override."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"--set {override!r} is not of the form key.subkey=value")
    try:
        return key.split("."), yaml.safe_load(text), override
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {override!r}: {text!r} is not a YAML value") from error


def _replaced(place: Any, keys: Sequence[str], value: Any, override: str) -> Any:
    """A copy of `place` in which the value at `keys` is another one; absent sections appear."""
    if not keys:
        return value
    key, *rest = keys
    if isinstance(place, list):
        if not key.isdigit() or int(key) >= len(place):
            raise RecipeError(
                f"--set {override!r}: {key!r} is no place in a list of {len(place)}; "
                f"use 0 to {len(place) - 1}"
            )
        changed = list(place)
        changed[int(key)] = _replaced(place[int(key)], rest, value, override)
        return changed
    if place is not None and not isinstance(place, dict):
        before = override.partition("=")[0].split(".")
        where = ".".join(before[: len(before) - len(keys)])
        raise RecipeError(f"--set {override!r}: {where} is no section of the recipe")
    section = dict(place or {})
    section[key] = _replaced(section.get(key), rest, value, override)
    return section
