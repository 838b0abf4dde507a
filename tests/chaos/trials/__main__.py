"""Real jobs that something happens to at a random moment, judged by the simulator's oracle.

    python -m tests.chaos.trials ROW... [--tries 10] [--seed 0]    # adds to results/trials.jsonl
    python -m tests.chaos.trials --table                           # writes results/trials.md

A trial: a `tango sweep` over a few clips with the embedded model is disturbed, and resumed in a
loop until it is done. After every attempt and at the end its files must be what the simulator's
oracle wants of them. Rows on Ray share one cluster of three nodes. `full disk` needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures"))

from cluster_keeper import RECIPE, cluster
from s3_server import environment, s3_server
from stopped_runs import num_cached, write_recipe

from tests.chaos.simulator.oracle import WrongError
from tests.chaos.trials.driver import Forker, forker
from tests.chaos.trials.judge import Left, check_work, files_below
from tests.chaos.trials.places import a_bucket, a_door, grow, made, small_disk, tracking_server
from tests.chaos.trials.rows import CELLS, CLIPS, ROWS, Row, Trial

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path(__file__).parents[1] / "results" / "trials.md"
WORK = Path(tempfile.gettempdir()) / "tango-trials"
BELOW = "\n## "
MOST_RESUMES = 3
METHODS = [{"name": "full"}, {"name": "tango", "retention": 0.2}]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        seed: Of the trial.
        wrong: What the oracle says; "" if all is right.
        struck: Whether there was something to strike.
        exit_code: Of the attempt that was disturbed.
        last_line: That it said.
        seconds: From the fault to its end.
        resumes: Attempts that were needed after it.
        again: Clips that these encoded although they were in all caches.
    """

    seed: int
    wrong: str
    struck: bool
    exit_code: int
    last_line: str
    seconds: float
    resumes: int
    again: int


class Lab:
    """What all trials of one call share.

    Args:
        work: Directory for everything.
        start: Starts drivers.
    """

    def __init__(self, work: Path, start: Forker) -> None:
        self.work, self.start = work, start
        self.stack = ExitStack()
        self._places: dict[str, Any] = {}
        self.reference: Any = None

    def place(self, name: str, make: Callable[[], Any]) -> Any:
        """A cluster or a server, started when it is first needed."""
        if name not in self._places:
            self._places[name] = self.stack.enter_context(make())
        return self._places[name]

    def undisturbed(self) -> Any:
        """What a job leaves that nothing happens to."""
        output = self.work / "undisturbed"
        if not (output / "done").exists():
            shutil.rmtree(output, ignore_errors=True)
            driver = self.start.start(*self.arguments(output), log=self.work / "undisturbed.log")
            assert driver.wait() == 0, driver.text()
            (output / "done").write_text("done")
        return Left(files_below(output)).reference

    def arguments(self, output: object, *more: object, recipe: str = "loop") -> list[object]:
        """Of `tango`."""
        path = self.work / recipe / "recipe.yaml"
        return ["sweep", path, "--limit", CLIPS, "--output", output, *more]


def one_trial(lab: Lab, row: Row, seed: int) -> Outcome:
    """Start a job, let the fault happen, resume until it is done, and judge."""
    dice = random.Random(f"{row.name} {seed}")
    output = lab.work / f"try-{time.monotonic_ns()}"
    log = lab.work / f"{output.name}.log"
    with ExitStack() as stack:
        more: list[object] = []
        env: dict[str, str] = {}
        where: object = output
        about: dict[str, Any] = {}
        look = files_below(output)
        if row.where == "ray":
            keeper, _ = lab.place("cluster", lambda: cluster("encode", "answer"))
            more += ["--address", keeper.address]
            about["keeper"] = keeper
        if row.where == "store":
            server = lab.place("store", s3_server)
            about["server"], about["door"] = server, lab.place("door", lambda: a_door(server))
            where, env = f"s3://{output.name}/runs", environment(about["door"].endpoint)
            look = a_bucket(server, output.name)
        if row.where == "tracked":
            uri, about["tracking"] = stack.enter_context(tracking_server(made(output / "mlflow")))
            more += ["--tracking-uri", uri]
            output = output / "runs"
            where, look = output, files_below(output)
        if row.where == "disk":
            # Room for some of the token sets: a third of what they take, to nearly all.
            disk = stack.enter_context(small_disk(output / "cache", dice.randint(200, 900)))
            about["disk"] = disk
        recipe = "ray" if row.where == "ray" else "loop"
        driver = lab.start.start(
            *lab.arguments(where, *more, recipe=recipe),
            log=log,
            tracked=row.where == "tracked",
            **env,
        )
        stack.callback(driver.kill)
        trial = Trial(dice, driver, output, **about)
        begun, struck = _strike_at_a_moment(row, trial)
        code = ended = driver.wait()
        seconds = time.monotonic() - begun
        for thread in trial.healed:
            thread.join()
        if trial.disk is not None:
            grow(trial.disk)
        if trial.server is not None:
            trial.server.rule = lambda request: None
        left = Left(look, lab.reference)
        resumes = again = 0
        wrong = ""
        try:
            if code not in row.ends:
                raise WrongError(f"the exit code is {code}")
            if "Traceback" in driver.text():
                raise WrongError("a traceback is shown")
            left.after_attempt()
            while code != 0:
                if resumes == MOST_RESUMES:
                    raise WrongError(f"after {resumes} resumes the exit code is {code}")
                resumes += 1
                code, more_again = _resume(lab, left, where, env, log)
                again += more_again
                left.after_attempt()
            left.finished_run(_run(left))
        except WrongError as error:
            wrong = str(error)
    said = [line for line in log.read_text(errors="replace").splitlines() if "tango:" in line]
    line = (said or [""])[0].replace(str(lab.work), "WORK")
    if not wrong:
        shutil.rmtree(lab.work / log.stem, ignore_errors=True)
    return Outcome(seed, wrong, struck, ended, line, round(seconds, 1), resumes, again)


