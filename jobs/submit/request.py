"""Description of a job to submit: the resolved recipe, the command, its options and environment."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import yaml

from jobs.config.bounded_yaml import YamlError, load_yaml
from jobs.config.identity import jobs_digest
from jobs.config.methods import raise_if_wrong_methods
from jobs.config.recipe import Job, listed_inputs, load_jobs, single_job
from jobs.submit.package import START_FILE
from jobs.units import parse_bytes
from pipeline.redaction import holds_credentials, is_secret
from tango_core.benchmarks import benchmark_class
from tango_core.errors import InputError
from tango_core.extensions import is_reference
from tango_core.models import model_entry

Command = Literal["evaluate", "sweep", "precompute"]


@dataclass(frozen=True)
class Request:
    """A job to run on a cluster.

    Attributes:
        jobs: The resolved jobs of the recipe.
        command: Command that runs them.
        recipe_name: File name of the recipe, for display.
        options: Options of the command that are not part of the recipe, such as `--output`.
        directory: Directory on the cluster in which the command runs; `~` and `$NAME` are expanded
            on the cluster.
        python: Interpreter on the cluster.
        version: Version of tango-video that must be installed there; `None` if the code is
            uploaded.
        user: Name of the submitting user, for display.
        new: Start a new run even if there is an unfinished run of the same job.
        runtime_env: Ray's runtime environment, without the working directory.
        resources: Arguments of Ray's `submit_job` that reserve resources for the driver.
    """

    jobs: tuple[Job, ...]
    command: Command
    recipe_name: str
    options: tuple[str, ...] = ()
    directory: str = "~/tango"
    python: str = "python"
    version: str | None = None
    user: str = ""
    new: bool = False
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse URLs with credentials, because Ray's dashboard shows command lines."""
        for option, value in pairwise(self.options):
            if holds_credentials(value):
                raise InputError(
                    f"{option} contains a password or a token, but Ray shows command lines in its "
                    "dashboard; take it out of the URL and set it on the nodes, in the environment "
                    "(e.g. MLFLOW_TRACKING_PASSWORD) or in a file (e.g. ~/.mlflow/credentials)"
                )

    @property
    def digest(self) -> str:
        """Digest of the jobs; see `config.identity`."""
        return jobs_digest(self.jobs)

    @property
    def recipe(self) -> str:
        """The resolved recipe as YAML; several jobs differ only in the list options of `model`."""
        content = yaml.safe_load(self.jobs[0].to_yaml())
        if len(self.jobs) > 1:
            content["model"] |= listed_inputs(self.jobs)
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)

    @property
    def entrypoint(self) -> str:
        """The shell command that Ray runs in the unpacked package.

        `exec` replaces the shell, so that the job receives signals and sets the exit code.
        """
        words = ["exec", self.python, START_FILE]
        words += ["--version", self.version] if self.version else []
        words += ["--directory", self.directory, "--", self.command, "--address", "auto"]
        # `precompute` has no run to continue; it skips cached clips anyway.
        if not (self.new or self.command == "precompute" or "--resume" in self.options):
            words.append("--continue")
        return shlex.join([*words, *self.options])

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata that Ray stores with the job; `is_same` compares it."""
        return {
            "tango_digest": self.digest,
            "tango_command": self.command,
            "tango_recipe": self.recipe_name,
            "tango_user": self.user,
            "tango_version": self.version or "sent along",
            "tango_arguments": json.dumps([self.directory, *self.options]),
        }

    def is_same(self, metadata: Mapping[str, str]) -> bool:
        """Whether a job on the cluster has the same recipe, command, options and directory."""
        keys = ("tango_digest", "tango_command", "tango_arguments")
        return all(metadata.get(key) == self.metadata[key] for key in keys)


def jobs_to_submit(
    recipe: Path, changes: Sequence[str], command: Command | None
) -> tuple[Command, tuple[Job, ...]]:
    """Read a recipe for another machine; returns the command that runs it, and its jobs.

    Args:
        recipe: The recipe.
        changes: Values of `--set`.
        command: The command; `None` for `evaluate` for one method on one benchmark, else `sweep`.

    Raises:
        UserError: If a name or an option is wrong; the message names the setting.
    """
    jobs = load_jobs(recipe, changes, elsewhere=True)
    is_single = len(jobs) == len(jobs[0].all_methods) == len(jobs[0].all_benchmarks) == 1
    wanted: Command = command or ("evaluate" if is_single else "sweep")
    if wanted == "evaluate":
        if len(jobs) > 1:
            raise InputError(
                f"{recipe}: model.{' and model.'.join(listed_inputs(jobs))} lists several values; "
                "submit it with --command sweep"
            )
        single_job(jobs[0])
    check_names(jobs)
    return wanted, jobs


def check_names(jobs: Sequence[Job]) -> None:
    """Check the names and options of jobs that run on another machine.

    Paths are not checked, because they refer to that machine, nor are classes named as
    `module:attribute`, which may be installed only there.

    Raises:
        UserError: If a name or an option is wrong; the message names the setting.
    """
    for job in jobs:
        name = job.model.name
        wording = None if is_reference(name) else model_entry(name).load_family().wording
        for section in job.all_benchmarks:
            if not is_reference(section.name):
                found = benchmark_class(section.name)
                found.check_names(section.split, section.protocol)
                found.check_subtitles(section.subtitles, section.protocol, wording)
        raise_if_wrong_methods(one for one in job.all_methods if not is_reference(one[1]["name"]))


def read_runtime_env(
    path: Path | None, variables: Sequence[str], visible: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Build Ray's runtime environment from a file and from variables.

    Everybody with access to Ray's dashboard can read it, and Ray logs it.

    Args:
        path: YAML file, or `None`.
        variables: `NAME=VALUE`, or `NAME` for its local value.
        visible: Like `variables`, but secrets are allowed.

    Raises:
        InputError: If the file is not a runtime environment, a variable is not set, or a variable
            outside of `visible` looks like a secret.
    """
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
                f"--runtime-env {path}: must be a mapping such as {{pip: [...], env_vars: "
                "{...}} without working_dir; use --working-dir for that"
            )
    given = content.get("env_vars") or {}
    if not isinstance(given, dict) or any(
        not isinstance(value, (str, int, float)) for value in given.values()
    ):
        raise InputError(
            f"--runtime-env {path}: env_vars must be a mapping of names to values: {{NAME: value}}"
        )
    # Ray requires strings.
    found = {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }
    shown = dict(_variable("--env-visible", one) for one in visible)
    for option, values in (
        (f"env_vars of --runtime-env {path}", {**found}),
        ("--env", dict(_variable("--env", one) for one in variables)),
    ):
        secrets = sorted(
            name for name, value in values.items() if name not in shown and is_secret(name, value)
        )
        if secrets:
            raise InputError(
                f"{option}: {', '.join(secrets)} looks like a secret, and everybody with access to "
                "the dashboard can read a job's variables; set it on the nodes (environment, "
                "Kubernetes secret, or a file such as ~/.mlflow/credentials or ~/.aws/"
                f"credentials), or, if everybody may read it, pass --env-visible {secrets[0]}"
            )
        found |= values
    found |= shown
    return {**content, "env_vars": found} if found else content


