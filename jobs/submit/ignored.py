"""The files of a directory that git would not ignore, found without git."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec

# Never part of what somebody wrote, whether or not a .gitignore says so.
_NEVER = (".git", "__pycache__")
# In the directory of every virtual environment, whose interpreter is of no use elsewhere.
_ENVIRONMENT = "pyvenv.cfg"


def kept_files(root: Path) -> Iterator[Path]:
    """All files below a directory that no `.gitignore` in it excludes, in a fixed order.

    A `.gitignore` holds for its own directory and below; a deeper one overrules it. As in git,
    nothing inside an excluded directory can be taken back. Links to files count as these files;
    links to directories are not followed, because they may lead back. Virtual environments are left
    out.
    """
    yield from _kept(root, root, ())


def _kept(
    root: Path, folder: Path, above: tuple[tuple[Path, GitIgnoreSpec], ...]
) -> Iterator[Path]:
    """The kept files of one folder; `above` are the rules of the folders around it."""
    rules = above
    own = folder / ".gitignore"
    if own.is_file():
        spec = GitIgnoreSpec.from_lines(own.read_text(errors="replace").splitlines())
        rules = (*above, (folder, spec))
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if path.name in _NEVER or _is_ignored(path, is_folder, rules):
            continue
        if is_folder:
            if not (path / _ENVIRONMENT).is_file():
                yield from _kept(root, path, rules)
        elif path.is_file():
            yield path


def _is_ignored(path: Path, is_folder: bool, rules: tuple[tuple[Path, GitIgnoreSpec], ...]) -> bool:
    """What the deepest rule that knows the path says."""
    for folder, spec in reversed(rules):
        name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
        verdict = spec.check_file(name).include
        if verdict is not None:
            return verdict
    return False
