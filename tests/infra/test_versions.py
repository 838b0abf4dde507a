"""Versions in the files of infra/ agree with constraints.txt."""

from __future__ import annotations

import re
import tomllib

from infra_files import INFRA, ROOT, tracked

EXACT = dict(
    line.split("==")
    for line in (INFRA / "constraints.txt").read_text().splitlines()
    if "==" in line
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# name[extra]==1.2.3, name:1.2.3, name: "1.2.3", nameVersion: 1.2.3
NAMED = re.compile(
    r"(?<![\w-])(?P<name>ray|torch|mlflow|python)(?:\[[\w,]*\])?(?:Version)?[\"']?"
    r"\s*(?:==?|:)\s*[\"']?v?(?P<version>\d+\.\d+(?:\.\d+)?)",
    re.IGNORECASE,
)
# python3.11, and the tag of Ray's images: py311
SHORT = re.compile(r"\b(?:python|py)3\.?(?P<minor>1\d)\b")


def versions_in(text):
    """(name, version) of everything that a text pins."""
    found = [(one["name"].lower(), one["version"]) for one in NAMED.finditer(text)]
    return [*found, *(("python", f"3.{one['minor']}") for one in SHORT.finditer(text))]


def is_right(name, version):
    """Whether a version is that of constraints.txt; Python's is the one that the suite runs on."""
    if name == "python":
        return re.match(r"3\.\d+", version)[0] == PROJECT["requires-python"].removeprefix(">=")
    return version == EXACT[name]


def test_versions_agree_with_the_constraints():
    for path in tracked("infra"):
        if path.suffix != ".png":
            assert [it for it in versions_in(path.read_text()) if not is_right(*it)] == [], path
