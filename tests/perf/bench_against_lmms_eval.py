"""Whole processes side by side: `tango sweep` and lmms-eval on the same clips and checkpoint.

    python tests/perf/bench_against_lmms_eval.py --peer PYTHON [--clips 40] [--repeats 2] [--ray]

`PYTHON` is the interpreter of an environment that has lmms-eval (0.7.3 was used) with a working
torchvision. Both get one thread and run in turn, `--repeats` times. lmms-eval has no sweep: five
settings are five of its runs, counted as five times one. Replies of the full model are compared
one by one. Results go to tests/perf/results/against_lmms_eval.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from lmms_eval_task import TASK, write_checkpoint, write_task
from timing import about_machine

from jobs.results.summary import read_answers

RESULTS = Path(__file__).parent / "results"
TIMEOUT_S = 1800
# Settings -> methods of the sweep.
SWEEPS: dict[int, list[dict[str, Any]]] = {
    1: [{"name": "full"}],
    5: [
        {"name": "full"},
        {"name": "tango", "retention": [0.1, 0.2]},
        {"name": "random", "retention": [0.1, 0.2]},
    ],
}


@dataclass(frozen=True)
class Spent:
    """What a command took with all its children."""

    what: str
    wall_s: float
    cpu_s: float
    load: float


def main() -> int:
    """Run both, compare replies, write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peer", required=True, type=Path)
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ray", action="store_true", help="also on a local Ray")
    options = parser.parse_args()
    executors = ("local", "ray") if options.ray else ("local",)
    spent: list[Spent] = []
    with TemporaryDirectory(prefix="tango-peer-") as folder:
        root = Path(folder)
        checkpoint = write_checkpoint(root / "checkpoint")
        questions = write_task(root / "task", root / "shapes", options.clips)
        for turn in range(options.repeats):
            here = root / str(turn)
            spent.append(run_peer(options.peer, checkpoint, root / "task", here / "peer"))
            for executor in executors:
                for settings in SWEEPS:
                    name = f"{executor}-{settings}"
                    spent.append(run_tango(here / name, root, settings, executor, options.clips))
        replies = peer_replies(root / "0" / "peer", questions)
        same = equal_replies(root / "0" / "local-1", replies)
    write(spent, options.clips, same, len(questions), options.repeats)
    return 0


def run_peer(python: Path, checkpoint: Path, task: Path, output: Path) -> Spent:
    """lmms-eval's `llava_hf` with the whole task."""
    model = f"pretrained={checkpoint},device=cpu,device_map=cpu,dtype=float32,max_frames_num=8"
    command = [str(python), "-m", "lmms_eval", "--model", "llava_hf", "--model_args", model]
    command += ["--force_simple", "--include_path", str(task), "--tasks", TASK, "--batch_size", "1"]
    return measured(
        "lmms-eval, one setting", [*command, "--output_path", str(output), "--log_samples"]
    )


def run_tango(output: Path, root: Path, settings: int, executor: str, clips: int) -> Spent:
    """`tango sweep` with an empty cache, tracking and report as they are by default."""
    recipe = {
        "benchmark": {"name": "shapes", "root": str(root / "shapes")},
        "model": {"name": "tiny", "num_frames": 8},
        "methods": SWEEPS[settings],
        "executor": executor,
    }
    output.mkdir(parents=True)
    (output / "recipe.yaml").write_text(json.dumps(recipe))
    command = [sys.executable, "-m", "jobs.cli.entry", "sweep", str(output / "recipe.yaml")]
    command += ["--limit", str(clips), "--output", str(output), "--cache", str(output / "cache")]
    return measured(f"tango, {executor}, {settings} settings", command)


def measured(what: str, command: Sequence[str]) -> Spent:
    """Run one command with one thread.

    Raises:
        RuntimeError: If it fails.
    """
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command,
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{what} ended with {done.returncode}: {done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = Spent(what, round(wall, 1), round(cpu, 1), round(os.getloadavg()[0], 1))
    print(found, flush=True)
    return found


def peer_replies(output: Path, questions: Sequence[str]) -> dict[str, str]:
    """Question id -> reply of lmms-eval."""
    (samples,) = output.rglob("*_samples_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    return {questions[row["doc_id"]]: str(row["filtered_resps"]).strip() for row in rows}


def equal_replies(output: Path, replies: dict[str, str]) -> int:
    """How many replies of the full model are equal."""
    (summary,) = output.glob("*/summary.json")
    own = read_answers(summary.parent).set_index("question_id")["text"].str.strip()
    return sum(own[question] == reply for question, reply in replies.items())


def write(spent: Sequence[Spent], clips: int, same: int, questions: int, repeats: int) -> None:
    """`against_lmms_eval.json` and `.md`."""
    about = about_machine()
    rows = [asdict(one) for one in spent]
    (RESULTS / "against_lmms_eval.json").write_text(
        json.dumps({"about": about, "rows": rows}, indent=1) + "\n"
    )
    names = list(dict.fromkeys(one.what for one in spent))
    middle = {
        name: {
            key: median(getattr(one, key) for one in spent if one.what == name)
            for key in ("wall_s", "cpu_s", "load")
        }
        for name in names
    }
    peer = middle[names[0]]
    lines = [
        "# Whole processes beside lmms-eval",
        "",
        ", ".join(f"{name} {value}" for name, value in about.items()),
        "",
        f"{clips} clips, {questions} questions, the embedded model with 8 frames, one thread,",
        f"empty caches; medians of {repeats} runs in turn. lmms-eval has no sweep: five settings",
        "are five times its one. Ratios are lmms-eval's seconds over those of the command; "
        "targets: 3 and 10.",
        f"Replies of the full model equal to lmms-eval's: {same} of {questions}.",
        "",
        "| command | wall s | processor s | load | ratio, wall | ratio, processor |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        times = 5 if "5 settings" in name else 1
        own = middle[name]
        lines.append(
            f"| {name} | {own['wall_s']:.1f} | {own['cpu_s']:.1f} | {own['load']:.1f} "
            f"| {times * peer['wall_s'] / own['wall_s']:.2f} "
            f"| {times * peer['cpu_s'] / own['cpu_s']:.2f} |"
        )
    (RESULTS / "against_lmms_eval.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