def _strike_at_a_moment(row: Row, trial: Trial) -> tuple[float, bool]:
    """Wait for a moment in the work, and let the fault happen: when, and whether it could."""
    driver, dice = trial.driver, trial.dice
    after, pause = dice.randint(0, CLIPS * CELLS), dice.uniform(0, 0.6)
    driver.until(lambda: "clips to decode and encode" in driver.text())
    if row.where == "store":
        started, wait = time.monotonic(), dice.uniform(0, 6)
        driver.until(lambda: time.monotonic() - started > wait)
    elif row.where != "disk":
        driver.until(lambda: num_cached(trial.output) >= after)
        time.sleep(pause)
    begun = time.monotonic()
    deadline = begun + 30
    struck = False
    while not struck and driver.poll() is None and time.monotonic() < deadline:
        if not (struck := row.strike(trial)):
            time.sleep(0.05)
    return begun, struck


def _resume(lab: Lab, left: Left, where: object, env: dict[str, str], log: Path) -> tuple[int, int]:
    """One more attempt, in a loop: exit code, clips that it encoded without need."""
    run = _run(left)
    if not run:  # it was stopped before it had a run
        arguments = lab.arguments(where)
    else:
        arguments = lab.arguments(where, "--resume", f"{where}/{run}")
    todo = left.work_left(run)
    with open(log, "a") as file:
        file.write("--- resumed\n")
    said = len(log.read_text(errors="replace"))
    driver = lab.start.start(*arguments, log=log, **env)
    code = driver.wait()
    text = driver.text()[said:]
    return code, max(0, check_work(todo, text) - todo[1]) if code == 0 else 0


def _run(left: Left) -> str:
    """Name of the newest run; "" if there is none."""
    found = [path.split("/")[-2] for path in left.state.paths() if path.endswith("/job.yaml")]
    return max(found, default="")


def measure(names: list[str], tries: int, seed: int, raw: Path, work: Path) -> bool:
    """Run trials and append their outcomes to a file of JSON lines; whether all were right."""
    work.mkdir(parents=True, exist_ok=True)
    write_recipe(work / "loop", work / "shapes", methods=METHODS, **{**RECIPE, "executor": "local"})
    write_recipe(
        work / "ray", work / "shapes", methods=METHODS, **RECIPE, cluster={"lost_timeout_s": 60}
    )
    good = True
    with forker() as start:
        lab = Lab(work, start)
        lab.reference = lab.undisturbed()
        with lab.stack:
            for number in range(seed, seed + tries):
                for name in names:
                    outcome = one_trial(lab, ROWS[name], number)
                    good &= not outcome.wrong
                    print(name, outcome, flush=True)
                    with open(raw, "a") as file:
                        file.write(json.dumps({"row": name, **asdict(outcome)}) + "\n")
    return good


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--raw", type=Path, default=RESULTS.with_suffix(".jsonl"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--work", type=Path, default=WORK)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    for name, value in (
        ("OMP_NUM_THREADS", "1"),
        ("RAY_AUTH_MODE", "disabled"),
        ("RAY_USAGE_STATS_ENABLED", "0"),
        ("RAY_worker_niceness", "0"),
        ("HF_HUB_OFFLINE", "1"),
        ("MLFLOW_DISABLE_TELEMETRY", "true"),
    ):
        os.environ.setdefault(name, value)
    good = not given.rows or measure(given.rows, given.tries, given.seed, given.raw, given.work)
    if given.table:
        from tests.chaos.trials.table import table

        outcomes = [json.loads(line) for line in given.raw.read_text().splitlines()]
        # What stands below it was written by hand.
        kept = RESULTS.read_text().partition(BELOW)[2]
        RESULTS.write_text(table(outcomes) + (BELOW + kept if kept else ""))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
