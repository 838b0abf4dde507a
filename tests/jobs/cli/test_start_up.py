"""Help and mistakes are answered before anything heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fresh_python import printed_by

HEAVY = {"torch", "transformers", "ray", "mlflow", "matplotlib", "pandas", "pyarrow", "scipy"}

# A recipe whose benchmark needs no files, and changes that make it wrong.
RECIPE = {
    "benchmark": {"name": "shapes"},
    "model": {"name": "tiny"},
    "method": {"name": "tango", "retention": 0.1},
}
QUICK = {
    "--help": "Usage: tango",
    "--version": "tango-video ",
    "evaluate --help": "Usage: tango evaluate",
    "evalute recipe.yaml": "did you mean 'evaluate'?",
    "evaluate recipe.yaml --limit few": "'few'",
    "evaluate missing.yaml": "cannot read recipe missing.yaml",
    "sweep missing.yaml": "cannot read recipe missing.yaml",
    "precompute missing.yaml": "cannot read recipe missing.yaml",
    "analyze sinks missing.yaml": "cannot read recipe missing.yaml",
    "analyze coverage missing.yaml": "cannot read recipe missing.yaml",
    "analyze evidence .": ". is not a finished run",
    "evaluate recipe.yaml --controls": (
        "--controls adds methods, and `tango evaluate` measures one"
    ),
    "evaluate recipe.yaml --set metod.name=full": "unknown key 'metod'; did you mean 'method'?",
    "sweep recipe.yaml --set model.device=tpu": "model.device",
    "evaluate recipe.yaml --output recipe.yaml/runs": (
        "--output recipe.yaml/runs cannot be written"
    ),
    "evaluate recipe.yaml --output /proc/runs": (
        "--output /proc/runs cannot be written to: nothing can be made in /proc ("
    ),
    "evaluate recipe.yaml --cache recipe.yaml": "--cache recipe.yaml cannot be written to",
    "cache ls --cache s3://me:secret@b/v": "s3://***@b/v: take the credentials out of the URL",
    "train-tiny --output recipe.yaml/x": "--output recipe.yaml/x cannot be written to",
    "evaluate film.mp4": "film.mp4 is a video (for one question: `tango ask`",
    "evaluate recipe.yaml --set benchmark.name=custom --set benchmark.root=s3://me:secret@b/v": (
        "benchmark.root holds credentials"
    ),
    "sweep ~no-such-user/recipe.yaml": "cannot read recipe ~no-such-user/recipe.yaml",
    "ask ~no-such-user/clip.mp4 Why?": "video ~no-such-user/clip.mp4: no such file",
    "ask /dev/zero Why?": "/dev/zero: is a device, not a regular file",
    "report missing": "missing is not a finished run: there is no such directory; give",
    "report recipe.yaml": "recipe.yaml is not a finished run: it is a file; give",
    "report .": ". is not a finished run: it holds no facts.json; give",
    "export missing --format lmms_eval": "missing is not a finished run",
    "import x.tsv --format vlmevalkit --benchmark mlvu --root . --output recipe.yaml": (
        "--output recipe.yaml cannot be written to"
    ),
    "ask missing.mp4 Why?": "video missing.mp4: no such file",
    "ask empty Why?": "one video; name a video file",
    "ask empty.mp4 Why?": "video empty.mp4: the file is empty (0 bytes); copy it again",
    "ask recipe.yaml Why?": "recipe.yaml: not a video",
    "ask missing.mp4 Why? --clip 5-3": "--clip '5-3' is not START-END",
}
# Found where the job is built, after the libraries were imported.
BUILT = {
    "evaluate recipe.yaml --set benchmark.name=shape": "benchmark.name 'shape'",
    "evaluate recipe.yaml --set benchmark.name=mlvu --set benchmark.root=/no/such": "'/no/such'",
    "sweep recipe.yaml --set benchmark.name=custom": "benchmark.root is missing",
    "evaluate recipe.yaml --set benchmark.split=tset": "benchmark.split 'tset'",
    "evaluate recipe.yaml --set benchmark.protocol=foo": "benchmark.protocol 'foo'",
    "evaluate recipe.yaml --set benchmark.name=custom --set benchmark.root=. "
    "--set benchmark.protocol=foo": ("benchmark.protocol 'foo'"),
    "evaluate recipe.yaml --set model.name=large": "model.name 'large'",
    "evaluate recipe.yaml --set model.name=llava-video-7b --set model.path=/no/such": "model.path",
    "evaluate recipe.yaml --set benchmark.name=custom --set benchmark.root=semicolons.csv": (
        "parted by semicolons: save it with commas"
    ),
    "evaluate recipe.yaml --set model.name=llava-video-7b --set model.path=empty": (
        "config.json names no model_type (it is empty)"
    ),
    "evaluate recipe.yaml --set benchmark.name=mlvu --set benchmark.root=~/no/place": "'/",
    "evaluate recipe.yaml --set benchmark.name=mlvu --set benchmark.root=~no-such-user/x": (
        "'~no-such-user/x'"
    ),
    "ask recipe.yaml Why? --model large": "model.name 'large'",
    "evaluate recipe.yaml --set method.retention=1.5": (
        "recipe.yaml: method 'tango r=1.5': retention must be in (0, 1], got 1.5"
    ),
    "evaluate recipe.yaml --set method.retenton=1": "did you mean 'retention'?",
    "sweep recipe.yaml --set method.name=tngo": "did you mean 'tango'?",
    "precompute recipe.yaml --set method.num_layers=4": "has no option 'num_layers'",
    "evaluate recipe.yaml --set method.alpha=few": "recipe.yaml: method 'tango': alpha must be",
    "cache ls --cache missing": "--cache missing: no such directory",
    "cache gc --cache missing": "--cache missing: no such directory",
    "evaluate recipe.yaml --set method.retention=[0.1,0.2]": (
        "this recipe names 2 methods; run it with `tango sweep`"
    ),
    "evaluate recipe.yaml --resume missing": "--resume missing",
}

# Runs one command after the other and prints what each of them said and what is imported by then.
RUN_ALL = """
import contextlib, io, json, os, sys
os.chdir(sys.argv[1])
from jobs.cli.entry import main
said = {}
for line in json.loads(sys.argv[2]):
    sys.argv = ["tango", *line.split()]
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            main()
        except SystemExit:
            pass
    said[line] = text.getvalue(), sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Command line -> what it printed, and every package that was imported by then."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "recipe.yaml").write_text(json.dumps(RECIPE))
    (folder / "film.mp4").write_bytes(b"\0\0\0\x20ftypisom")
    (folder / "semicolons.csv").write_text("video;question\na.mp4;Why?\n")
    (folder / "empty.mp4").touch()
    (folder / "empty").mkdir()
    (folder / "empty" / "config.json").write_text("{}")
    return json.loads(printed_by(RUN_ALL, str(folder), json.dumps([*QUICK, *BUILT])))


@pytest.mark.parametrize("line", QUICK)
def test_help_and_mistakes_do_not_wait_for_heavy_imports(said, line):
    text, imported = said[line]
    assert QUICK[line] in text
    assert "Traceback" not in text
    assert not HEAVY & set(imported)


@pytest.mark.parametrize("line", BUILT)
def test_mistakes_that_building_a_job_finds_are_one_line(said, line):
    text, _ = said[line]
    assert BUILT[line] in text
    assert "Traceback" not in text


def test_help_does_not_even_read_recipes(said):
    _, imported = said["--help"]
    assert not {"numpy", "yaml", "PIL"} & set(imported)


@pytest.mark.parametrize("closed", [(1,), (1, 2), (0, 1, 2)])
def test_a_command_ends_where_its_standard_streams_are_closed(closed):
    closing = " ".join(f"{descriptor}>&-" for descriptor in closed)
    line = f'exec "$0" -m jobs.cli.entry --version {closing}'
    ended = subprocess.run(["sh", "-c", line, sys.executable], timeout=120, check=False)
    assert ended.returncode == 0
