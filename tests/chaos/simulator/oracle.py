"""What must be true of the stores, whatever went wrong: read without the code that is judged."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from jobs.run.driver import JobResult
from pipeline.runtime.stopping import Stopped
from pipeline.storage.leases import LeaseError
from pipeline.storage.objects import StoreError
from pipeline.storage.seal import SEAL, DamagedFileError, digest_of
from tango_core.errors import InputError
from tests.chaos.simulator.running import METHODS, Running, read_table
from tests.chaos.simulator.schedules import Fault, kind_of
from tests.chaos.simulator.world import Killed, Process

# What was measured, and whether it had to be computed.
_NOT_SAID = ("cache", "answered_at", "encode_tflops")
_DAMAGE = (OSError, pa.ArrowException, ValueError)
Name = tuple[str, ...]
Row = dict[str, Any]


class WrongError(AssertionError):
    """The product lost, doubled, changed or hid something."""


def expected(running: Running) -> dict[Name, object]:
    """What a job has left: answers by name, tokens by cache and clip."""
    answers = {_name(row): _said(row) for _, row in _rows(running, "/answers/")}
    tokens = {_key(path, row): _tokens(row) for path, row in _rows(running, "/cache/")}
    return {**answers, **tokens}


def check_whole(running: Running) -> None:
    """Nothing half written has a name that readers look at; call it when processes have died."""
    rotten = running.struck("rot")
    for path in running.state.paths():
        name = path.rpartition("/")[2]
        data = running.state.read(path) or b""
        if name.startswith(".") or (rotten and "parquet" in name):
            continue
        try:
            if name.endswith(".json"):
                json.loads(data)
            elif name.endswith(".parquet"):
                read_table(pa.BufferReader(data))
            elif not data:
                raise ValueError("it is empty")
        except _DAMAGE as error:
            raise WrongError(f"{path} is half written: {error}") from error


def check_accounts(running: Running) -> None:
    """Check that what says that it is complete is, and that what was whole in a cache still is."""
    if running.struck("rot"):
        return
    for folder in _folders(running, "facts.json"):
        said = _json(running, f"{folder}/facts.json").get("num_answers")
        there = {_name(row) for _, row in _rows(running, f"{folder}/answers/")}
        if said not in (None, len(there)):
            raise WrongError(f"{folder} says {said} answers, its parts hold {len(there)}")
    finished, intact = finished_clips(running), intact_entries(running)
    for kept, before in ((finished, running.finished), (intact, running.intact)):
        if (lost := before - kept) and not running.struck("power cut"):
            raise WrongError(f"{len(lost)} finished clips or token sets are gone: {sorted(lost)}")
    running.finished, running.intact = finished, intact


def finished_clips(running: Running) -> set[Name]:
    """Run and clip of all clips whose answers are all there, and right, in parts that are whole."""
    right: dict[Name, set[Name]] = {}
    for path in _files(running, "/answers/"):
        with suppress(*_DAMAGE):
            for row in _sealed_rows(running, path):
                name = _name(row)
                if _said(row) == running.reference.get(name):
                    right.setdefault((path.split("/answers/")[0], name[1]), set()).add(name)
    planned = Counter(name[1] for name in _answers(running))
    return {clip for clip, names in right.items() if len(names) == planned[clip[1]]}


def complete_runs(running: Running) -> list[str]:
    """Runs that say that they are complete, whether their drivers lived to tell it or not."""
    found = []
    for folder in _folders(running, "summary.json"):
        counted = _json(running, f"{folder}/facts.json").get("num_answers") is not None
        if counted and _json(running, f"{folder}/summary.json")["num_failed"] == 0:
            found.append(folder.rpartition("/")[2])
    return found


def check_attempt(running: Running, process: Process, struck: list[Fault]) -> None:
    """An attempt blames no clip for a store, and takes no run from a living driver.

    Args:
        running: The world.
        process: A driver that has ended.
        struck: What went wrong while it lived.
    """
    kinds = {fault.kind for fault in struck}
    away = [fault for fault in struck if fault.kind in ("full disk", "outage")]
    asked = [fault.value for fault in struck if fault.kind in ("refused", "lost answer")]
    brief = all(fault.value <= 8 for fault in away) and sum(asked) + len(away) <= 3
    # A damaged file may show later.
    may_fail = process.error is not None or running.struck("rot")
    if not may_fail and process.value.result.num_failed_clips:
        if brief and kinds <= {"full disk", "outage", "refused", "lost answer", "switch"}:
            raise WrongError(f"a clip failed, and at most a store was at fault: {process.value}")
        if kinds <= {"switch", "arrive", "pause", "slow", "clock jump"}:
            raise WrongError(f"clips failed without a reason: {process.value}")
    harmless = {"clock jump", "switch", "decode", "listing", "rot", "arrive"}
    polite = all(one.value[0] != "steal" for one in struck if one.kind == "arrive")
    taken = "taken over" in str(process.error)
    if taken and running.is_store and polite and kinds <= harmless:
        raise WrongError(f"a living driver lost its run to one that must wait: {process.error}")


def check_end(running: Running, process: Process) -> None:
    """Check that a process ended well, was killed, or names in one line what stopped it."""
    error, text = process.error, str(process.error)
    rotten_part = any(fault.value[1] == "part" for fault in running.struck("rot"))
    match error:
        case None | Killed() | Stopped() | LeaseError() | StoreError():
            right = True
        case FileNotFoundError() if "continue the run with --resume" in text or (
            "/answers/part-" in text
        ):
            right = rotten_part  # a part was lost after the count; the next driver continues
        case FileNotFoundError():
            right = "/facts.json" in text and bool(running.struck("arrive"))
        case OSError():  # a disk or a store that does not work, while nothing waits for it
            right = not isinstance(error, FileExistsError)
        case DamagedFileError():
            right = rotten_part  # the next driver sets the part aside
        case InputError() if process.is_driver:
            right = isinstance(error.__cause__, OSError)
        case _:
            right = isinstance(error, ValueError) and not process.is_driver
    if not right:
        lines = "".join(traceback.format_exception(error))
        raise WrongError(f"{process.name} ended with {type(error).__name__}: {error}\n{lines}")


def intact_entries(running: Running) -> set[Name]:
    """Cache and clip of every token set that is as it should be."""
    there: set[Name] = set()
    for path in _files(running, "/cache/"):
        # What is damaged may be a column that is not looked at here.
        if running.state.read(path) == running.rotten.get(path):
            continue
        with suppress(*_DAMAGE):
            rows = _table(running, path).to_pylist()
            found = {_key(path, row): _tokens(row) for row in rows}
            there |= {key for key in found if found[key] == running.reference.get(key)}
    return there


def work_left(running: Running, resume: str | None = None) -> tuple[int, int]:
    """Clips that lack an answer, and clips that lack a token set, in what is intact.

    Args:
        running: The world.
        resume: Run that is resumed; `None` for the newest that is not finished.
    """
    run = _continued(running) if resume is None else resume
    done = [clip for folder, clip in finished_clips(running) if folder.rpartition("/")[2] == run]
    clips = {name[1] for name in _answers(running)}
    there = intact_entries(running)
    uncached = {key[1] for key in running.reference if len(key) == 2 and key not in there}
    return len(clips) - len(done), len(uncached)


def _continued(running: Running) -> str | None:
    """The newest run that is not finished, with failures or without, or `None`."""
    finished = {*_folders(running, "facts.json")} & {*_folders(running, "summary.json")}
    going = [one for one in _folders(running, "job.digest") if one not in finished]
    return max(going).rpartition("/")[2] if going else None  # names begin with the time


def check_work(left: tuple[int, int], result: JobResult | None, encoded: int) -> None:
    """An attempt in which nothing goes wrong does what is left, and nothing twice."""
    unanswered, uncached = left
    if result is not None and result.num_clips > unanswered:
        raise WrongError(f"{result.num_clips} clips were asked, and {unanswered} had to be")
    if encoded > uncached:
        raise WrongError(f"{encoded} clips were encoded, and {uncached} had to be")


def check_finished(running: Running, run: str) -> None:
    """Check that a finished run holds every answer, right, and counts them so."""
    answers = _answers(running)
    found = {_name(row): _said(row) for _, row in _rows(running, f"/{run}/answers/")}
    if found != answers:
        wrong = [name for name in found if found[name] != answers.get(name)]
        raise WrongError(f"answers are lost {answers.keys() - found.keys()} or wrong {wrong}")
    _check_counts(running, run, len(answers))
    _check_caches(running)


def _check_counts(running: Running, run: str, num_answers: int) -> None:
    """The numbers of the summary are those of the files."""
    (folder,) = (one for one in _folders(running, "summary.json") if one.endswith(f"/{run}"))
    summary = _json(running, f"{folder}/summary.json")
    failures = read_table(pa.BufferReader(running.state.read(f"{folder}/failures.parquet") or b""))
    cells = [cell["num_questions"] for cell in summary["cells"]]
    num_said = _json(running, f"{folder}/facts.json")["num_answers"]
    found = failures.num_rows, summary["num_failed"], num_said, cells
    right = 0, 0, num_answers, [num_answers // len(METHODS)] * len(METHODS)
    if found != right:
        raise WrongError(f"the run counts {found} and holds {right}")


def _check_caches(running: Running) -> None:
    """What is in a cache is what belongs there."""
    if running.struck("rot"):
        return
    gone = {path.rpartition("/")[2] for path in running.state.paths() if path.endswith(".gone")}
    for path, row in _rows(running, "/cache/"):
        is_gone = f"{path.rpartition('/')[2]}.{row['clip_key']}.gone" in gone
        if not is_gone and _tokens(row) != running.reference.get(_key(path, row)):
            raise WrongError(f"{path} holds other tokens of {row['video_id']} than it should")


def _answers(running: Running) -> dict[Name, object]:
    """The answers of an undisturbed job by name."""
    return {key: value for key, value in running.reference.items() if len(key) == 4}


def _folders(running: Running, name: str) -> list[str]:
    """Run directories that hold a file."""
    paths = running.state.paths()
    return [path.removesuffix(f"/{name}") for path in paths if path.endswith(f"/{name}")]


def _json(running: Running, path: str) -> Any:
    """Content of a JSON file; nothing if it is not there."""
    return json.loads(running.state.read(path) or b"{}")


def _files(running: Running, where: str) -> list[str]:
    """Parquet files that readers see, without empty ones."""
    return [
        path
        for path in running.state.paths()
        if where in path and kind_of(path) and running.state.read(path)
    ]


def _table(running: Running, path: str) -> pa.Table:
    return read_table(pa.BufferReader(running.state.read(path) or b""))


def _rows(running: Running, where: str) -> Iterator[tuple[str, Row]]:
    """Path and row of all Parquet files that readers see, part after part."""
    for path in _files(running, where):
        yield from ((path, row) for row in _table(running, path).to_pylist())


def _sealed_rows(running: Running, path: str) -> list[Row]:
    """The rows of a part whose bytes are as they were written."""
    table = _table(running, path)
    seal = json.loads((table.schema.metadata or {})[SEAL])
    digest = seal.pop("digest")
    table = table.replace_schema_metadata(None)
    if digest != digest_of(table, seal) or seal["file"] != path.rpartition("/")[2]:
        raise ValueError("it is damaged")
    rows: list[Row] = table.to_pylist()
    return rows


def _name(row: Row) -> Name:
    return (row["benchmark"], row["video_id"], row["cell"], row["question_id"])


def _key(path: str, row: Row) -> Name:
    return (path.split("/")[-2], row["clip_key"])


def _said(row: Row) -> tuple[object, ...]:
    """An answer without what was measured."""
    return tuple(
        (key, value)
        for key, value in sorted(row.items())
        if not key.endswith("_ms") and key not in _NOT_SAID
    )


def _tokens(row: Row) -> tuple[object, ...]:
    """What the cache holds of a clip, bit for bit."""
    digest = hashlib.sha256(row["tokens"]).hexdigest()
    return (row["video_id"], digest, tuple(row["indices"]), tuple(row["shape"]), row["dtype"])
