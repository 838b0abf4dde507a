"""Measured quantities of a cell or a run, and dataclasses as the JSON of `summary.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from tango_core.errors import InputError
from tango_core.metrics import Comparison as ScoreDifference
from tango_core.metrics import Estimate

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from jobs.results.cell_summary import CellSummary


# What `json` reads and writes.
Json = dict[str, Any]

Instance = TypeVar("Instance", bound="DataclassInstance")


def to_plain(value: Any) -> Any:
    """A value as `json` writes it; a class whose keys are not those of its fields has `to_json`."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, Estimate):
        return estimate_to_json(value)
    if isinstance(value, ScoreDifference):
        figures = asdict(value)
        ends = [figures.pop("low"), figures.pop("high")]
        return {"difference": figures.pop("difference"), "difference_ci95": ends, **figures}
    if hasattr(value, "to_json"):
        return value.to_json()
    return fields_to_plain(value) if is_dataclass(value) else value


def estimate_to_json(estimate: Estimate, key: str = "accuracy") -> Json:
    """An estimate, its value under a key of the caller's choice."""
    ends = [estimate.low, estimate.high]
    return {key: estimate.value, "ci95": ends, "n": estimate.num_questions}


def fields_to_plain(instance: object) -> Json:
    """The fields of a dataclass in their order, each under its name or its key in `JSON_KEYS`."""
    keys = getattr(instance, "JSON_KEYS", {})
    return {keys.get(name, name): to_plain(value) for name, value in vars(instance).items()}


def with_counts(data: Json) -> Json:
    """Plain fields with the keys of `counts` in its place, as summaries have them."""
    flat: Json = {}
    for key, value in data.items():
        flat |= value if key == "counts" else {key: value}
    return flat


def from_plain(cls: type[Instance], data: Mapping[str, Any], **read: Any) -> Instance:
    """Build a dataclass from the keys of a file, and those that it holds.

    Keys that the class does not know are ignored; one that is absent or null means the default.

    Args:
        cls: The class.
        data: What `fields_to_plain` and JSON made of an instance.
        **read: Fields that are read already.

    Raises:
        InputError: If a key without a default is missing, or a value is of another kind.
    """
    names = {key: name for name, key in getattr(cls, "JSON_KEYS", {}).items()}
    known = {names.get(key, key): value for key, value in data.items() if value is not None}
    try:
        found: Instance = _adapter(cls).validate_python({**known, **read})
        return found
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{where}: {first['msg']}") from None


@cache
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _read_estimate(entry: Any) -> Estimate:
    """An estimate from its JSON, which does not hold how many clips are behind it."""
    if isinstance(entry, Estimate):
        return entry
    value = entry["value"] if "value" in entry else entry["accuracy"]
    return Estimate(value, *entry["ci95"], *[entry["n"]] * 3)


def _read_difference(entry: Any) -> ScoreDifference:
    """A difference from its JSON, or from that of 0.1, which holds no clips."""
    if isinstance(entry, ScoreDifference):
        return entry
    low, high = entry["difference_ci95"]
    known = {one.name: entry.get(one.name, 0) for one in fields(ScoreDifference)}
    known |= {"low": low, "high": high, "too_few_clips": entry.get("too_few_clips", False)}
    detectable = entry.get("detectable_difference")
    return ScoreDifference(**{**known, "detectable_difference": detectable})


Scores = Mapping[str, Annotated[Estimate, BeforeValidator(_read_estimate)]]
Differences = Mapping[str, Annotated[ScoreDifference, BeforeValidator(_read_difference)]]
# Group of the questions -> its value -> a metric there.
ByGroup = Mapping[str, Scores]
# Outer group -> its value -> inner group -> its value -> a metric there.
CrossTable = Mapping[str, Mapping[str, ByGroup]]
# Group of the questions -> its value -> a paired difference there.
DifferencesByGroup = Mapping[str, Differences]


@dataclass(frozen=True)
class LatencyStats:
    """Distribution of one stage's latency in milliseconds.

    Attributes:
        p50: Median.
        p90: 90th percentile.
        p95: 95th percentile.
        mean: Mean.
        n: Number of measurements, at least 1.
    """

    p50: float
    p90: float
    p95: float
    mean: float
    n: int


# Stage -> its latency; stages without a measurement are not in it.
Latencies = Mapping[str, LatencyStats]


class Counts:
    """Numbers that add up over several runs: a dataclass whose fields are whole numbers."""

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sum over several runs."""
        values = [vars(part).values() for part in parts]
        return cls(*map(sum, zip(*values, strict=True)))


@dataclass(frozen=True)
class CacheCounts(Counts):
    """Clips (per cell) whose tokens were in the cache, and clips that had to be computed."""

    hits: int = 0
    misses: int = 0

    @property
    def lookups(self) -> int:
        """All clips that were looked up."""
        return self.hits + self.misses


@dataclass(frozen=True)
class Throughput:
    """Rates of a run; `None` where a rate is not known.

    Attributes:
        wall_s: Wall-clock time of the whole run in seconds.
        clips_per_s: Clips per second of wall-clock time.
        questions_per_s: Questions per second of wall-clock time.
        text_tokens_per_s: Tokens that the language model generated after the first one, per second
            of text decoding. JSON key `decode_tokens_per_s`.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"text_tokens_per_s": "decode_tokens_per_s"}

    wall_s: float | None = None
    clips_per_s: float | None = None
    questions_per_s: float | None = None
    text_tokens_per_s: Annotated[float | None, Field(validation_alias="decode_tokens_per_s")] = None


