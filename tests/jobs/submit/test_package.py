"""What travels with a job: its recipe, what starts it, and code without what git ignores."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jobs.submit import package
from jobs.submit.package import (
    RECIPE_FILE,
    START_FILE,
    PackageError,
    kept_files,
    package_files,
    size_line,
    write_package,
)

TREE = {
    ".gitignore": "*.log\nbuild/\n/data\n!important.log\n",
    "own_methods.py": "A = 1\n",
    "notes.log": "",
    "important.log": "",
    "build/out.py": "",
    "data/video.mp4": "",
    "deep/data/table.csv": "",
    "deep/.gitignore": "secret*\n!kept.log\n",
    "deep/secret.txt": "",
    "deep/kept.log": "",
    "deep/other.log": "",
    "deep/build/x.py": "",
    "deep/__pycache__/x.pyc": "",
}


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for name, text in TREE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def packed(path):
    """Name -> content of a package."""
    with zipfile.ZipFile(path) as content:
        return {name: content.read(name) for name in content.namelist()}


def test_the_files_are_those_that_git_would_add(tree):
    kept = {path.relative_to(tree).as_posix() for path in kept_files(tree)}
    assert "deep/kept.log" in kept
    subprocess.run(["git", "init", "-q", tree], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
    )
    assert kept == set(listed.stdout.split()) - {"deep/__pycache__/x.pyc"}
    assert {path.relative_to(tree).as_posix() for path in kept_files(tree)} == kept


def test_a_virtual_environment_is_left_out(tree):
    before = list(kept_files(tree))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tree / "deep/env"], check=True)
    assert (tree / "deep/env/bin/activate").is_file()
    assert list(kept_files(tree)) == before


def test_a_package_holds_recipe_starter_and_the_tree(tree, tmp_path):
    target = tmp_path / "package.zip"
    files = package_files(tree)
    write_package(target, "method: {}\n", files)
    content = packed(target)
    assert len(content) == len(files) + 2
    assert size_line(files).startswith(f"{len(files)} files of ")
    assert content[RECIPE_FILE] == b"method: {}\n"
    assert b"runpy" in content[START_FILE]
    assert content["own_methods.py"] == b"A = 1\n"
    assert "data/video.mp4" not in content


def test_equal_content_gives_equal_bytes(tree, tmp_path):
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    write_package(first, "a: 1\n", package_files(tree))
    (tree / "own_methods.py").touch()  # another time, the same content
    write_package(second, "a: 1\n", package_files(tree))
    assert first.read_bytes() == second.read_bytes()


def test_the_code_of_this_installation_goes_along(tmp_path):
    target = tmp_path / "package.zip"
    write_package(target, "a: 1\n", package_files(None, with_code=True))
    content = packed(target)
    assert {
        "tango_core/tiny/model.safetensors",
        "pipeline/__init__.py",
        "jobs/cli/entry.py",
        "jobs/report/templates/report.html.j2",
    } <= set(content)
    assert not [name for name in content if name.endswith(".pyc") or name.startswith("tests")]
    assert target.stat().st_size < 20_000_000


def test_a_directory_that_is_too_large_is_refused_with_its_largest_files(
    tree, tmp_path, monkeypatch
):
    monkeypatch.setattr(package, "MAX_BYTES", 1000)
    (tree / "model.bin").write_bytes(b"x" * 5000)
    (tree / "small.bin").write_bytes(b"x" * 10)
    with pytest.raises(PackageError, match=r"the largest are model\.bin \(5\.0 kB\)") as error:
        write_package(tmp_path / "package.zip", "a: 1\n", package_files(tree))
    assert "\n" not in str(error.value)
    (tree / ".gitignore").write_text("model.bin\n")
    write_package(tmp_path / "package.zip", "a: 1\n", package_files(tree))


def names_of(tree, paths):
    return {path.relative_to(tree).as_posix() for path in paths}


def test_rules_above_the_directory_hold(tree):
    inner = tree / "deep" / "inner"
    inner.mkdir()
    (tree / ".gitignore").write_text("*.log\nprivate.txt\n")
    for name in ("private.txt", "secret.py", "method.py"):
        (inner / name).touch()
    subprocess.run(["git", "init", "-q", tree], check=True)
    (tree / ".git/info/exclude").write_text("method.py\n")
    assert names_of(inner, kept_files(inner)) == set()


@pytest.mark.parametrize("in_git", [True, False])
def test_what_looks_like_a_secret_is_left_out_and_named(tree, in_git, caplog):
    secrets = {".env", "deep/.netrc", "id_rsa", "server.pem", "tls.key", ".aws/credentials"}
    for name in (*secrets, ".env.example", "id_rsa.pub", "keys.py", "tokenizer.json"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).touch()
    if in_git:
        subprocess.run(["git", "init", "-q", tree], check=True)
    assert not secrets & package_files(tree).keys()
    sent = package_files(tree, include=[Path(".env")])
    assert secrets & sent.keys() == {".env"}
    assert {".env.example", "id_rsa.pub", "keys.py", "tokenizer.json"} <= sent.keys()
    assert "not uploaded, because it looks like a secret: " in caplog.text
    assert "server.pem" in caplog.text
    with pytest.raises(PackageError, match=r"--include gone: no such file in --working-dir"):
        package_files(tree, include=[Path("gone")])


@pytest.mark.parametrize("in_git", [True, False])
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_link_that_leads_out_is_refused_by_name(tree, tmp_path, in_git, is_folder):
    outside = tmp_path / "outside"
    outside.mkdir() if is_folder else outside.touch()
    (tree / "deep" / "link").symlink_to(outside)
    (tree / "deep" / "fine.py").symlink_to(tree / "own_methods.py")
    if in_git:
        subprocess.run(["git", "init", "-q", tree], check=True)
    with pytest.raises(PackageError, match=r"deep/link is a link that leads out of it"):
        package_files(tree)
    (tree / "deep" / "link").unlink()
    assert "deep/fine.py" in package_files(tree)
