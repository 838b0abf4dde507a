"""Mutations of plain values: what JSON, YAML and rows of tables are made of."""

from __future__ import annotations

import copy
import random
from typing import Any

STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e308, 10**40, 2**63, -(2**63), 1e-320),
    *(float("nan"), float("inf"), "", " ", "null", "1", "a\nb", "x" * 3000, "\x00", "=1+1", "auto"),
    *("é漢🎞", "../../x", "/", "~", "$(x)", "{{x}}", "[bold]", "s3://", "-1", "0.25", "2025-13-99"),
    *(
        [],
        {},
        [[]],
        [{}],
        {"": None},
        ["a"],
        [0.1, 0.2],
        {"name": "full"},
        [None],
        {"a": {"b": {}}},
    ),
)


def mutated(value: Any, dice: random.Random, done: list[str] | None = None) -> Any:
    """A copy with one to three changes.

    Args:
        value: Dicts, lists and scalars.
        dice: Decides.
        done: Receives what was done, in words.
    """
    root = [copy.deepcopy(value)]
    for _ in range(dice.choices((1, 2, 3), (6, 3, 1))[0]):
        said = _change_one(root, dice)
        if done is not None:
            done.append(said)
    return root[0]


def _places(holder: Any, path: str = "") -> list[tuple[Any, Any, str]]:
    """Every (holder, key, path) below a value."""
    found: list[tuple[Any, Any, str]] = []
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    for key in keys:
        own = f"{path}.{key}"
        found.append((holder, key, own))
        if isinstance(holder[key], (dict, list)):
            found += _places(holder[key], own)
    return found


def _change_one(root: list[Any], dice: random.Random) -> str:
    holder, key, path = dice.choice(_places(root))
    old = holder[key]
    how = dice.choice(("strange", "strange", "near", "remove", "double", "wrap", "rename", "swap"))
    if how == "remove" and holder is not root:
        del holder[key]
    elif how == "double" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(old))
    elif how == "wrap":
        holder[key] = dice.choice(([old], {"value": old}, str(old)))
    elif how == "rename" and isinstance(holder, dict):
        name = str(key)
        at = dice.randrange(len(name) + 1)
        new = dice.choice((name.upper(), name[:at] + name[at + 1 :], f"{name}s", "", name[::-1]))
        holder[new] = holder.pop(key)
    elif how == "swap":
        other, behind, _ = dice.choice(_places(root))
        if not _is_inside(old, other) and not _is_inside(other[behind], holder):
            holder[key], other[behind] = other[behind], old
    elif how == "near" and isinstance(old, (int, float)) and not isinstance(old, bool):
        holder[key] = dice.choice((old + 1, old - 1, -old, old * 10, old / 3, str(old), int(old)))
    elif how == "near" and isinstance(old, str):
        at = dice.randrange(len(old) + 1)
        holder[key] = dice.choice((old[:at], old[:at] + "?" + old[at:], old.upper(), f" {old}\t"))
    else:
        holder[key] = copy.deepcopy(dice.choice(STRANGE))
    return f"{how} {path}"


def _is_inside(value: Any, holder: Any) -> bool:
    """Whether a holder is the value, or below it."""
    if value is holder:
        return True
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_is_inside(one, holder) for one in below)


def damaged_text(data: bytes, dice: random.Random, done: list[str]) -> bytes:
    """A text with a few bytes, lines or ends changed."""
    how = dice.choice(("byte", "cut", "line", "lines", "insert", "empty", "encode", "delete"))
    at = dice.randrange(len(data) + 1)
    done.append(f"{how} at {at}")
    lines = data.splitlines(keepends=True)
    match how:
        case "byte":
            return data[:at] + dice.randbytes(1) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "line":
            dice.shuffle(lines)
            return b"".join(lines)
        case "lines":
            return b"".join(lines) + b"".join(lines[dice.randrange(len(lines) + 1) :])
        case "insert":
            new = (
                b"{",
                b"]",
                b'"',
                b"\n",
                b"\t",
                b"\xff\xfe",
                b"\x00",
                b"&a *a",
                b",",
                b": ",
                b"-",
            )
            return data[:at] + dice.choice(new) + data[at:]
        case "empty":
            return dice.choice((b"", b"\n", b"{}", b"[]", b"null", b"0", b"\xef\xbb\xbf" + data))
        case "encode":
            return data.decode("utf-8", "replace").encode(dice.choice(("utf-16", "utf-32")))
    return data[:at] + data[at + dice.randrange(1, 40) :]
