"""What must be true of the stores, whatever went wrong: read without the code that is judged."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from contextlib import suppress
from typing import Any

import pyarrow as pa

from jobs.run.driver import JobResult
from pipeline.storage.seal import SEAL, digest_of
from tests.chaos.simulator.faults import Fault, kind_of
from tests.chaos.simulator.running import METHODS, Running, read_table
from tests.chaos.simulator.world import Process

# What was measured, and whether it had to be computed.
_NOT_SAID = ("cache", "answered_at", "encode_tflops")


class WrongError(AssertionError):
    """The product lost, doubled, changed or hid something."""


def expected(running: Running) -> dict[tuple[str, ...], object]:
    """What a job has left: answers by name, tokens by cache and clip."""
    found: dict[tuple[str, ...], object] = {}
    for path in _files(running, "/answers/"):
        for row in _rows(running, path):
            found[_name(row)] = _said(row)
    for path in _files(running, "/cache/"):
        for row in _rows(running, path):
            found[(path.split("/")[-2], row["clip_key"])] = _tokens(row)
    return found


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
        except (ValueError, OSError, pa.ArrowException) as error:
            raise WrongError(f"{path} is half written: {error}") from error


def check_accounts(running: Running) -> None:
    """Check that what says that it is complete is, and that what was whole in a cache still is."""
    if running.struck("rot"):
        return
    for path in running.state.paths():
        folder, _, name = path.rpartition("/")
        facts = json.loads(running.state.read(path) or b"") if name == "facts.json" else {}
        if facts.get("num_answers") is None:
            continue
        rows = {_name(row) for part in _files(running, f"{folder}/answers/")
                for row in _rows(running, part)}  # fmt: skip
        if len(rows) != facts["num_answers"]:
            raise WrongError(
                f"{path} says {facts['num_answers']} answers, its parts hold {len(rows)}"
            )
    finished, intact = finished_clips(running), intact_entries(running)
    for kept, before in ((finished, running.finished), (intact, running.intact)):
        if (lost := before - kept) and not running.struck("power cut"):
            raise WrongError(f"{len(lost)} finished clips or token sets are gone: {sorted(lost)}")
    running.finished, running.intact = finished, intact


def finished_clips(running: Running) -> set[tuple[str, ...]]:
    """Run and clip of all clips whose answers are all there, and right, in parts that are whole."""
    right: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for path in _files(running, "/answers/"):
        with suppress(OSError, pa.ArrowException, ValueError):
            for row in read_sealed_rows(running, path):
                name = _name(row)
                if _said(row) == running.reference.get(name):
                    right.setdefault((path.split("/answers/")[0], name[1]), set()).add(name)
    planned = Counter(name[1] for name in running.reference if len(name) == 4)
    return {clip for clip, names in right.items() if len(names) == planned[clip[1]]}


def complete_runs(running: Running) -> list[str]:
    """Runs that say that they are complete, whether their drivers lived to tell it or not."""
    found = []
    for path in running.state.paths():
        folder, _, name = path.rpartition("/")
        facts = running.state.read(f"{folder}/facts.json")
        if name == "summary.json" and facts and json.loads(facts)["num_answers"] is not None:
            summary = json.loads(running.state.read(path) or b"")
            if summary["num_failed"] == 0:
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
    if (
        process.error is None
        and process.value.result.num_failed_clips
        and not running.struck("rot")
    ):
        if brief and kinds <= {"full disk", "outage", "refused", "lost answer", "switch"}:
            raise WrongError(f"a clip failed, and at most a store was at fault: {process.value}")
        if kinds <= {"switch", "arrive", "pause", "slow", "clock jump"}:
            raise WrongError(f"clips failed without a reason: {process.value}")
    harmless = {"clock jump", "switch", "decode", "listing", "rot", "arrive"}
    polite = all(one.value[0] != "steal" for one in struck if one.kind == "arrive")
    taken = "taken over" in str(process.error)
    if taken and running.is_store and polite and kinds <= harmless:
        raise WrongError(f"a living driver lost its run to one that must wait: {process.error}")


def intact_entries(running: Running) -> set[tuple[str, ...]]:
    """Cache and clip of every token set that is as it should be."""
    there: set[tuple[str, ...]] = set()
    for path in _files(running, "/cache/"):
        # What is damaged may be a column that is not looked at here.
        if running.state.read(path) == running.rotten.get(path, b""):
            continue
        with suppress(OSError, pa.ArrowException, ValueError):
            for row in _rows(running, path):
                key = (path.split("/")[-2], row["clip_key"])
                if _tokens(row) == running.reference.get(key):
                    there.add(key)
    return there


def work_left(running: Running, resume: str | None = None) -> tuple[int, int]:
    """Clips that lack an answer, and clips that lack a token set, in what is intact.

    Args:
        running: The world.
        resume: Run that is resumed; `None` for the newest that is not finished.
    """
    run = _continued(running) if resume is None else resume
    done = [clip for folder, clip in finished_clips(running) if folder.rpartition("/")[2] == run]
    clips = {name[1] for name in running.reference if len(name) == 4}
    there = intact_entries(running)
    uncached = {key[1] for key in running.reference if len(key) == 2 and key not in there}
    return len(clips) - len(done), len(uncached)


def _continued(running: Running) -> str | None:
    """The newest run that is not finished, with failures or without, or `None`."""
    paths = running.state.paths()
    folders = [path.rpartition("/")[0] for path in paths if path.endswith("/job.digest")]
    for folder in sorted(folders, reverse=True):  # names begin with the time
        if not {f"{folder}/facts.json", f"{folder}/summary.json"} <= set(paths):
            return folder.rpartition("/")[2]
    return None


def check_work(left: tuple[int, int], result: JobResult | None, encoded: int) -> None:
    """An attempt in which nothing goes wrong does what is left, and nothing twice."""
    unanswered, uncached = left
    if result is not None and result.num_clips > unanswered:
        raise WrongError(f"{result.num_clips} clips were asked, and {unanswered} had to be")
    if encoded > uncached:
        raise WrongError(f"{encoded} clips were encoded, and {uncached} had to be")


def check_finished(running: Running, run: str) -> None:
    """Check that a finished run holds every answer, right, and counts them so."""
    answers = {key: value for key, value in running.reference.items() if len(key) == 4}
    found = {
        _name(row): _said(row)
        for path in sorted(_files(running, f"/{run}/answers/"), key=_part_number)
        for row in _rows(running, path)
    }
    if found != answers:
        wrong = [name for name in found if found[name] != answers.get(name)]
        raise WrongError(f"answers are lost {answers.keys() - found.keys()} or wrong {wrong}")
    _check_counts(running, run, len(answers))
    _check_caches(running)


def _check_counts(running: Running, run: str, num_answers: int) -> None:
    """The numbers of the summary are those of the files."""
    folder = next(p for p in running.state.paths() if p.endswith(f"/{run}/summary.json"))
    folder = folder.rpartition("/")[0]
    summary = json.loads(running.state.read(f"{folder}/summary.json") or b"")
    facts = json.loads(running.state.read(f"{folder}/facts.json") or b"")
    failures = read_table(pa.BufferReader(running.state.read(f"{folder}/failures.parquet") or b""))
    cells = [cell["num_questions"] for cell in summary["cells"]]
    found = failures.num_rows, summary["num_failed"], facts["num_answers"], cells
    right = 0, 0, num_answers, [num_answers // len(METHODS)] * len(METHODS)
    if found != right:
        raise WrongError(f"the run counts {found} and holds {right}")


def _check_caches(running: Running) -> None:
    """What is in a cache is what belongs there."""
    gone = {path.rpartition("/")[2] for path in running.state.paths() if path.endswith(".gone")}
    rotten = running.struck("rot")
    for path in _files(running, "/cache/"):
        cache, name = path.split("/")[-2:]
        try:
            rows = _rows(running, path)
        except (OSError, pa.ArrowException):
            if rotten:
                continue
            raise
        for row in rows:
            if f"{name}.{row['clip_key']}.gone" in gone:
                continue
            right = running.reference.get((cache, row["clip_key"]))
            if _tokens(row) != right and not rotten:
                raise WrongError(f"{path} holds other tokens of {row['video_id']} than it should")


def _files(running: Running, where: str) -> list[str]:
    """Parquet files that readers see, without empty ones."""
    return [
        path
        for path in running.state.paths()
        if where in path and kind_of(path) and running.state.read(path)
    ]


def read_sealed_rows(running: Running, path: str) -> list[dict[str, Any]]:
    """The rows of a part whose bytes are as they were written."""
    table = _table(running, path)
    seal = json.loads((table.schema.metadata or {})[SEAL])
    digest = seal.pop("digest")
    table = table.replace_schema_metadata(None)
    if digest != digest_of(table, seal) or seal["file"] != path.rpartition("/")[2]:
        raise ValueError("it is damaged")
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _part_number(path: str) -> tuple[int, str]:
    name = path.rpartition("/")[2]
    return int(name.split("-")[1].split(".")[0]), name


def _table(running: Running, path: str) -> pa.Table:
    return read_table(pa.BufferReader(running.state.read(path) or b""))


def _rows(running: Running, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _table(running, path).to_pylist()
    return rows


def _name(row: dict[str, Any]) -> tuple[str, ...]:
    return (row["benchmark"], row["video_id"], row["cell"], row["question_id"])


def _said(row: dict[str, Any]) -> tuple[object, ...]:
    """An answer without what was measured."""
    return tuple(
        (key, value)
        for key, value in sorted(row.items())
        if not key.endswith("_ms") and key not in _NOT_SAID
    )


def _tokens(row: dict[str, Any]) -> tuple[object, ...]:
    """What the cache holds of a clip, bit for bit."""
    digest = hashlib.sha256(row["tokens"]).hexdigest()
    return (row["video_id"], digest, tuple(row["indices"]), tuple(row["shape"]), row["dtype"])
