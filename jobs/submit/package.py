"""The files uploaded with a job: its recipe, its start script, and the working directory.

Equal content gives identical zip files. Ray names packages by a hash of their bytes and does not
upload a package again that the cluster already has.
"""

from __future__ import annotations

import logging
import os
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs.submit import on_cluster
from jobs.units import human_bytes
from tango_core.errors import InputError

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
