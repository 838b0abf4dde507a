"""Reads what `tango submit` gets for the cluster: options, variables, resources."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from pipeline.redaction import is_secret
from tango_core.errors import InputError

# Options that the client sets itself.
_OURS = {"address", "continue_", "recipe", "set_"}


def split_options(
    context: typer.Context, command: str, recipe: Path, options: list[str]
) -> tuple[list[str], list[str]]:
    """Read the options behind `--` as the command itself would.

    Args:
        context: Of `tango submit`.
        command: What the cluster will run.
        recipe: The recipe file.
        options: As given.

    Returns:
        `--set` strings for all that changes the recipe, and the other options for the cluster.

    Raises:
        ValueError: If an option is not for submitted jobs; wrong ones end as in the command.
    """
    from jobs.config.recipe import Job

    parent: Any = context.parent
    arguments = [str(recipe), *options]
    parsed = parent.command.commands[command].make_context(command, [*arguments], parent=parent)
    # As written: a `~` is the home directory there, not here.
    written, _, _ = parsed.command.make_parser(parsed).parse_args([*arguments])
    given = {
        one.name: (one, parsed.params[one.name])
        for one in parsed.command.params
        if one.name in parsed.params and parsed.get_parameter_source(one.name).name == "COMMANDLINE"
    }
    if "address" in given:
        raise InputError(
            "--address behind -- is not for submitted jobs: they join the cluster they are "
            "submitted to; remove it"
        )
    # Options that are named as keys of recipes; the key `cache` is a section, `--cache` a place.
    keys = {one.name for one in fields(Job)} - {"cache"}
    changes = list(parsed.params.get("set_", ()))
    changes += [f"{name}={value}" for name, (_, value) in given.items() if name in keys]
    rest: list[str] = []
    for name, (option, _) in given.items():
        if name in _OURS or name in keys:
            continue
        value = written[name]
        for one in value if isinstance(value, (list, tuple)) else [value]:
            rest += [option.opts[0]] if option.is_flag else [option.opts[0], str(one)]
    return changes, rest


def read_runtime_env(
    path: Path | None, variables: list[str], visible: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Ray's runtime environment.

    Ray's dashboard gives it to everybody who asks, and its agents log it.

    Args:
        path: YAML file, or `None`.
        variables: `NAME=VALUE`, or `NAME` for the value that it has here.
        visible: The same, for variables that may be secrets.

    Raises:
        ValueError: If the file is no runtime environment, a variable is not set, or one that is not
            in `visible` is a secret.
    """
    from jobs.config.bounded_yaml import YamlError, load_yaml

    content: Any = {}
    if path is not None:
        try:
            content = load_yaml(path.read_bytes()) or {}
        except YamlError as error:
            raise InputError(f"--runtime-env {path} {error}") from error
        except OSError as error:
            raise InputError(f"--runtime-env {path} cannot be read: {error.strerror}") from error
        if not isinstance(content, dict) or "working_dir" in content:
            raise InputError(
                f"--runtime-env {path}: a mapping such as {{pip: [...], env_vars: {{...}}}} is "
                "needed, without working_dir: that is --working-dir"
            )
    found = _variables(path, content.get("env_vars") or {})
    shown = _given("--env-visible", visible)
    for option, values in (
        (f"env_vars of --runtime-env {path}", {**found}),
        ("--env", _given("--env", variables)),
    ):
        _raise_if_secret(option, {name: values[name] for name in values.keys() - shown.keys()})
        found |= values
    found |= shown
    return {**content, "env_vars": found} if found else content


def _given(option: str, variables: Sequence[str]) -> dict[str, str]:
    """Name -> value of what stands behind an option.

    Raises:
        ValueError: If a name is empty or not set here.
    """
    found: dict[str, str] = {}
    for variable in variables:
        name, equals, value = variable.partition("=")
        if not name:
            raise InputError(f"{option} {variable} names no variable; write {option} NAME=VALUE")
        if not equals and name not in os.environ:
            raise InputError(
                f"{option} {name} is not set here; set it, or write {option} {name}=VALUE"
            )
        found[name] = value if equals else os.environ[name]
    return found


def _raise_if_secret(option: str, values: Mapping[str, str]) -> None:
    """Refuse variables that everybody who reaches the dashboard could read.

    Raises:
        ValueError: With the names, without the values.
    """
    names = sorted(name for name, value in values.items() if is_secret(name, value))
    if names:
        raise InputError(
            f"{option}: {', '.join(names)} looks like a secret, and everybody who reaches the "
            "dashboard can read what is sent with a job; set it on the nodes (their environment, a "
            "secret of Kubernetes, the file that the service reads there: ~/.mlflow/credentials, "
            f"~/.aws/credentials), or, if all may read it, send it by --env-visible {names[0]}"
        )


def _variables(path: Path | None, given: Any) -> dict[str, str]:
    """`env_vars` of a runtime environment; YAML reads `1` as a number, and Ray takes text alone.

    Raises:
        ValueError: If it is no mapping of names to single values.
    """
    if not isinstance(given, dict) or any(
        not isinstance(value, (str, int, float)) for value in given.values()
    ):
        raise InputError(
            f"--runtime-env {path}: env_vars is a mapping of names to values: {{NAME: value}}"
        )
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }


def read_resources(
    num_cpus: float | None, num_gpus: float | None, memory: str | None, custom: list[str]
) -> dict[str, Any]:
    """Arguments of Ray's `submit_job` for what the driver reserves (`--entrypoint-...`).

    Raises:
        ValueError: If a size or an amount is none.
    """
    from jobs.units import parse_bytes

    amounts: dict[str, float] = {}
    for text in custom:
        name, _, amount = text.partition("=")
        try:
            if not name:
                raise ValueError
            amounts[name] = float(amount)
        except ValueError:
            raise InputError(
                f"--entrypoint-resource {text} is not of the form NAME=AMOUNT, e.g. big_disk=1"
            ) from None
    num_bytes = None if memory is None else parse_bytes(memory, "--entrypoint-memory")
    reserved = {
        "entrypoint_num_cpus": num_cpus,
        "entrypoint_num_gpus": num_gpus,
        "entrypoint_memory": num_bytes,
        "entrypoint_resources": amounts or None,
    }
    return {name: value for name, value in reserved.items() if value is not None}
