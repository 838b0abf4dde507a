"""What a stop in mid-run costs: real `tango` processes are ended, resumed and compared.

    python tests/chaos/stops.py ROW... [--tries 3] [--old CHECKOUT]   # adds to a JSON file
    python tests/chaos/stops.py --table                               # writes results/stops.md

Rows whose name holds `before` run the code of another checkout, a release without this behaviour.
`full disk` needs root: it mounts a small tmpfs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from cluster_keeper import RECIPE, cluster
from stopped_runs import (
    ROOT,
    Tango,
    complete,
    difference,
    num_cached,
    num_encoded,
    processes_of,
    run_of,
    tango,
    write_recipe,
)

RESULTS = Path(__file__).parent / "results"
WORK = Path(tempfile.gettempdir()) / "tango-stops"
CLIPS, CELLS = 12, 3
LIMIT = ("--limit", CLIPS)


@dataclass(frozen=True)
class Case:
    """One way to stop a job.

    Attributes:
        name: Row of the table.
        executor: Of the attempt that is stopped; the resume runs in a plain loop.
        signum: What is sent.
        times: How often.
        to_group: To the whole process group, as Slurm does.
        at_start: At a random moment while Ray starts, instead of after a random number of clips.
        old: Whether the other checkout is run.
        node: Which node is lost; `, another` if one comes in its place.
    """

    name: str
    executor: str
    signum: int = signal.SIGTERM
    times: int = 1
    to_group: bool = False
    at_start: bool = False
    old: bool = False
    node: str = ""


_SIGNALS = [
    Case("SIGTERM, loop, before", "local", old=True),
    Case("SIGTERM, loop", "local"),
    Case("SIGTERM, Ray, before", "ray", old=True),
    Case("SIGTERM, Ray", "ray"),
    Case("SIGTERM to the group, loop", "local", to_group=True),
    Case("SIGTERM to the group, Ray", "ray", to_group=True),
    Case("SIGTERM while Ray starts", "ray", at_start=True),
    Case("SIGHUP, loop", "local", signal.SIGHUP),
    Case("Ctrl-C, loop", "local", signal.SIGINT, to_group=True),
    Case("Ctrl-C, Ray", "ray", signal.SIGINT, to_group=True),
    Case("Ctrl-C three times, loop", "local", signal.SIGINT, times=3, to_group=True),
    Case("Ctrl-C three times, Ray", "ray", signal.SIGINT, times=3, to_group=True),
    Case("SIGKILL of the driver, loop", "local", signal.SIGKILL),
    Case("SIGKILL of the driver, Ray", "ray", signal.SIGKILL),
]


@dataclass(frozen=True)
class Outcome:
    """One try.

    Attributes:
        exit_code: Of the process that was stopped.
        end_s: Seconds until it had ended.
        lines: Lines of its log after the stop.
        at_stop: Clips whose token sets were all there.
        lost: Answers missing after the resume; `doubled`, `wrong` likewise.
        again: Clips that were encoded although they were there.
        orphans_s: Seconds until no process of it was left.
        resume_code: Exit code of the resume.
    """

    exit_code: int
    end_s: float
    lines: int
    at_stop: int
    lost: int
    doubled: int
    wrong: int
    again: int
    orphans_s: float
    resume_code: int
    last_line: str = ""


def stop_and_resume(case: Case, work: Path, whole: Path, old: Path | None, seed: int) -> Outcome:
    """One try of one case."""
    root = old if case.old and old else ROOT
    output = work / f"try-{time.monotonic_ns()}"
    arguments = ("sweep", "recipe.yaml", *LIMIT)
    after = 0 if case.at_start else random.Random(seed).randint(1, CELLS * CLIPS // 2)
    with tango(
        *arguments, "--set", f"executor={case.executor}", cwd=work, output=output, root=root
    ) as first:
        if case.at_start:
            first.wait_until(lambda: "token cache(s)" in first.text())
            time.sleep(random.Random(seed).uniform(0, 6))
        else:
            first.wait_until(lambda: num_cached(output) >= after)
        before = len(first.text().splitlines())
        exit_code, end_s = first.send(case.signum, times=case.times, to_group=case.to_group)
        orphans_s = _seconds_until_gone(first)
    there = complete_clips(output)
    resumed = complete(
        *arguments, *("--resume", run_of(output)), "--set", "executor=local",
        cwd=work, output=output, root=root,
    )  # fmt: skip
    found = difference(run_of(output), whole)
    again = num_encoded(resumed.text()) - (CLIPS - there)
    return Outcome(
        exit_code,
        end_s,
        len(first.text().splitlines()) - before,
        there,
        **asdict(found),
        again=again,
        orphans_s=orphans_s,
        resume_code=resumed.process.returncode,
        last_line=first.last_line(),
    )


def complete_clips(output: Path) -> int:
    """Clips that all caches hold."""
    keys = [{f.name for f in folder.glob("*.parquet")} for folder in output.glob("cache/*")]
    return len(set.intersection(*keys)) if len(keys) == CELLS else 0


def _seconds_until_gone(stopped: Tango, limit_s: float = 150.0) -> float:
    """Until no process of its session lives."""
    started = time.monotonic()
    while processes_of(stopped.process.pid) and time.monotonic() - started < limit_s:
        time.sleep(0.1)
    return time.monotonic() - started


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of a few megabytes in memory; needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def full_disk(case: Case, work: Path, whole: Path, old: Path | None, seed: int) -> Outcome:
    """The disk of the caches gets full after some clips; the resume has room again."""
    root = old if case.old and old else ROOT
    output = work / f"try-{time.monotonic_ns()}"
    arguments = ("sweep", "recipe.yaml", *LIMIT)
    with small_disk(work / f"disk-{time.monotonic_ns()}", "600k") as disk:
        cache = ("--cache", disk)
        started = time.monotonic()
        first = complete(
            *arguments, *cache, "--set", f"executor={case.executor}",
            cwd=work, output=output, root=root,
        )  # fmt: skip
        end_s = time.monotonic() - started
        there = len({f.name for f in disk.glob("*full*/*.parquet")})
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        resumed = complete(
            *arguments, *cache, *("--resume", run_of(output)), "--set", "executor=local",
            cwd=work, output=output, root=root,
        )  # fmt: skip
        found = difference(run_of(output), whole)
    return Outcome(
        first.process.returncode,
        end_s,
        1,
        there,
        **asdict(found),
        again=0,
        orphans_s=0.0,
        resume_code=resumed.process.returncode,
        last_line=first.last_line(),
    )


def lost_node(case: Case, work: Path, whole: Path, old: Path | None, seed: int) -> Outcome:
    """One of two nodes is lost; another one with its resource comes, or none does."""
    name, _, comes_back = case.node.partition(", ")
    folder = work / f"nodes-{time.monotonic_ns()}"
    pools, model = RECIPE["pools"], {"name": "tiny", "device": "cpu"}
    write_recipe(folder, work / "shapes", pools=pools, model=model, cluster={"lost_timeout_s": 45})
    output, arguments = folder / "runs", ("sweep", "recipe.yaml", *LIMIT)
    after = random.Random(seed).randint(1, CELLS * CLIPS // 2)
    with cluster("encode", "answer") as (keeper, nodes):
        with tango(*arguments, "--address", keeper.address, cwd=folder, output=output) as job:
            job.wait_until(lambda: num_cached(output) >= after)
            keeper.remove(name)
            started = time.monotonic()
            if comes_back:
                nodes[f"another {name}"] = keeper.add(name)
            code = job.process.wait(400)
            end_s = time.monotonic() - started
        ran_on = {actor[0]: actor[1] for actor in keeper.actors() if "MapBatches" in actor[0]}
    places = {node_id: place.removeprefix("another ") for place, node_id in nodes.items()}
    stages = {"CompressVideo": "encode", "AnswerQuestions": "answer"}
    for actor, node_id in ran_on.items():
        (place,) = (place for stage, place in stages.items() if stage in actor)
        assert places.get(node_id, place) == place, (actor, node_id, nodes)
    there = complete_clips(output)
    resumed = complete(
        *arguments, *("--resume", run_of(output)), "--set", "executor=local",
        cwd=folder, output=output,
    )  # fmt: skip
    return Outcome(
        code,
        end_s,
        1,
        there,
        **asdict(difference(run_of(output), whole)),
        again=0,
        orphans_s=0.0,
        resume_code=resumed.process.returncode,
        last_line=job.last_line(),
    )


_NODES = [
    Case("encode node lost, another comes", "ray", node="encode, another"),
    Case("answer node lost, another comes", "ray", node="answer, another"),
    Case("encode node lost, none comes", "ray", node="encode"),
]
_DISKS = [
    Case("full disk, loop, before", "local", old=True),
    Case("full disk, loop", "local"),
    Case("full disk, Ray", "ray"),
]
CASES: dict[str, tuple[Case, Callable[..., Outcome]]] = {
    **{case.name: (case, stop_and_resume) for case in _SIGNALS},
    **{case.name: (case, full_disk) for case in _DISKS},
    **{case.name: (case, lost_node) for case in _NODES},
}


def measure(names: list[str], tries: int, old: Path | None, raw: Path, work: Path) -> None:
    """Run rows and add their outcomes to the JSON file."""
    whole = work / "whole"
    if not (whole / "done").exists():
        shutil.rmtree(work, ignore_errors=True)
        write_recipe(work, work / "shapes")
        arguments = ("sweep", "recipe.yaml", *LIMIT, "--set", "executor=local")
        done = complete(*arguments, cwd=work, output=whole)
        assert done.process.returncode == 0, done.text()
        (whole / "done").touch()
    for name in names:
        case, run = CASES[name]
        for number in range(tries):
            outcome = run(case, work, run_of(whole), old, random.randrange(2**32))
            print(name, number + 1, outcome, flush=True)
            rows = json.loads(raw.read_text()) if raw.exists() else {}
            rows.setdefault(name, []).append(asdict(outcome))
            raw.write_text(json.dumps(rows, indent=1))


def table(raw: Path) -> str:
    """The Markdown of all that was measured."""
    rows = json.loads(raw.read_text())
    lines = [
        "| fault | tries | exit code | s to the end | then s until no process is left "
        "| lost | doubled | wrong | clips encoded again | exit code of the resume |",
        f"{'|---' * 10}|",
    ]
    for name in CASES:
        if name not in rows:
            continue
        found = [Outcome(**row) for row in rows[name]]
        shown = [
            name,
            len(found),
            _range([o.exit_code for o in found]),
            _range([round(o.end_s, 1) for o in found]),
            _range([round(o.orphans_s, 1) for o in found]),
            *(sum(getattr(o, key) for o in found) for key in ("lost", "doubled", "wrong")),
            _range([o.again for o in found]),
            _range([o.resume_code for o in found]),
        ]
        lines.append(f"| {' | '.join(map(str, shown))} |")
    return "\n".join(lines)


def _range(values: list[float]) -> str:
    """One value, or the least and the largest."""
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


INTRO = f"""# Stops in mid-run

Made by `tests/chaos/stops.py`: {CLIPS} generated clips, {CELLS} methods, the embedded model, on two
busy cores. A `tango sweep` is stopped after a random number of token sets, then resumed in a plain
loop and compared with an undisturbed run: answers lost, doubled, saying something else. *Clips
encoded again* were in all caches at the stop. Rows *before* ran the code of release 0.2 as it was
without this handling of signals and stores. The full disk is a tmpfs of 600 kB for the caches: it
has room again for the resume; the seconds hold the whole job with 60 s of waiting.

"""


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(CASES))
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--old", type=Path, help="checkout for the rows `before`")
    parser.add_argument("--raw", type=Path, default=WORK.with_suffix(".json"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--work", type=Path, default=WORK)
    given = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if given.rows:
        measure(given.rows, given.tries, given.old, given.raw, given.work)
    if given.table:
        (RESULTS / "stops.md").write_text(INTRO + table(given.raw) + "\n")


if __name__ == "__main__":
    main()
