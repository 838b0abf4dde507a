"""The programs for a GPU, run on the CPU with small sizes, so that only CUDA itself is untried."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tango_core.compressors import METHODS
from tango_core.compressors.hybrid import INNER
from tests.gpu.command import Run, do_parts, equal_replies, failures

ROOT = Path(__file__).parents[2]
# What a machine with a GPU may lack: everything but torch and what comes with transformers.
MISSING = (
    *("ray", "mlflow", "pyarrow", "pandas", "matplotlib", "rich", "typer", "pydantic", "psutil"),
    *("PIL", "av", "decord", "torchcodec", "zlib_ng", "s3fs", "jobs", "pipeline"),
)
WITHOUT = (
    "import runpy, sys\n"
    f"for name in {MISSING!r}: sys.modules[name] = None\n"
    "sys.argv = sys.argv[1:]\n"
    "runpy.run_module(sys.argv[0], run_name='__main__')\n"
)


def command(module: str, *arguments: str, code: str = WITHOUT) -> subprocess.CompletedProcess:
    """Run a program of this folder where nothing else is installed."""
    return subprocess.run(
        [sys.executable, "-c", code, module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )


def results(module: str, folder: Path, **options: str) -> dict:
    """What a program wrote, after a run with small sizes."""
    small = ("--device", "cpu", "--small")
    done = command(module, *small, "--out", str(folder), **options)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (written,) = folder.glob("*.json")
    assert written.with_suffix(".md").read_text().count("\n## ") >= 1
    found = json.loads(written.read_text())
    assert found["about"]["small"]
    return found["parts"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_it_ends_in_one_line(tmp_path):
    done = command("tests.gpu.check", "--out", str(tmp_path / "results"))
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("no GPU: torch ")
    assert not (tmp_path / "results").exists(), "nothing was run, so nothing is written"


def test_a_part_that_breaks_off_or_is_late_leaves_the_others_their_rows(tmp_path):
    run = Run(torch.device("cpu"), True, tmp_path)

    def breaks(run):
        raise ValueError("no such kernel")

    def measures(run):
        run.started -= 1000
        return [{"ms": 1.5}]

    do_parts(run, "check", [("A", breaks), ("B", measures), ("C", measures)], 900)
    written = json.loads((tmp_path / "check_cpu_small.json").read_text())["parts"]
    assert written == {
        "A": [{"ok": False, "error": "ValueError: no such kernel"}],
        "B": [{"ms": 1.5}],
        "C": [{"ok": False, "error": "not run: 1000 s are over"}],
    }
    assert len(failures(run)) == 2


@pytest.mark.parametrize(
    ("dtype", "others", "ok"),
    [("float32", 1, True), ("float32", 2, False), ("bfloat16", 9, True)],
)
def test_of_many_replies_in_float32_one_may_be_a_near_tie(dtype, others, ok):
    said = ["a"] * 9
    found = ["b"] * others + said[others:]
    assert equal_replies(said, found, dtype)["ok"] is ok
    assert not equal_replies(said[:3], found[:3], "float32")["ok"]


@pytest.mark.slow
def test_every_check_runs_and_agrees_with_itself(tmp_path):
    parts = results("tests.gpu.check", tmp_path)
    assert all(row["ok"] for rows in parts.values() for row in rows)
    names = {row["method"] for row in parts["Methods"]} | {r["pruner"] for r in parts["Pruners"]}
    assert names == {*METHODS, *INNER}
    assert [row["tries"] for row in parts["Full memory"]] == [2, 2]
    assert [row["refused"] for row in parts["Full memory"]] == [False, True]
    for title in ("Methods", "Towers", "Replies", "Pruners"):
        rows = parts[title]
        assert {row["dtype"] for row in rows} == {"float32", "bfloat16", "float16"}
    exact = [row for row in parts["Replies"] + parts["Pruners"] if row["dtype"] == "float32"]
    assert exact
    assert not any(row["other than float32 on the CPU"] for row in exact)
    assert {row["tower"] for row in parts["Towers"]} > {"llava-onevision-7b, merged frames"}
    for row in parts["Latency at 7B"]:
        names = [f"{part} ms" for part in ("vision", "compress", "prefill", "first token")]
        assert row["ttft ms"] == pytest.approx(sum(row[name] for name in names))
        assert min(row[name] for name in names) > 0


@pytest.mark.gpu
def test_the_gpu_agrees_with_the_cpu(tmp_path):
    done = command("tests.gpu.check", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:]
