"""Description of a job to submit: the resolved recipe, the command, its options and environment."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import yaml

from jobs.config.bounded_yaml import YamlError, load_yaml
from jobs.config.identity import jobs_digest
from jobs.config.methods import raise_if_wrong_methods
from jobs.config.recipe import Job, listed_inputs, load_jobs, single_job
from jobs.submit import on_cluster
from jobs.units import human_bytes
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


logger = logging.getLogger(__name__)

RECIPE_FILE = "tango_recipe.yaml"
START_FILE = "tango_start.py"
MAX_BYTES = 100_000_000
"""Maximum size of a package; Ray keeps packages in the memory of the head."""

_OURS = ("jobs", "pipeline", "tango_core")
_NAMED = 5
# Marker file of virtual environments, which are not uploaded.
_ENVIRONMENT = "pyvenv.cfg"
_GIT_TIMEOUT_S = 60
# Patterns of files that hold secrets, matched against the last one or two parts of a path.
_SECRETS = (
    *(".env", ".env.*", "*.env", ".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx"),
    *("credentials", "credentials.json", "*service_account*.json", "*service-account*.json"),
    *(".aws/config", ".docker/config.json", ".dockercfg", ".kube/config", ".huggingface/token"),
    *("client_secret*.json", "application_default_credentials.json", ".htpasswd", "*.keytab"),
)
_NO_SECRETS = (".env.example", ".env.sample", ".env.template", "*.pub")


class PackageError(InputError):
    """A file or directory cannot be packed; the message is one line."""


def package_files(
    working_dir: Path | None, *, with_code: bool = False, include: Sequence[Path] = ()
) -> Mapping[str, Path]:
    """Choose the files to upload with a job; returns name in the package -> file.

    Files that look like secrets are left out with a warning.

    Args:
        working_dir: Directory to pack, without files that git ignores; its files replace those of
            the installation with the same name.
        with_code: Whether to pack this installation of tango-video, for clusters without it or with
            another version.
        include: Files of the directory to pack although they look like secrets.

    Raises:
        PackageError: If the directory does not exist, a link leads out of it, an included file is
            not in it, or the files are larger than `MAX_BYTES`.
    """
    files: dict[str, Path] = {}
    if with_code:
        for name in _OURS:
            package = Path(str(import_module(name).__file__)).parent
            for path in sorted(package.rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    files[(Path(name) / path.relative_to(package)).as_posix()] = path
    if working_dir is not None:
        files |= _working_files(working_dir, include)
    _raise_if_too_large(files, working_dir)
    return files


def _working_files(root: Path, include: Sequence[Path]) -> dict[str, Path]:
    """The files of a directory to upload; returns name in the package -> file."""
    if not root.is_dir():
        what = "a file, not a directory" if root.exists() else "no such directory"
        raise PackageError(f"--working-dir {root}: {what}")
    for path in include:
        if not (root / path).is_file():
            raise PackageError(f"--include {path}: no such file in --working-dir {root}")
    included = {root / path for path in include}
    found = [*kept_files(root), *sorted(included)]
    outside = [path for path in found if _leads_out(path, root)]
    if outside:
        raise PackageError(
            f"--working-dir {root}: {_named(outside, root)} "
            f"{'is a link that leads' if len(outside) == 1 else 'are links that lead'} out of it; "
            "copy what the job needs, or exclude it in a .gitignore"
        )
    secrets = [path for path in found if looks_secret(path) and path not in included]
    if secrets:
        logger.warning(
            "not uploaded, because it looks like a secret: %s; upload it with --include FILE",
            _named(secrets, root),
        )
    return {path.relative_to(root).as_posix(): path for path in found if path not in secrets}


def kept_files(root: Path) -> Iterator[Path]:
    """All files in a directory that git does not ignore, including secrets, in a fixed order.

    Virtual environments are left out. Outside of a work tree, the `.gitignore` files in the
    directory are applied.

    Raises:
        PackageError: If git is not installed.
    """
    listed = _git_ls_files(root, os.environ)
    if listed is None:
        with TemporaryDirectory(prefix="tango-git-") as folder:
            subprocess.run(["git", "init", "-q", "--bare", folder], check=True)
            around = {"GIT_DIR": folder, "GIT_WORK_TREE": str(root.absolute())}
            listed = _git_ls_files(root, {**os.environ, **around})
    paths = [root / name for name in listed or ()]
    environments = {path.parent for path in paths if path.name == _ENVIRONMENT}
    for path in paths:
        generated = "__pycache__" in path.parts or environments.intersection(path.parents)
        if not generated and (path.is_file() or _leads_out(path, root)):
            yield path


def _leads_out(path: Path, root: Path) -> bool:
    """Whether a path is a link to a target outside of a directory."""
    return path.is_symlink() and not path.resolve().is_relative_to(root.resolve())


def _git_ls_files(root: Path, environment: Mapping[str, str]) -> list[str] | None:
    """Tracked and untracked files that git does not ignore; `None` outside of a work tree."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        found = subprocess.run(
            command,
            cwd=root,
            env=environment,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise PackageError("--working-dir needs git, which is not installed here") from None
    if found.returncode != 0:
        return None
    return sorted({os.fsdecode(name) for name in found.stdout.split(b"\0") if name})


def looks_secret(path: Path) -> bool:
    """Whether a file's name suggests that it holds passwords, keys or tokens."""
    names = (path.name, f"{path.parent.name}/{path.name}")
    if any(fnmatch(path.name, pattern) for pattern in _NO_SECRETS):
        return False
    return any(fnmatch(name, pattern) for name in names for pattern in _SECRETS)


def size_line(files: Mapping[str, Path]) -> str:
    """Describe the number and total size of the files."""
    total = sum(path.stat().st_size for path in files.values())
    return f"{len(files)} file{'' if len(files) == 1 else 's'} of {human_bytes(total)}"


def write_package(target: Path, recipe: str, files: Mapping[str, Path]) -> None:
    """Write the zip file of a job.

    Args:
        target: File to write; ends in `.zip`.
        recipe: The resolved recipe, YAML.
        files: From `package_files`.
    """
    contents = {RECIPE_FILE: recipe.encode(), START_FILE: Path(on_cluster.__file__).read_bytes()}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package:
        for name, path in sorted(files.items()):
            if name not in contents:
                _add(package, name, path.read_bytes(), path.stat().st_mode)
        for name, data in contents.items():
            _add(package, name, data, 0o644)


def _named(paths: Sequence[Path], root: Path) -> str:
    names = [path.relative_to(root).as_posix() for path in paths]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _raise_if_too_large(files: Mapping[str, Path], working_dir: Path | None) -> None:
    """Refuse a package that is too large; the message names the largest files."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    total = sum(sizes.values())
    if total <= MAX_BYTES:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_NAMED]
    named = ", ".join(f"{name} ({human_bytes(sizes[name])})" for name in largest)
    raise PackageError(
        f"--working-dir {working_dir}: {len(files)} files of {human_bytes(total)} exceed the "
        f"maximum of {human_bytes(MAX_BYTES)}; the largest are {named}: exclude what the job does "
        "not need in a .gitignore, and put data where the cluster can read it"
    )


def _add(package: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    """Add a file with a fixed date."""
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (mode & 0o777) << 16
    package.writestr(info, data)