def _variable(option: str, text: str) -> tuple[str, str]:
    """Name and value of `NAME=VALUE`, or of `NAME` for its local value."""
    name, equals, value = text.partition("=")
    if not name:
        raise InputError(f"{option} {text} has no name; write {option} NAME=VALUE")
    if not equals and name not in os.environ:
        raise InputError(f"{option} {name} is not set here; set it, or write {option} {name}=VALUE")
    return name, value if equals else os.environ[name]


def read_resources(
    num_cpus: float | None, num_gpus: float | None, memory: str | None, custom: Sequence[str]
) -> dict[str, Any]:
    """Arguments of Ray's `submit_job` that reserve resources for the driver (`--entrypoint-...`).

    Raises:
        InputError: If a size or an amount is invalid.
    """
    amounts: dict[str, float] = {}
    for text in custom:
        name, _, amount = text.partition("=")
        try:
            amounts[name] = float(amount if name else "")
        except ValueError:
            raise InputError(
                f"--entrypoint-resource {text} is not of the form NAME=AMOUNT, e.g. big_disk=1"
            ) from None
    reserved = {
        "entrypoint_num_cpus": num_cpus,
        "entrypoint_num_gpus": num_gpus,
        "entrypoint_memory": memory and parse_bytes(memory, "--entrypoint-memory"),
        "entrypoint_resources": amounts or None,
    }
    return {name: value for name, value in reserved.items() if value is not None}
