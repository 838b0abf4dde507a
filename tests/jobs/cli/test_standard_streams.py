"""Commands whose output nobody reads to its end, or that is written onto a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from jobs_for_tests import write_recipe

from jobs.cli.standard_streams import code_of_output, has_no_reader, lasting_streams

# Command lines that print something by ways of their own, and the exit code of each.
LINES = {
    "--version": 0,
    "--help": 0,
    "evaluate --help": 0,
    "completion bash": 0,
    "runs ls .": 0,
    "runs ls . --json": 0,
    "check-method topk": 0,
    "evaluate missing.yaml": 2,
    "evaluate recipe.yaml --dry-run": 0,
    "ask clip Why?": 2,
}
SILENT = {"evaluate missing.yaml", "ask clip Why?"}

# Runs one command after the other with the standard output it is given, and writes their codes.
RUN_ALL = """
import json, os, sys
os.chdir(sys.argv[1])
from jobs.cli.entry import main
codes = {}
for line in json.loads(sys.argv[2]):
    sys.argv = ["tango", *line.split()]
    print(f"# {line}", file=sys.stderr, flush=True)
    try:
        main()
    except SystemExit as end:
        codes[line] = end.code
with open("codes.json", "w") as file:
    json.dump(codes, file)
"""


def run_all(folder, stdout):
    """Command line -> (exit code, lines on standard error)."""
    write_recipe(folder, limit=2)
    (folder / "clip").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", RUN_ALL, str(folder), json.dumps(list(LINES))],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    codes = json.loads((folder / "codes.json").read_text())
    parts = dict(part.split("\n", 1) for part in ended.stderr.split("# ")[1:])
    return {line: (codes[line], parts[line].splitlines()) for line in LINES}


def closed_pipe():
    """A file descriptor whose reader is gone."""
    readable, writable = os.pipe()
    os.close(readable)
    return writable


@pytest.mark.parametrize("is_full", [False, True])
def test_a_closed_pipe_changes_nothing_and_a_full_disk_is_one_line(tmp_path, is_full):
    with open("/dev/full" if is_full else closed_pipe(), "w") as stdout:
        ended = run_all(tmp_path, stdout)
    for line, (code, errors) in ended.items():
        assert code == (2 if is_full else LINES[line]), line
        assert not any("Broken pipe" in one or "Traceback" in one for one in errors), errors
        lost = [one for one in errors if "standard output cannot be written to (No space" in one]
        assert len(lost) == (is_full and line not in SILENT), (line, errors)


def test_what_only_prints_can_tell_that_nobody_reads(monkeypatch):
    with open(closed_pipe(), "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        assert not has_no_reader(sys.stdout)
        with lasting_streams():
            print("a line", flush=True)
            assert has_no_reader(sys.stdout)
            print("another one", flush=True)
            assert code_of_output(0) == 0


def test_names_that_are_no_text_are_written_as_they_are_escaped(tmp_path, monkeypatch):
    file = tmp_path / "output"
    with file.open("w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with lasting_streams():
            print("clip\udcff.mp4")
    assert file.read_text() == "clip\\udcff.mp4\n"
