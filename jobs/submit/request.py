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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jobs.config.overrides import YamlError, load_yaml
from jobs.config.recipe import Job, jobs_digest
from jobs.submit import on_cluster
from jobs.units import human_bytes
from pipeline.redaction import holds_credentials, is_secret, redacted
from tango_core.errors import InputError

logger = logging.getLogger(__name__)

RECIPE_FILE = "tango_recipe.yaml"
START_FILE = "tango_start.py"
MAX_BYTES = 100_000_000
"""Maximum size of a package; Ray keeps packages in the memory of the head."""

_OURS = ("jobs", "pipeline", "tango_core")
# Patterns of files that hold secrets, matched against the last one or two parts of a path.
_SECRETS = (
    *(".env", ".env.*", "*.env", ".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx"),
    *("credentials", "credentials.json", "*service_account*.json", "*service-account*.json"),
    *(".aws/config", ".docker/config.json", ".dockercfg", ".kube/config", ".huggingface/token"),
    *("client_secret*.json", "application_default_credentials.json", ".htpasswd", "*.keytab"),
)
_NO_SECRETS = (".env.example", ".env.sample", ".env.template", "*.pub")


@dataclass(frozen=True)
class Request:
    """A job to run on a cluster.

    Attributes:
        jobs: The jobs of the recipe.
        command: Command that runs them.
        recipe: The recipe, YAML; `options` may change it.
        recipe_name: File name of the recipe, for display.
        options: Options of the command, as written on the command line.
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
    command: str
    recipe: str
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
        for text in filter(holds_credentials, self.options):
            raise InputError(
                f"{redacted(text)} contains a password or a token, but Ray shows command lines in "
                "its dashboard; take it out of the URL and set it on the nodes, in the environment "
                "(e.g. MLFLOW_TRACKING_PASSWORD) or in a file (e.g. ~/.mlflow/credentials)"
            )

    @property
    def digest(self) -> str:
        """Digest of the jobs; see `config.identity`."""
        return jobs_digest(self.jobs)

    @property
    def entrypoint(self) -> str:
        """The shell command that Ray runs in the unpacked package.

        `exec` replaces the shell, so that the job receives signals and sets the exit code.
        """
        words = ["exec", self.python, START_FILE]
        words += ["--version", self.version] if self.version else []
        words += ["--directory", self.directory, "--", self.command, "--address", "auto"]
        # `precompute` has no run to continue; it skips cached clips anyway.
        resumes = any(one.startswith("--resume") for one in self.options)
        if not (self.new or resumes or self.command == "precompute"):
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
    try:
        content: Any = (load_yaml(path.read_bytes()) if path is not None else None) or {}
    except (YamlError, OSError) as error:
        raise InputError(f"--runtime-env {path} cannot be read: {error}") from error
    in_file = content.get("env_vars", {}) if isinstance(content, dict) else None
    if not isinstance(in_file, dict) or "working_dir" in content:
        raise InputError(
            f"--runtime-env {path}: must be a mapping such as {{pip: [...], env_vars: {{NAME: "
            "value}}} without working_dir; use --working-dir for that"
        )
    # Ray requires strings.
    found = {str(k): v if isinstance(v, str) else json.dumps(v) for k, v in in_file.items()}
    found |= dict(_variable("--env", one) for one in variables)
    shown = dict(_variable("--env-visible", one) for one in visible)
    secrets = [name for name in found if name not in shown and is_secret(name, found[name])]
    if secrets:
        raise InputError(
            f"variable {', '.join(secrets)} looks like a secret, and everybody with access to the "
            "dashboard can read a job's variables; set it on the nodes (environment, Kubernetes "
            "secret, or a file such as ~/.mlflow/credentials or ~/.aws/credentials), or, if "
            f"everybody may read it, pass --env-visible {secrets[0]}"
        )
    return {**content, "env_vars": found | shown} if found or shown else content


def _variable(option: str, text: str) -> tuple[str, str]:
    """Name and value of `NAME=VALUE`, or of `NAME` for its local value."""
    name, equals, value = text.partition("=")
    if not equals and name not in os.environ:
        raise InputError(f"{option} {name} is not set here; set it, or write {option} {name}=VALUE")
    return name, value if equals else os.environ[name]


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
        InputError: If the directory does not exist, an included file is not in it, or the files
            are larger than `MAX_BYTES`.
    """
    files: dict[str, Path] = {}
    for name in _OURS if with_code else ():
        package = Path(str(import_module(name).__file__)).parent
        for path in sorted(package.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                files[(Path(name) / path.relative_to(package)).as_posix()] = path
    if working_dir is not None:
        found = [path.relative_to(working_dir) for path in kept_files(working_dir)]
        for one in include:
            if not (working_dir / one).is_file():
                raise InputError(f"--include {one}: no such file in --working-dir {working_dir}")
        secrets = [str(name) for name in found if looks_secret(name) and name not in include]
        if secrets:
            logger.warning(
                "not uploaded, because it looks like a secret: %s; upload it with --include FILE",
                ", ".join(secrets),
            )
        sent = {*map(str, (*found, *include))}.difference(secrets)
        files |= {Path(name).as_posix(): working_dir / name for name in sorted(sent)}
    if sum(path.stat().st_size for path in files.values()) > MAX_BYTES:
        raise InputError(
            f"--working-dir {working_dir}: {size_line(files)} exceed the maximum of "
            f"{human_bytes(MAX_BYTES)}; exclude what the job does not need in a .gitignore "
            "(--dry-run lists the files), and put data where the cluster can read it"
        )
    return files


def kept_files(root: Path) -> Iterator[Path]:
    """All files in a directory that git does not ignore, including secrets, in a fixed order.

    Virtual environments are left out. Outside of a work tree, the `.gitignore` files in the
    directory are applied.

    Raises:
        InputError: If there is no such directory, or git is not installed.
    """
    if not root.is_dir():
        raise InputError(f"--working-dir {root}: no such directory")
    listed = _git_ls_files(root)
    if listed is None:
        with TemporaryDirectory(prefix="tango-git-") as folder:
            subprocess.run(["git", "init", "-q", "--bare", folder], check=True)
            listed = _git_ls_files(root, GIT_DIR=folder, GIT_WORK_TREE=str(root.absolute()))
    paths = [root / name for name in listed or ()]
    environments = {path.parent for path in paths if path.name == "pyvenv.cfg"}
    for path in paths:
        generated = "__pycache__" in path.parts or environments.intersection(path.parents)
        if not generated and path.is_file():
            yield path


def _git_ls_files(root: Path, **variables: str) -> list[str] | None:
    """Tracked and untracked files that git does not ignore; `None` outside of a work tree."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        environment = {**os.environ, **variables}
        found = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=False)
    except FileNotFoundError:
        raise InputError("--working-dir needs git, which is not installed here") from None
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
    return f"{len(files)} file(s) of {human_bytes(total)}"


def write_package(target: Path, recipe: str, files: Mapping[str, Path]) -> None:
    """Write the zip file of a job.

    Args:
        target: File to write; ends in `.zip`.
        recipe: The resolved recipe, YAML.
        files: From `package_files`.
    """
    deflated = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(target, "w", deflated, strict_timestamps=False) as package:
        for name, path in files.items():
            if name not in (RECIPE_FILE, START_FILE):
                package.write(path, name)
        package.writestr(RECIPE_FILE, recipe)
        package.write(on_cluster.__file__, START_FILE)
