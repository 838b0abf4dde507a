"""Which files of a working directory are sent to a cluster: not ignored, inside, and no secrets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from pathspec import GitIgnoreSpec

# Never part of what somebody wrote, whether or not a .gitignore says so.
_NEVER = (".git", "__pycache__")
# In the directory of every virtual environment, whose interpreter is of no use elsewhere.
_ENVIRONMENT = "pyvenv.cfg"
_GIT_TIMEOUT_S = 60
# Names of files that hold secrets, in the last two parts of a path.
_SECRETS = (
    *(".env", ".env.*", "*.env", ".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx"),
    *("credentials", "credentials.json", "*service_account*.json", "*service-account*.json"),
    *(".aws/config", ".docker/config.json", ".dockercfg", ".kube/config", ".huggingface/token"),
    *("client_secret*.json", "application_default_credentials.json", ".htpasswd", "*.keytab"),
)
_NO_SECRETS = (".env.example", ".env.sample", ".env.template", "*.pub")


@dataclass(frozen=True)
class WorkingFiles:
    """The files of a directory.

    Attributes:
        files: Files to send, in a fixed order.
        secrets: Files that are left out because they look like secrets.
        outside: Links that lead out of the directory.
    """

    files: tuple[Path, ...]
    secrets: tuple[Path, ...] = ()
    outside: tuple[Path, ...] = ()


def working_files(root: Path, include: Sequence[Path] = ()) -> WorkingFiles:
    """Choose the files below a directory that git does not ignore.

    In a git work tree git is asked, so that rules above the directory and in `.git/info/exclude`
    hold. Elsewhere the `.gitignore` files in the directory and above it are applied. Links to
    directories are not followed, and virtual environments are left out.

    Args:
        root: The directory.
        include: Files that are sent although they look like secrets; relative to `root`.
    """
    wanted = {root / path for path in include}
    files: list[Path] = []
    secrets: list[Path] = []
    outside: list[Path] = []
    for path in kept_files(root):
        if _leads_out(path, root):
            outside.append(path)
        elif looks_secret(path) and path not in wanted:
            secrets.append(path)
        else:
            files.append(path)
    files += sorted(path for path in wanted if path not in files)
    return WorkingFiles(tuple(files), tuple(secrets), tuple(outside))


def looks_secret(path: Path) -> bool:
    """Whether a file's name is one of files that hold passwords, keys or tokens."""
    names = (path.name, f"{path.parent.name}/{path.name}")
    if any(fnmatch(path.name, pattern) for pattern in _NO_SECRETS):
        return False
    return any(fnmatch(name, pattern) for name in names for pattern in _SECRETS)


def kept_files(root: Path) -> Iterator[Path]:
    """All files below a directory that git does not ignore, secrets included, in a fixed order."""
    listed = _listed_by_git(root)
    found = _kept(root, _rules_above(root)) if listed is None else listed
    yield from (path for path in found if path.is_file() or _leads_out(path, root))


def _leads_out(path: Path, root: Path) -> bool:
    """Whether a path is a link to something outside of the directory."""
    return path.is_symlink() and not path.resolve().is_relative_to(root.resolve())


def _listed_by_git(root: Path) -> list[Path] | None:
    """Tracked and untracked files that git does not ignore; `None` outside of a work tree."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        found = subprocess.run(
            [*command, "-z"], capture_output=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if found.returncode != 0:
        return None
    names = sorted(os.fsdecode(name) for name in found.stdout.split(b"\0") if name)
    environments: dict[Path, bool] = {}

    def is_in_environment(path: Path) -> bool:
        folder = path.parent
        if folder not in environments:
            own = (folder / _ENVIRONMENT).is_file()
            inside = folder != root and root in folder.parents
            environments[folder] = own or (inside and is_in_environment(folder))
        return environments[folder]

    paths = (root / name for name in dict.fromkeys(names))
    return [
        path
        for path in paths
        if not {*path.relative_to(root).parts} & {*_NEVER} and not is_in_environment(path)
    ]


def _rules_above(root: Path) -> tuple[tuple[Path, GitIgnoreSpec], ...]:
    """The rules of the `.gitignore` files in the directories above, the outermost first."""
    folders = reversed(root.resolve().parents)
    return tuple((folder, spec) for folder in folders if (spec := _rules_of(folder)))


def _rules_of(folder: Path) -> GitIgnoreSpec | None:
    try:
        lines = (folder / ".gitignore").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return GitIgnoreSpec.from_lines(lines)


def _kept(folder: Path, above: tuple[tuple[Path, GitIgnoreSpec], ...]) -> Iterator[Path]:
    """The kept files of a folder outside of git; `above` are the rules of the folders around it."""
    own = _rules_of(folder)
    rules = (*above, (folder.resolve(), own)) if own else above
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if path.name in _NEVER or _is_ignored(path, is_folder, rules):
            continue
        if is_folder:
            if not (path / _ENVIRONMENT).is_file():
                yield from _kept(path, rules)
        else:
            yield path


def _is_ignored(path: Path, is_folder: bool, rules: tuple[tuple[Path, GitIgnoreSpec], ...]) -> bool:
    """What the deepest rule that knows the path says."""
    place = path.parent.resolve() / path.name
    for folder, spec in reversed(rules):
        name = place.relative_to(folder).as_posix() + ("/" if is_folder else "")
        verdict = spec.check_file(name).include
        if verdict is not None:
            return verdict
    return False
