"""Annotation files of every kind, and what is said about those that cannot be read."""

import sys

import pytest
from fresh_python import printed_by
from releases import write_parquet

from tango_core.benchmarks import tables
from tango_core.benchmarks.tables import read_rows

ROW = {"question": 'What\tis "it"?\nSay.', "candidates": ["It's a", 'b "c"', "d\te"], "start": 1.5}


@pytest.mark.parametrize(
    ("read", "values", "message"),
    [
        (tables.text_of, (None, "", float("nan")), "no field"),
        (tables.number_of, ("nan", "inf", "x", None, True, ""), "field must be a number, got"),
        (tables.list_of, ("__import__('os')", "[1, [2]]", "7", "[", [None], []), "field"),
    ],
)
def test_fields_of_another_kind_are_refused(read, values, message):
    for value in values:
        with pytest.raises(ValueError, match=message):
            read({"field": value}, "field")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[{", r"a\.json: not JSON \(.* at line 1, column \d+\); download the file"),
        ("a.json", '{"a": 1}', "must be a list of objects, one per question"),
        ("a.jsonl", "{}\n{", r"a\.jsonl, row 2: not JSON"),
        ("a.txt", "", r"not a table; known kinds are \.json, \.jsonl, \.csv, \.tsv, \.parquet"),
    ],
)
def test_files_that_are_no_tables(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        tables.read_rows(tmp_path / name)


def test_parquet_without_pandas_says_what_to_install(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", [ROW])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs pandas and pyarrow; pip install"):
        tables.read_rows(path)


def test_benchmarks_are_opened_without_pandas_pyarrow_or_torch():
    """Tables of text are read with the standard library alone."""
    code = (
        "import sys\n"
        "from tango_core.benchmarks import BENCHMARKS\n"
        "from importlib import import_module\n"
        "[import_module(BENCHMARKS[n].split(':')[0]) for n in "
        "('videomme', 'mvbench', 'longvideobench', 'mlvu')]\n"
        "print(sorted({'pandas', 'pyarrow', 'torch', 'ray'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"


def test_a_line_separator_inside_a_json_line_does_not_end_it(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text('{"question": "a\u2028b"}\n', encoding="utf-8")
    assert read_rows(path) == [{"question": "a\u2028b"}]
