"""Damaged runs that are resumed: refused in one line, or in the end what they would have been."""

from __future__ import annotations

import random
import shutil
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from stopped_runs import num_cached, write_recipe

from tests.chaos.fuzz.cases import Outcome
from tests.chaos.fuzz.file_cases import damage_file
from tests.chaos.simulator import oracle
from tests.chaos.simulator.faults import Rot
from tests.chaos.trials.driver import Driver, Forker, forker
from tests.chaos.trials.judge import Left, files_below

CLIPS = 4
METHODS = [{"name": "full"}, {"name": "tango", "retention": 0.2}]
STATES = ("finished", "stopped", "killed")
MOST_RESUMES = 3
_MOST_CHARACTERS = 4_000
_ENDS = (0, 1, 2)


class WrongError(AssertionError):
    """The command did what it must not do."""


@dataclass(frozen=True)
class Lab:
    """A directory with runs in three states, and what starts `tango`.

    Attributes:
        work: The directory; `out` in it is where every case works.
        start: Starts drivers.
        reference: What an undisturbed job leaves.
    """

    work: Path
    start: Forker
    reference: Any

    @property
    def out(self) -> Path:
        """Runs and caches of the case at work; paths are in files, so it is always the same."""
        return self.work / "out"

    def tango(self, *more: object) -> Driver:
        """Start a sweep."""
        log = self.work / "log"
        log.unlink(missing_ok=True)
        recipe = self.work / "recipe" / "recipe.yaml"
        return self.start.start(
            "sweep", recipe, "--limit", CLIPS, "--output", self.out, *more, log=log
        )


@cache
def lab() -> Lab:
    """Made once: an undisturbed run, one that was stopped, and one that was killed."""
    stack = ExitStack()  # lives as long as the process: what is forked from ends with its pipe
    work = Path(mkdtemp(prefix="fuzz-"))
    model = {"name": "tiny", "num_frames": 4, "device": "cpu"}
    write_recipe(work / "recipe", work / "shapes", methods=METHODS, model=model, executor="local")
    start = stack.enter_context(forker())
    _STACKS.append(stack)
    made = Lab(work, start, None)
    for state in STATES:
        driver = made.tango()
        if state != "finished":
            driver.until(lambda: num_cached(made.out) >= CLIPS)
            driver.signal(signal.SIGTERM if state == "stopped" else signal.SIGKILL)
        driver.wait()
        made.out.rename(work / state)
    return Lab(work, start, Left(files_below(work / "finished")).reference)


_STACKS: list[ExitStack] = []


def run_resume_case(seed: int) -> Outcome:
    """Damage one or two files of a run or of its caches, and resume the run until it is done."""
    here, dice = lab(), random.Random(f"resume {seed}")
    state = dice.choice(STATES)
    shutil.rmtree(here.out, ignore_errors=True)
    shutil.copytree(here.work / state, here.out)
    (run,) = (path.parent for path in here.out.glob("*/job.yaml"))
    own = [path for path in sorted(run.rglob("*")) if path.is_file()]
    own = [path for path in own if path.suffix not in (".png", ".html", ".csv", ".md", ".tex")]
    cached = sorted(path for path in (here.out / "cache").rglob("*") if path.is_file())
    done, about = [], []
    for _ in range(dice.choices((1, 2), (4, 1))[0]):
        files = cached if dice.random() < 0.25 else own
        path = dice.choice([path for path in files if path.exists()])
        done += damage_file(path, [path for path in files if path.exists()], dice)
        about.append(_general(path))
    try:
        what, said, problem = *_resumed(here, run.name), ""
    except (WrongError, oracle.WrongError, AssertionError) as error:
        what, said, problem = "wrong", "", f"{type(error).__name__}: {error}"
    named = f"{state}: {', '.join(sorted(about))}"
    return Outcome("resume", named, what, problem, tuple(done), said)


def _general(path: Path) -> str:
    if path.name.startswith("part-"):
        return "answers"
    if path.suffix == ".parquet" and path.parent.parent.name == "cache":
        return "token set"
    return "lease" if path.name.startswith(".lease") else path.name


def _resumed(here: Lab, run: str) -> tuple[str, str]:
    """How it ended, and the line of a refusal.

    Raises:
        WrongError: For a traceback, an exit code that does not exist, a refusal without a reason,
            or answers that are gone.
        oracle.WrongError: For results that are not those of an undisturbed run.
    """
    left = Left(files_below(here.out), here.reference)
    left.world.struck = [Rot(1)]
    before = oracle.finished_clips(left)  # type: ignore[arg-type]
    for attempt in range(1, MOST_RESUMES + 1):
        driver = here.tango("--resume", run)
        code, text = driver.wait(), driver.text()
        last = (text.strip().splitlines() or [""])[-1]
        if "Traceback" in text or code not in _ENDS:
            raise WrongError(f"exit code {code}: {' '.join(text.split())[-900:]}")
        left.look()
        if lost := before - oracle.finished_clips(left):  # type: ignore[arg-type]
            raise WrongError(f"answers that were intact are gone: {sorted(lost)}; {last}")
        if code == 2:
            if not last.startswith("tango: ") or len(last) > _MOST_CHARACTERS:
                raise WrongError(f"exit code 2, and the last line is {last[:300]!r}")
            return "refused in one line", last
        if code == 0:
            left.finished_run(run)
            return f"as undisturbed, {attempt} resume{'s' * (attempt > 1)}", ""
    raise WrongError(f"after {MOST_RESUMES} resumes the exit code is {code}: {last}")
