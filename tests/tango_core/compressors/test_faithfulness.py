"""FAITHFULNESS.md: every row names a test that exists, and its figures are what is measured."""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest
from faithfulness import EFFECTS

from tango_core import compressors
from tango_core.compressors import METHODS

PAGE = (Path(compressors.__file__).parent / "FAITHFULNESS.md").read_text(encoding="utf-8")
HERE = Path(__file__).parent
NAMES = re.findall(r"`(?:tests/tango_core/compressors/)?([\w/]+\.py)::([\w:]+)`", PAGE)
# Another processor may decide a tie otherwise: percentage points a figure may be off.
TOLERANCE = 3


@lru_cache
def _tests_of(path):
    """Names of the tests of a file, those of a class behind its name, and of the classes."""
    names = set()
    for node in ast.parse((HERE / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}::{part.name}" for part in node.body if hasattr(part, "name")}
    return names


def _rows():
    """Rows of the tables, without their heads."""
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "| what"]


def test_every_row_names_its_test():
    assert len(_rows()) > 30
    for row in _rows():
        assert len(row) == 7, row
        assert re.search(r"`[\w/]+\.py::\w+", row[-1]), row


def test_the_named_tests_exist():
    assert [(path, name) for path, name in NAMES if name not in _tests_of(path)] == []


def test_every_method_has_its_part():
    heads = " ".join(re.findall(r"^## (.*)$", PAGE, re.M))
    assert set(METHODS) <= set(re.split(r"[, ]+", heads))


@pytest.mark.parametrize("name", EFFECTS)
def test_the_figures_are_what_is_measured(name):
    found = re.search(rf"(\d+) to (\d+) %, median (\d+) \(`{re.escape(name)}`\)", PAGE)
    assert found, f"FAITHFULNESS.md does not state {name!r}"
    stated = [int(number) for number in found.groups()]
    measured = [int(number) for number in re.findall(r"\d+", EFFECTS[name]())]
    assert stated == pytest.approx(measured, abs=TOLERANCE)