@dataclass(frozen=True)
class QuestionCounts(Counts):
    """Questions by outcome; answered, unparsed and failed add up to all.

    A run with several cells counts a question once per cell, as it is answered once per cell.

    Attributes:
        num_questions: All questions.
        num_scored: Questions whose right answer is known.
        num_answered: Questions whose reply names an option or is free-form.
        num_unparsed: Questions whose reply names no option.
        num_failed: Questions whose clip or answer failed.
        num_clips: Clips that the questions are about.
        num_failed_clips: Clips with a failed question.
        num_damaged: Questions answered about a damaged clip (`decode.damaged: keep`); these are
            among the answered and the unparsed.
        num_different: Different questions, under however many cells each was asked. JSON key
            `num_different_questions`; 0 in files of earlier versions.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"num_different": "num_different_questions"}

    num_questions: int = 0
    num_scored: int = 0
    num_answered: int = 0
    num_unparsed: int = 0
    num_failed: int = 0
    num_clips: int = 0
    num_failed_clips: int = 0
    num_damaged: int = 0
    num_different: int = 0

    @property
    def unread_share(self) -> float:
        """Share of the replies that name no option, in [0, 1]."""
        replies = self.num_answered + self.num_unparsed
        return self.num_unparsed / replies if replies else 0.0


@dataclass(frozen=True)
class Readings:
    """How the replies of one cell were read.

    Attributes:
        rules: Rule of `multiple_choice.RULES`, or "benchmark" -> replies that it read; empty in
            files of earlier versions.
        unread_examples: The first replies that name no option, shortened.
    """

    rules: Mapping[str, int] = field(default_factory=dict)
    unread_examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """One cell against another, on what both measured.

    Attributes:
        paired: Difference in the headline of the benchmark, which is accuracy for most; `None`
            without a common question with known answer.
        ttft_speedup: The other's median time in the language model until the first token, over this
            cell's; known in profile mode alone.
        first_token_speedup: The same ratio for vision, compression and language model together.
            JSON key `speedup_to_first_token`.
        also: Name of a further metric -> the difference in it.
        by_group: Name of each metric -> the difference in it by group of the questions. JSON key
            `difference_by`; empty in files of earlier versions.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {
        "first_token_speedup": "speedup_to_first_token",
        "by_group": "difference_by",
    }

    paired: Annotated[ScoreDifference, BeforeValidator(_read_difference)] | None = None
    ttft_speedup: float | None = None
    first_token_speedup: float | None = None
    also: Differences = field(default_factory=dict)
    by_group: Mapping[str, DifferencesByGroup] = field(default_factory=dict)

    def to_json(self) -> Json:
        """Plain data for `summary.json`; what is not known has no key."""
        plain = fields_to_plain(self)
        paired: Json = plain.pop("paired") or {}
        return {**paired, **{key: value for key, value in plain.items() if value}}

    @classmethod
    def from_json(cls, data: Any) -> Comparison:
        """Read what `to_json` wrote."""
        if isinstance(data, Comparison):
            return data
        return from_plain(cls, {**data, "paired": data if "difference" in data else None})


# Share of unread replies from which tables have a column for it, and from which methods are not
# ranked.
SHOWN_FROM = 0.01
NOT_RANKED_FROM = 0.2


def are_ranked(cells: Iterable[CellSummary]) -> bool:
    """Whether enough replies could be read for methods to be ranked."""
    return all(cell.counts.unread_share <= NOT_RANKED_FROM for cell in cells)


def unread_notes(cells: Sequence[CellSummary]) -> list[str]:
    """A warning if many replies of a cell name no option, with two of them."""
    found = [cell for cell in cells if cell.counts.unread_share > NOT_RANKED_FROM]
    if not found:
        return []
    worst = max(found, key=lambda cell: cell.counts.unread_share)
    examples = " and ".join(f'"{text}"' for text in worst.readings.unread_examples)
    return [
        f"In {len(found)} of {len(cells)} cells more than {NOT_RANKED_FROM:.0%} of the replies "
        f"name no option and count as wrong ({worst.counts.unread_share:.0%} in {worst.name}"
        f"{f', such as {examples}' if examples else ''}). Methods are not ranked; check that the "
        "model follows the benchmark's prompt."
    ]


MAX_REASONS = 50


@dataclass(frozen=True)
class FailureReason:
    """One reason.

    Attributes:
        status: Status of the answers.
        error: The reason in one line; "" if there is none.
        clips: Clips that it concerned.
        questions: Answers that it concerned.
        examples: The first clips.
    """

    status: str
    error: str
    clips: int
    questions: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class FailureList:
    """The reasons that a summary lists.

    Attributes:
        reasons: Those with the most clips, at most `MAX_REASONS`.
        num_more: How many others there are.
    """

    reasons: tuple[FailureReason, ...] = ()
    num_more: int = 0
