"""Read the parts of a run's answers one by one, with their checksums.

Only a few parts are in memory at a time. Nearly every clip is in one part. Clips in several parts
(because a driver died during a rewrite, or answers were added later) are yielded last, and if a row
occurs twice, the later one is used. Clips are counted by digests of their names.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.storage import Storage
from pipeline.storage.seal import DAMAGE, DamagedFileError, SealedTable, read_sealed, sealed_run

ClipName = tuple[str, str]
"""Benchmark and video id."""

Digests = npt.NDArray[np.bytes_]
Codes = npt.NDArray[np.int64]


def question_digest(question_id: str) -> int:
    """64-bit digest of a question of a clip."""
    name = question_id.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def clips_of(table: pa.Table, column: str = "video_id") -> tuple[Codes, list[ClipName]]:
    """The clips of a table, or what another column names within a benchmark.

    Returns:
        (n,) number of every row's clip, and the clips' names by number.
    """
    benchmark_codes, benchmarks = encoded(table["benchmark"])
    video_codes, videos = encoded(table[column])
    both = benchmark_codes * max(1, len(videos)) + video_codes
    found, codes = np.unique(both, return_inverse=True)
    names = [(benchmarks[one // len(videos)], videos[one % len(videos)]) for one in found.tolist()]
    return codes.astype(np.int64), names


def digests_of(names: list[ClipName]) -> Digests:
    """(k,) 16-byte digests of clips' names, which take little memory and do not collide."""
    found = ("\0".join(name).encode(errors="surrogatepass") for name in names)
    return np.array([hashlib.blake2b(one, digest_size=16).digest() for one in found], "S16")


def is_in(digests: Digests, among: Digests) -> npt.NDArray[np.bool_]:
    """(n,) whether each digest is among others, which are sorted."""
    if not len(among):
        return np.zeros(len(digests), dtype=bool)
    at = np.minimum(np.searchsorted(among, digests), len(among) - 1)
    return np.asarray(among[at] == digests)


def encoded(column: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """Encode a string column as codes (-1 for null) and a list of the distinct strings."""
    array = column.dictionary_encode().combine_chunks()
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64), array.dictionary.to_pylist()


logger = logging.getLogger(__name__)

AnswerName = tuple[str, str, str, str]
"""Benchmark, video id, cell and question id."""

ANSWER_KEY = ("benchmark", "video_id", "cell", "question_id")
"""The columns that name an answer."""

# Release 0.1 wrote parts without the random half of the name, and without a seal.
PART = re.compile(r"part-(\d+)(-[0-9a-f]{12})?\.parquet")
_ROWS_PER_TABLE = 100_000


@dataclass(frozen=True)
class Overview:
    """What is in which part, from the names of the clips alone; nothing has been checked.

    Attributes:
        names: The parts, in the order in which they were begun.
        run: Run that they belong to.
        clips: Of every part the digests of its clips.
        split: (k,) digests of the clips that are in several parts, sorted.
    """

    names: tuple[str, ...]
    run: str
    clips: tuple[Digests, ...]
    split: Digests


