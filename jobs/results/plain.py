"""Dataclasses as plain data and back, as `facts.json` and `summary.json` hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tango_core.metrics import Estimate

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# What `json` reads and writes.
Json = dict[str, Any]

Instance = TypeVar("Instance", bound="DataclassInstance")


def to_plain(value: Any) -> Any:
    """A value as `json` writes it; a class whose keys are not those of its fields has `to_json`."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, Estimate):
        return estimate_to_json(value)
    if hasattr(value, "to_json"):
        return value.to_json()
    return fields_to_plain(value) if is_dataclass(value) else value


def estimate_to_json(estimate: Estimate, key: str = "accuracy") -> Json:
    """An estimate, its value under a key of the caller's choice."""
    ends = [estimate.low, estimate.high]
    return {key: estimate.value, "ci95": ends, "n": estimate.num_questions}


def fields_to_plain(instance: object) -> Json:
    """The fields of a dataclass in their order, each under its name or its key in `JSON_KEYS`."""
    keys = getattr(instance, "JSON_KEYS", {})
    return {keys.get(name, name): to_plain(value) for name, value in vars(instance).items()}


def with_counts(data: Json) -> Json:
    """Plain fields with the keys of `counts` in its place, as summaries have them."""
    flat: Json = {}
    for key, value in data.items():
        flat |= value if key == "counts" else {key: value}
    return flat


def from_plain(cls: type[Instance], data: Mapping[str, Any], **read: Any) -> Instance:
    """Build a dataclass from the keys of a file.

    Keys that the class does not know are ignored; one that is absent or null means the default.

    Args:
        cls: The class.
        data: What `fields_to_plain` and JSON made of an instance.
        **read: Fields that are read already.

    Raises:
        KeyError: If a key without a default is missing.
    """
    keys = getattr(cls, "JSON_KEYS", {})
    found = {}
    for one in fields(cls):
        key = keys.get(one.name, one.name)
        required = one.default is MISSING and one.default_factory is MISSING
        if one.name not in read and (required or data.get(key) is not None):
            found[one.name] = data[key]
    return cls(**found, **read)
