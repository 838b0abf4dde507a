"""Read YAML and recipe files, and apply `--set a.b=c`, before the recipe is checked.

Three rules keep a recipe valid after a single override:

- `--set benchmark.name=shapes` in a recipe that lists `benchmarks` replaces that list, and `--set
  method.name=full` replaces a list `methods`, because a recipe must not have both.
- Changing `benchmark.name` or `model.name` removes the keys that belong to the old one (files,
  checkpoint, options), unless they are set as well. The built-in model also removes `pools`,
  because it needs no GPU.
- A number is a 0-based index of a list: `--set methods.1.inner.layer=2`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.redaction import holds_credentials
from tango_core.errors import InputError
from tango_core.models import MODELS

MAX_BYTES = 1 << 18
"""Maximum size of YAML; a video or a checkpoint named by mistake is not read into memory."""

# section -> keys that are kept when the name of the section changes
_COMMON_KEYS = {"benchmark": ("seed", "protocol"), "model": ("num_frames", "device")}
_LISTS = {"benchmark": "benchmarks", "method": "methods"}
# Keys that do not affect the answers, such as workers and timeouts.
_NOT_COMPUTED = (
    *("pools", "cluster", "decode", "tracking", "executor"),
    *("max_failures", "infeasible"),
)
_NOT_COMPUTED_OF_MODEL = ("encode_batch",)

RECIPES = Path(__file__).parents[1] / "recipes"
"""The recipes of this package, which can also be named without their directory and suffix."""


class RecipeError(InputError):
    """Invalid recipe or `--set`; the message is one line."""


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
        YamlError: If it is not UTF-8 or not YAML, larger than `MAX_BYTES`, or repeats a key in a
            mapping.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"is larger than the maximum of {MAX_BYTES >> 10} KiB")
    try:
        return yaml.load(text.decode() if isinstance(text, bytes) else text, Loader=_Loader)
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(f"is not YAML: {' '.join(str(error).split())}") from error


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the content of a recipe file, or of a recipe of this package.

    Raises:
        RecipeError: If it cannot be read, is not YAML, or is not a mapping of sections.
    """
    shipped, where = RECIPES / f"{path}.yaml", Path(os.path.expanduser(path))
    if not where.exists() and path.name == str(path) and shipped.is_file():
        where = shipped
    try:
        with where.open("rb") as file:  # may be a pipe: <(make-recipe)
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(
            f"cannot read recipe {path}: {error.strerror}; `tango list recipes` lists examples"
        ) from error
    return recipe_of(text, str(path))


def recipe_of(text: bytes, source: str) -> dict[str, Any]:
    """Parse the content of a recipe; `source` is named in errors.

    Raises:
        RecipeError: If it is not YAML, or is not a mapping of sections.
    """
    try:
        content = load_yaml(text)
    except YamlError as error:
        raise RecipeError(f"{source} {error}") from error
    if not isinstance(content, dict):
        raise RecipeError(
            f"{source}: a recipe must be a mapping with benchmark, model and method; "
            "`tango list recipes` lists examples"
        )
    return content


def with_overrides(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Copy a recipe and apply all overrides in order.

    Args:
        content: The recipe parsed from YAML.
        overrides: The values of `--set`, each `a.b=c`.

    Raises:
        RecipeError: If an override is malformed or its key does not exist.
    """
    changes = [parse_setting("--set", override) for override in overrides]
    result = dict(content)
    for (section, *rest), value, _ in changes:
        if section in _LISTS and (rest or value is not None):
            result.pop(_LISTS[section], None)
    for (section, *rest), value, _ in changes:
        old = result.get(section)
        if rest == ["name"] and isinstance(old, dict) and old.get("name") not in (None, value):
            common = _COMMON_KEYS.get(section, ())
            result[section] = {key: kept for key, kept in old.items() if key in common}
            model = MODELS.get(value) if section == "model" else None
            if model is not None and model.embedded:
                result.pop("pools", None)
    for keys, value, override in changes:
        result = _with_value(result, keys, value, override)
    return result


def parse_setting(option: str, text: str) -> tuple[list[str], Any, str]:
    """Parse `key.subkey=value`, with a YAML value; returns the keys, the value and `text`.

    Args:
        option: The option of the command line, for messages.
        text: The value of the option.

    Raises:
        RecipeError: If it is not of that form.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise RecipeError(f"{option} {text!r} is not of the form key.subkey=value")
    try:
        return key.split("."), load_yaml(value), text
    except YamlError as error:
        raise RecipeError(f"{option} {text!r} {error}") from error


def _with_value(node: Any, keys: Sequence[str], value: Any, override: str) -> Any:
    """A copy of `node` with `value` at `keys`; missing sections are created."""
    if not keys:
        return value
    key, *rest = keys
    if isinstance(node, list):
        if not key.isdecimal() or int(key) >= len(node):
            raise RecipeError(
                f"--set {override!r}: {key!r} is not an index of a list of {len(node)}; "
                f"use 0 to {len(node) - 1}"
            )
        changed = _with_value(node[int(key)], rest, value, override)
        return [*node[: int(key)], changed, *node[int(key) + 1 :]]
    if node is not None and not isinstance(node, dict):
        where = override.partition("=")[0].removesuffix("." + ".".join(keys))
        raise RecipeError(f"--set {override!r}: {where} is not a section of the recipe")
    section = node or {}
    return {**section, key: _with_value(section.get(key), rest, value, override)}


def dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values: `{"model": {"name": "tiny"}}` -> `model.name`, `"tiny"`."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def raise_if_secret_in(content: Mapping[str, Any], source: str) -> None:
    """Refuse a recipe whose URLs contain credentials, because runs hold copies of it.

    Raises:
        RecipeError: If a URL has a password or a signature.
    """
    found = (key for key, value in dotted(content) if holds_credentials(str(value)))
    key = next(found, None)
    if key is not None:
        raise RecipeError(
            f"{source}: {key} contains credentials, which would be copied into the run's files; "
            "take them out of the URL and provide them through the environment or configuration "
            "files (AWS_PROFILE, ~/.aws, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN)"
        )


def computed_part(content: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a recipe that determines the answers.

    Recipes in which it is equal give the same answers, so a run of one can be continued with the
    other. New recipe keys that do not change answers belong in `_NOT_COMPUTED`.

    Args:
        content: A resolved recipe, parsed from YAML.
    """
    decode = content.get("decode")
    decoder = decode.get("decoder") if isinstance(decode, Mapping) else None
    kept = {key: value for key, value in content.items() if key not in _NOT_COMPUTED}
    model = content.get("model")
    if isinstance(model, Mapping):  # drop unset options, which older recipes may not have
        kept["model"] = {
            key: value
            for key, value in model.items()
            if value is not None and key not in _NOT_COMPUTED_OF_MODEL
        }
    cache = kept.pop("cache", None)
    if isinstance(cache, Mapping) and cache.get("feature_dtype", "auto") != "auto":
        kept["cache"] = cache["feature_dtype"]  # rounds tokens; other keys do not change answers
    return {**kept, "decode": decoder}
