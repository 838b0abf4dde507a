"""Options of a model family, which recipes write directly under `model`.

The family checks them. The recipe's schema does not list them, so that families in this or another
package can add options without a change here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tango_core.errors import InputError
from tango_core.models import MODELS, model_options, names_of_options


def with_model_options(content: Mapping[str, Any], common: Collection[str]) -> Mapping[str, Any]:
    """Move the options of the model's family to `model.options`.

    Unknown keys are not moved; the schema refuses them later. For a model from another package,
    all keys outside of `common` are options, which its family checks when the model is described.

    Args:
        content: The recipe parsed from YAML.
        common: Keys that every model has.

    Raises:
        InputError: If the model's family does not have the option, or a value is wrong.
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
    """The section `model` in recipe form, without nesting; unset options are `None`."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if key == "options":
            flat |= {**dict.fromkeys(names_of_options()), **(value or {})}
        else:
            flat[key] = value
    return flat
