"""Annotation files of every kind, and what is said about those that cannot be read."""

import json
import sys

import pytest
from fresh_python import printed_by
from releases import write_parquet, write_tsv

from tango_core.benchmarks.tables import (
    is_missing,
    list_of,
    number_of,
    read_rows,
    text_of,
)

ROW = {"question": 'What\tis "it"?\nSay.', "candidates": ["It's a", 'b "c"', "d\te"], "start": 1.5}


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".tsv", ".parquet"])
def test_every_kind_of_table_holds_the_same_row(suffix, tmp_path):
    path = tmp_path / f"table{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps([ROW]))
    elif suffix == ".jsonl":
        path.write_text("\ufeff" + json.dumps(ROW) + "\n\n", encoding="utf-8")
    elif suffix == ".tsv":
        write_tsv(path, [ROW])
    else:
        write_parquet(path, [ROW])
    (row,) = read_rows(path)
    assert text_of(row, "question") == ROW["question"]
    assert list_of(row, "candidates") == tuple(ROW["candidates"])
    assert number_of(row, "start") == 1.5


def test_a_line_separator_inside_a_json_line_does_not_end_it(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text('{"question": "a\u2028b"}\n', encoding="utf-8")
    assert read_rows(path) == [{"question": "a\u2028b"}]


@pytest.mark.parametrize("value", [None, "", float("nan")])
def test_an_empty_cell_is_missing_in_any_spelling(value):
    assert is_missing(value)
    with pytest.raises(ValueError, match="no question or text"):
        text_of({"question": value}, "question", "text")


@pytest.mark.parametrize("value", ["nan", "inf", "x", None, True, ""])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="start must be a number, got"):
        number_of({"start": value}, "start")


@pytest.mark.parametrize("value", ["__import__('os')", "[1, [2]]", "7", "[", [None], []])
def test_what_is_no_list_of_texts_is_refused_and_never_run(value):
    with pytest.raises(ValueError, match="candidates"):
        list_of({"candidates": value}, "candidates")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.json",
            "[{",
            r"a\.json: not JSON \(.* at line 1, column \d+\); download the file again",
        ),
        ("a.json", '{"a": 1}', "must be a list of objects, one per question"),
        ("a.jsonl", "{}\n{", r"a\.jsonl, row 2: not JSON"),
        ("a.txt", "", r"not a table; known kinds are \.json, \.jsonl, \.csv, \.tsv, \.parquet"),
    ],
)
def test_files_that_are_no_tables(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_rows(tmp_path / name)


def test_parquet_without_pandas_says_what_to_install(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", [ROW])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs pandas and pyarrow; pip install"):
        read_rows(path)


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
