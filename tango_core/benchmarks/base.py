"""Base class of benchmarks: clips with questions, protocols, tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar

from tango_core import code_identity, errors, extensions, types
from tango_core.benchmarks.protocols.protocol import (
    PLAIN,
    Protocol,
    listed_name,
    under_each_harness,
)
from tango_core.benchmarks.protocols.subtitles import SHOWN
from tango_core.benchmarks.releases import Release
from tango_core.metrics import ACCURACY, Metric

__all__ = ["Benchmark", "CrossTable", "Defect", "PaperColumn", "Protocol"]


@dataclass(frozen=True)
class Defect:
    """An error in the annotations, usually in one row.

    Attributes:
        where: File and row, counted from 1, or only the file.
        problem: One-line description.
        fatal: Whether it stops a job; otherwise it is only reported.
    """

    where: str
    problem: str
    fatal: bool = True


@dataclass(frozen=True)
class PaperColumn:
    """The columns of a benchmark in the tables of papers on token pruning.

    Attributes:
        order: Sort key among the benchmarks.
        group: Group of questions whose values have a column of their own; "" for none.
        values: These values, in the order of their columns; the overall accuracy follows them.
    """

    order: int
    group: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class CrossTable:
    """Two groups by which a benchmark's authors break down accuracy jointly.

    Attributes:
        rows: Group whose values are the rows, e.g. `"duration"`.
        columns: Groups whose values are broken down within each row.
    """

    rows: str
    columns: tuple[str, ...]


class Benchmark(ABC):
    """A named set of clips with questions.

    A subclass must implement `items`. Class attributes hold all other facts about the benchmark;
    a subclass that reads files when it is built overrides `_open`.

    Args:
        root: The recipe's `benchmark.root`.
        split: One of `splits`.
        seed: Seed of a generated benchmark; other benchmarks ignore it.
        protocol: One of `protocols`, or a version of one: `vlmevalkit@2026-05`.

    Attributes:
        name: Name in recipes and results; `build_benchmark` sets it to the name it was given.
        title: Display name; "" for `name`.
        splits: Number of questions in the complete public release by split; `None` if unknown.
        protocols: Rules for prompts and replies, by name in the recipe (`benchmark.protocol`).
        metrics: Metrics of the benchmark, the headline metric first.
        unlisted_groups: Groups of questions that metrics use but no breakdown lists.
        several_valued: Groups whose value may name several, with ", " between: a question counts in
            each of them.
        paper_column: Columns in the papers' tables; `None` if papers do not print it.
        cross_table: Two groups that are broken down jointly; `None` for none.
        macro_group: Group over whose values a macro average is taken; `None` for none.
        macro_title: The authors' name of that average; "" for none.
        releases: Sources for `tango data get`, the default first.
        generated_in: Directory of generated videos; `None` if the videos are not generated.
        root: Absolute path of `benchmark.root`; `None` if it was not given.
        subtitles: Whether its clips come with the subtitles of their videos (`show_subtitles`).

    Raises:
        ValueError: If the split or the protocol is unknown.
    """

    name: str = ""
    title: ClassVar[str] = ""
    splits: ClassVar[Mapping[str, int | None]] = {"test": None}
    protocols: ClassVar[Mapping[str, Protocol]] = under_each_harness(PLAIN)
    metrics: ClassVar[Sequence[Metric]] = (ACCURACY,)
    unlisted_groups: ClassVar[Sequence[str]] = ()
    several_valued: ClassVar[Sequence[str]] = ()
    paper_column: ClassVar[PaperColumn | None] = None
    cross_table: ClassVar[CrossTable | None] = None
    macro_group: ClassVar[str | None] = None
    macro_title: ClassVar[str] = ""
    releases: ClassVar[Sequence[Release]] = ()
    generated_in: Path | None = None
    root: Path | None
    subtitles: bool = False

    def __init__(
        self,
        root: str | None = None,
        split: str = "test",
        seed: int = 0,
        protocol: str = "vlmevalkit",
    ) -> None:
        listed = listed_name(self.protocols, protocol)
        check_name("benchmark.split", split, self.splits)
        check_name("benchmark.protocol", listed, self.protocols)
        self.root = Path(root).absolute() if root else None
        self.split, self.seed = split, seed
        found = self.protocols[listed]
        # Results record the name that the recipe gave.
        self.protocol = replace(found, name=protocol) if found.name == listed else found
        self._open(root)

    def _open(self, root: str | None) -> None:  # noqa: B027 - most have nothing to open
        """Check `root` and read what the benchmark needs; the last step of building it.

        Args:
            root: The recipe's `benchmark.root`, unchanged.
        """

    @classmethod
    def check_subtitles(cls, subtitles: bool, protocol: str, wording: str | None = None) -> None:
        """Raise if subtitles are requested and the protocol shows none; opens no file.

        Args:
            subtitles: Whether they are requested.
            protocol: Name of one of `protocols`, or of a version.
            wording: `ModelFamily.wording` of the model; `None` if it is not known.

        Raises:
            ValueError: In one line: the setting, the value, what is allowed.
        """
        found = cls.protocols.get(listed_name(cls.protocols, protocol))
        rule = found.subtitles if found else None
        shown = rule is not None and (not rule.families or wording in (None, *rule.families))
        if shown or not subtitles:
            return
        if rule is not None:
            shown_to = f"prompts with subtitles for models of {', '.join(rule.families)} alone"
        else:
            having = ", ".join(sorted(name for name, own in cls.protocols.items() if own.subtitles))
            shown_to = "no prompt with subtitles"
            shown_to += f"; protocols that do are: {having}" if having else ""
        raise errors.InputError(
            f"benchmark.subtitles true: {cls.title or cls.name} under protocol {protocol} has "
            f"{shown_to}; set benchmark.subtitles to false"
        )

    def show_subtitles(self) -> None:
        """Give every clip the subtitles of its video, and append that to the protocol's name.

        Raises:
            ValueError: If the protocol has no prompt with subtitles.
        """
        self.check_subtitles(True, self.protocol.name)
        self.subtitles = True
        self.protocol = replace(self.protocol, name=self.protocol.name + SHOWN)

    def ask_family(self, wording: str) -> None:
        """Use the harness's prompts for the models of a family.

        Args:
            wording: `ModelFamily.wording`.

        Raises:
            ValueError: If subtitles are requested and the harness shows this family none.
        """
        self.check_subtitles(self.subtitles, self.protocol.name.removesuffix(SHOWN), wording)
        self.protocol = self.protocol.for_family(wording)

    @abstractmethod
    def items(self, limit: int | None = None) -> Iterator[types.VideoItem]:
        """Yield the clips in a fixed order, each with all its questions.

        Args:
            limit: Only the first `limit` clips; `None` for all.

        Raises:
            FileNotFoundError: If the annotations are not where the benchmark's layout says.
        """

    def expected_items(self, limit: int | None = None) -> Iterator[types.VideoItem]:
        """Yield the same clips without writing anything, as for `--dry-run`.

        A benchmark that generates its videos overrides this; their files need not exist then.

        Args:
            limit: As `items`.

        Raises:
            FileNotFoundError: As `items`.
        """
        return self.items(limit)


def check_limit(limit: int | None) -> None:
    """Raise for a negative number of clips.

    Raises:
        ValueError: In one line.
    """
    if limit is not None and limit < 0:
        raise errors.InputError(f"limit must be 0 or more, got {limit}")


def check_name(setting: str, value: object, allowed: Iterable[str]) -> None:
    """Raise for a name that is not allowed; the message suggests the nearest one.

    Args:
        setting: The recipe key, e.g. `"benchmark.name"`.
        value: The value in the recipe.
        allowed: All valid names.

    Raises:
        ValueError: In one line: the setting, the value, the nearest name if any, all names.
    """
    names = sorted(allowed)
    if value in names:
        return
    near = get_close_matches(str(value).lower(), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise errors.InputError(f"unknown {setting} {value!r}; {hint}choose one of: {', '.join(names)}")


@contextmanager
def in_one_line(name: str, cls: type[Benchmark]) -> Iterator[None]:
    """Turn any exception of an external benchmark's code into a one-line error.

    Args:
        name: The recipe's `benchmark.name`.
        cls: The class of that name; errors of a class of this package pass unchanged.

    Raises:
        ValueError: With the benchmark, the exception, and the last line of its own code that ran.
    """
    try:
        yield
    except Exception as error:
        if not code_identity.is_outside(cls) or isinstance(error, MemoryError):
            raise
        try:
            files = {str(path.absolute()) for path in code_identity.source_files(cls).values()}
        except ValueError:  # defined in no file
            files = set()
        where, is_last = extensions.last_line_in(error, files)
        # Errors that a benchmark may raise by its contract are one line already, unless its own
        # line raised them.
        if isinstance(error, (ValueError, OSError, ModuleNotFoundError)) and not is_last:
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        raise errors.InputError(
            f"benchmark.name {name!r} failed{where and f' ({where})'}: {what}"
        ) from error
