"""Options of a model's family: written directly under `model`, checked by the family.

The recipe's schema does not list them, so that a family with an option of its own, in this package
or in another, needs no change here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tango_core.errors import InputError
from tango_core.models import MODELS, model_options, names_of_options


def with_model_options(content: Mapping[str, Any], common: Collection[str]) -> Mapping[str, Any]:
    """A recipe with the options of its model's family moved to `model.options`.

    Unknown keys stay where they are, for the schema to refuse. For a model from outside this
    package every key that is not common is an option; its family checks them when it is described.

    Args:
        content: The recipe as YAML gives it.
        common: Keys that every model has.

    Raises:
        ValueError: If the model's family has no such option, or a value is wrong.
    """
    model = content.get("model")
    if not isinstance(model, Mapping):
        return content
    if "options" in model:
        raise InputError("unknown key 'model.options'; write its keys directly under model")
    name = model.get("name", "tiny")
    ours = isinstance(name, str) and name in MODELS
    known = names_of_options() if ours else set(model) - set(common)
    options = {key: value for key, value in model.items() if key in known and value is not None}
    if ours:
        model_options(name, options)
    rest = {key: value for key, value in model.items() if key not in known}
    return {**content, "model": {**rest, "options": options}}


def flat_model(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section `model` as a recipe writes it; options that are not given are `null`."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if key == "options":
            flat |= {**dict.fromkeys(names_of_options()), **(value or {})}
        else:
            flat[key] = value
    return flat
