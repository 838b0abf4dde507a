"""A job submission: the resolved recipe, the command and their options."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import yaml

from jobs.config.identity import jobs_digest
from jobs.config.recipe import Job, listed_inputs
from jobs.submit.package import START_FILE
from pipeline.redaction import holds_credentials
from tango_core.errors import InputError

Command = Literal["evaluate", "sweep", "precompute"]


@dataclass(frozen=True)
class Request:
    """One job to run on a cluster.

    Attributes:
        jobs: What the recipe stands for, resolved.
        command: What runs it.
        recipe_name: File name of the recipe, for people.
        options: Options of the command that are not part of the recipe, such as `--output`.
        directory: Directory on the cluster in which the command runs; `~` and `$NAME` are those of
            the cluster.
        python: Interpreter on the cluster.
        version: Version of tango-video that must be installed there; `None` if it is sent along.
        user: Who sends it, for people.
        new: Whether an unfinished run of the same job is left alone.
        runtime_env: Ray's runtime environment, without the working directory.
        resources: What the driver reserves, as Ray's `submit_job` takes it.
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

    @property
    def digest(self) -> str:
        """Of the job, as `config.identity` has it."""
        return jobs_digest(self.jobs)

    @property
    def recipe(self) -> str:
        """The resolved recipe as YAML; several jobs differ in the lists of `model` alone."""
        content = yaml.safe_load(self.jobs[0].to_yaml())
        if len(self.jobs) > 1:
            content["model"] |= listed_inputs(self.jobs)
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)

    @property
    def entrypoint(self) -> str:
        """The shell command that Ray runs in the unpacked package.

        `exec` replaces the shell, so that signals and the exit code are those of the job.
        """
        words = ["exec", self.python, START_FILE]
        words += ["--version", self.version] if self.version else []
        words += ["--directory", self.directory, "--", self.command, "--address", "auto"]
        # `precompute` has no run to continue: cached clips are not computed again.
        if not (self.new or self.command == "precompute" or "--resume" in self.options):
            words.append("--continue")
        return shlex.join([*words, *self.options])

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata that Ray stores with the job; `same_job` compares it."""
        return {
            "tango_digest": self.digest,
            "tango_command": self.command,
            "tango_recipe": self.recipe_name,
            "tango_user": self.user,
            "tango_version": self.version or "sent along",
            "tango_arguments": json.dumps([self.directory, *self.options]),
        }


def same_job(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two jobs have equal recipe, command, options and directory, by their metadata."""
    keys = ("tango_digest", "tango_command", "tango_arguments")
    return all(key in one and one[key] == other.get(key) for key in keys)


def default_command(jobs: Sequence[Job]) -> Command:
    """`evaluate` for one method on one benchmark, `sweep` for more."""
    alone = len(jobs) == 1 and len(jobs[0].all_methods) == len(jobs[0].all_benchmarks) == 1
    return "evaluate" if alone else "sweep"


def raise_if_secret(options: Sequence[str]) -> None:
    """Refuse a URL with credentials: everybody who sees the dashboard can read command lines.

    Raises:
        ValueError: Without the password in its message.
    """
    for option, value in pairwise(options):
        if holds_credentials(value):
            raise InputError(
                f"{option} holds a password or a token, and Ray shows command lines in its "
                "dashboard; take it out of the URL and set it on the nodes: in their environment, "
                "e.g. as MLFLOW_TRACKING_PASSWORD, or in the file that the service reads there, "
                "e.g. ~/.mlflow/credentials"
            )
