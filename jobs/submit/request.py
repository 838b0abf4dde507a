"""Description of a job to submit: the resolved recipe, the command and its options."""

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
    """Compare two jobs' recipe, command, options and directory by their metadata."""
    keys = ("tango_digest", "tango_command", "tango_arguments")
    return all(key in one and one[key] == other.get(key) for key in keys)


def default_command(jobs: Sequence[Job]) -> Command:
    """`evaluate` for one method on one benchmark, `sweep` for more."""
    alone = len(jobs) == 1 and len(jobs[0].all_methods) == len(jobs[0].all_benchmarks) == 1
    return "evaluate" if alone else "sweep"


def raise_if_secret(options: Sequence[str]) -> None:
    """Refuse URLs with credentials, because Ray's dashboard shows command lines.

    Raises:
        InputError: If a URL has credentials; the message does not contain them.
    """
    for option, value in pairwise(options):
        if holds_credentials(value):
            raise InputError(
                f"{option} contains a password or a token, but Ray shows command lines in its "
                "dashboard; take it out of the URL and set it on the nodes, in the environment "
                "(e.g. MLFLOW_TRACKING_PASSWORD) or in a file (e.g. ~/.mlflow/credentials)"
            )
