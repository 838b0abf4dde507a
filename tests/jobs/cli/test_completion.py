"""Shell completion: the script of every shell, and what it completes, from the real parser."""

from __future__ import annotations

import json

from fresh_python import printed_by

# Asks the program as the script of a shell does, in one process for all lines.
ASK_ALL = """
import contextlib, io, json, os, sys
os.chdir(sys.argv[1])
from jobs.cli.entry import main
said = {}
for line in json.loads(sys.argv[2]):
    os.environ |= {"_TANGO_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": line}
    os.environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    sys.argv = ["tango"]
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            main()
        except SystemExit:
            pass
    said[line] = [one.partition("\\t")[0] for one in text.getvalue().split("\\n") if one]
print(json.dumps(said))
"""
LINES = {
    "tango ru": ["runs"],
    "tango runs ": ["ls", "show", "rm", "compare"],
    "tango runs show 2025": ["20250301-first", "20250302-second"],
    "tango runs show --root other ": ["20250303-third"],
    "tango evaluate recipe.yaml --resu": ["--resume"],
    "tango report RUN --on ": ["common", "all"],
    "tango ask v q --model ti": ["tiny"],
    "tango check-method vision": ["visionzip"],
    "tango data get mv": ["mvbench"],
    "tango evaluate ": [],
}


def test_commands_options_and_names_are_completed(tmp_path):
    for name in ("runs/20250301-first", "runs/20250302-second", "other/20250303-third"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "job.yaml").write_text("{}")
    (tmp_path / "runs" / "2025-cache").mkdir()
    assert json.loads(printed_by(ASK_ALL, str(tmp_path), json.dumps(list(LINES)))) == LINES
