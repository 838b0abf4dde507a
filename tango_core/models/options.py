"""Options that only one family of models has: a frozen dataclass, and the check of its values.

A recipe writes them under `model`, `describe_model` takes them as keywords, and
`ModelSpec.options` holds them. Importing this module, and the module of a family's options, loads
neither torch nor transformers: recipes are checked before anything heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tango_core.errors import InputError

# Frames that go through a vision tower together, 1 or larger; "auto" for what fits.
EncodeBatch = int | Literal["auto"]

# What becomes of the text around a temporal position that keeps no token (`language/prompt.py`).
EmptyBlocks = Literal["keep", "drop"]

_KINDS = {bool: "true or false", float: "a number", int: "a whole number", str: "a text"}


@dataclass(frozen=True)
class FamilyOptions:
    """The options of a family; a family that has some extends it.

    Every field is an option with a default, `bool`, `int`, `float`, `str` or a `Literal`, alone or
    with `None`. `__post_init__` checks ranges; its errors name `model.<option>`. A field with
    `init=False` is a fact of the family that nobody can choose.
    """

    def identity(self) -> dict[str, Any]:
        """The options that decide the tokens of a clip, by name, for the cache."""
        return {}

    def input_size(self) -> str:
        """What gives the model another number of tokens than published, as a recipe says it.

        "" for the published number. Runs that differ in it see other input: one with fewer tokens
        is a control of the others.
        """
        return ""


OptionsT = TypeVar("OptionsT", bound=FamilyOptions)


def option_names(cls: type[FamilyOptions]) -> tuple[str, ...]:
    """Names of the options, in the order of the fields."""
    return tuple(option.name for option in fields(cls) if option.init)


def checked_options(cls: type[OptionsT], model: str, options: Mapping[str, Any]) -> OptionsT:
    """Build the options of a family from what the user wrote.

    Args:
        cls: The options of the family.
        model: Name of the model, for messages.
        options: Option -> value; `None` is the family's own.

    Raises:
        ValueError: For an unknown option or a wrong value, in one line that names
            `model.<option>`.
    """
    made = {name: value for name, value in options.items() if value is not None}
    allowed = option_names(cls)
    for name in made:
        if name not in allowed:
            close = get_close_matches(name, allowed, n=1)
            hint = f", or did you mean model.{close[0]}?" if close else ""
            raise InputError(f"model.{name} is no setting of model {model}; leave it out{hint}")
    hints = get_type_hints(cls)
    return cls(
        **{name: _checked(f"model.{name}", value, hints[name]) for name, value in made.items()}
    )


def raise_if_wrong_area(area: int | None, others: Mapping[str, int | None]) -> None:
    """Refuse a `frame_area` that is none, or that stands beside a bound that it replaces.

    Args:
        area: The setting; `None` for none.
        others: Option that it replaces -> its value.

    Raises:
        ValueError: In one line that names the setting.
    """
    if area is None:
        return
    if area < 1:
        raise InputError(f"model.frame_area must be 1 or larger, got {area}")
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise InputError(f"model.frame_area takes the place of model.{given[0]}; leave one out")


def raise_unless_one_of(setting: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Refuse a value that is not in the list; `None` is not shown among the allowed ones."""
    if value not in allowed:
        listed = ", ".join(str(one) for one in allowed if one is not None)
        raise InputError(f"{setting} must be one of {listed}, got {value!r}")


def _checked(setting: str, value: Any, kind: Any) -> Any:
    """The value as its kind, a type or a Literal; a whole number may stand for a number."""
    if get_origin(kind) is not Literal and NoneType in get_args(kind):
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is Literal:
        raise_unless_one_of(setting, value, get_args(kind))
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InputError(f"{setting} must be {_KINDS[kind]}, got {value!r}")
    return value