class AnswerParts:
    """Reads a run's `answers` directory as it was when it was first looked at.

    Args:
        folder: The directory.
        set_aside: Whether a damaged part is renamed to `<name>.damaged`, and one that is gone since
            it was listed is left out, with a warning, as the driver of the run does; otherwise both
            are errors.
    """

    def __init__(self, folder: Path | Storage, *, set_aside: bool = False) -> None:
        self.storage = Storage.at(folder)
        self._set_aside = set_aside

    @cached_property
    def overview(self) -> Overview:
        """What is in which part: two columns and the footer of each."""
        runs: list[str] = []
        found: dict[str, Digests] = {}
        for name in sorted(self.storage.names(".parquet"), key=_order):
            try:
                with self.storage.opened(name) as file, pq.ParquetFile(file) as part:
                    table = part.read(["benchmark", "video_id"], use_threads=False)
                    run, clips = sealed_run(part.schema_arrow), digests_of(clips_of(table)[1])
            except DAMAGE:
                # An unreadable part must not be treated as empty.
                sealed = self._checked(name)
                if sealed is None:
                    continue
                run, clips = sealed.run, digests_of(clips_of(sealed.table)[1])
            runs += [] if run is None else [run]
            found[name] = clips
        run = run_of_folder(self.storage)
        if runs and run not in runs:  # the directory was renamed
            run = Counter(runs).most_common(1)[0][0]
        every, counts = np.unique(
            np.concatenate([np.empty(0, "S16"), *found.values()]), return_counts=True
        )
        return Overview(tuple(found), run, tuple(found.values()), every[counts > 1])

    def read(self, name: str) -> pa.Table | None:
        """One part, checked; `None` if it is damaged or gone, and was set aside.

        Raises:
            DamagedFileError: If it is damaged, gone or of another run, and is not set aside.
        """
        run = self.overview.run
        sealed = self._checked(name)
        if sealed is not None and sealed.run not in (None, run):
            self._report(name, f"{self.storage.path(name)} belongs to the run {sealed.run}")
            return None
        return None if sealed is None else sealed.table.replace_schema_metadata(None)

    def _checked(self, name: str) -> SealedTable | None:
        """One part of whatever run; `None` if it is damaged or gone, and was set aside."""
        found = PART.fullmatch(name)
        try:
            return read_sealed(self.storage, name, must=bool(found and found[2]))
        except FileNotFoundError:
            self._report(name, self._gone(name))
        except DamagedFileError as error:
            self._report(name, str(error))
        return None

    def names(self) -> Iterator[pa.Table]:
        """Benchmark, clip, cell and question of all answers, unchecked and maybe twice."""
        for name in self.overview.names:
            try:
                with self.storage.opened(name) as file, pq.ParquetFile(file) as part:
                    table = part.read(list(ANSWER_KEY), use_threads=False)
            except FileNotFoundError:
                self._report(name, self._gone(name))
                continue
            yield table.replace_schema_metadata(None)

    def whole_clips(
        self, *, only_split: bool = False, rows: int = _ROWS_PER_TABLE
    ) -> Iterator[pa.Table]:
        """All answers, every clip in one table with its rows in order, and no answer twice.

        Args:
            only_split: Only the clips that are in several parts.
            rows: Rows per table, about; a table is not larger than that and a part.

        Raises:
            DamagedFileError: As `read`.
        """
        overview, waiting, ready = self.overview, list[pa.Table](), list[pa.Table]()
        for name, clips in zip(overview.names, overview.clips, strict=True):
            is_mixed = bool(is_in(clips, overview.split).any())
            if only_split and not is_mixed:
                continue
            table = self.read(name)
            if table is not None and is_mixed:
                codes, own = clips_of(table)
                waits = is_in(digests_of(own), overview.split)[codes]
                waiting.append(table.filter(pa.array(waits)))
                table = table.filter(pa.array(~waits))
            if table is not None and not only_split:
                ready.append(table)
            if sum(map(len, ready)) >= rows:
                yield joined(ready)
                ready = []
        if waiting:
            ready.append(last_of_each(joined(waiting)))
        if any(map(len, ready)):
            yield joined(ready)

    def _gone(self, name: str) -> str:
        return f"{self.storage.path(name)} is gone since the run was looked at"

    def _report(self, name: str, problem: str) -> None:
        """Raise that a part is damaged or gone, or log it and rename the part if it is there."""
        if not self._set_aside:
            run = run_of_folder(self.storage)
            raise DamagedFileError(f"{problem}; --resume {run} asks its questions again")
        with suppress(FileNotFoundError):
            self.storage.move(name, f"{name}.damaged")
            problem += f"; renamed to {name}.damaged"
        logger.warning("%s; its questions are asked again", problem)


def joined(tables: list[pa.Table]) -> pa.Table:
    """One table; columns that older parts do not have are null there."""
    return pa.concat_tables(tables, promote_options="permissive")


def last_of_each(table: pa.Table) -> pa.Table:
    """Keep the last of several rows of the same answer; the order is preserved."""
    key = np.zeros(len(table), np.int64)
    for name in ANSWER_KEY:
        codes, values = encoded(table[name])
        if key.max(initial=0) * (len(values) + 1) >= 2**62:
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
        key = key * (len(values) + 1) + codes + 1
    last = len(key) - 1 - np.unique(key[::-1], return_index=True)[1]
    return table if len(last) == len(key) else table.take(pa.array(np.sort(last)))


def _order(name: str) -> tuple[int, str]:
    """Parts by number, whatever its length; other files first."""
    found = PART.fullmatch(name)
    return (int(found[1]) if found else -1, name)


def run_of_folder(storage: Storage) -> str:
    """Name of the run directory around an `answers` directory."""
    return storage.root.rstrip("/").split("/")[-2]
