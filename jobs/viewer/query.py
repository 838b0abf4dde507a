"""A page of the list: filters and order from the URL, answered by the database.

The same filters are in `site/query.js` for an export, which has no database; a test asks both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.results.quantities import Json
from jobs.viewer.index import OUTCOMES, STATUSES, QuestionIndex
from jobs.viewer.runs import Column
from tango_core.errors import InputError

PAGE = 50
COMPARED = ("lost", "won", "differ")
SORTS = {"order": "question", "video": "video", "id": "id", "rights": "rights", "text": "text"}


@dataclass(frozen=True)
class Filter:
    """What the list shows.

    Attributes:
        text: Words that all occur in a question, its options, its id or its video's name,
            whatever their case.
        reply: Words that all occur in one reply, whatever their case: in that of `column`, or in
            any.
        benchmark: Name; "" for all.
        groups: (name, value) pairs; values of one name are alternatives.
        column: Number of the column that `reply`, `outcome` and `status` are about; `None` for any.
        outcome: A key of `OUTCOMES`, or one of `COMPARED`: `lost` is right with all tokens and
            wrong here, `won` the other way round, `differ` right in one column and wrong in
            another. "" for all.
        status: A key of `STATUSES`; "" for all.
        sort: A key of `SORTS`.
        descending: Whether the order is turned round.
        page: From 0.
    """

    text: str = ""
    reply: str = ""
    benchmark: str = ""
    groups: tuple[tuple[str, str], ...] = ()
    column: int | None = None
    outcome: str = ""
    status: str = ""
    sort: str = "order"
    descending: bool = False
    page: int = 0

    @classmethod
    def of_url(cls, pairs: Sequence[tuple[str, str]], columns: Sequence[Column]) -> Filter:
        """From the parameters of a request.

        Raises:
            ValueError: If one is none of those that there are, in one line.
        """
        last: Mapping[str, str] = dict(pairs)
        labels = [column.label for column in columns]
        label = last.get("column", "")
        groups = [value.partition("=") for name, value in pairs if name == "group"]
        page = last.get("page", "0")
        for name, value, allowed in (
            ("column", label, ["", *labels]),
            ("outcome", last.get("outcome", ""), ["", *OUTCOMES, *COMPARED]),
            ("status", last.get("status", ""), ["", *STATUSES]),
            ("sort", last.get("sort", "order"), list(SORTS)),
        ):
            if value not in allowed:
                raise InputError(
                    f"{name} {value!r}: choose one of {', '.join(filter(None, allowed))}"
                )
        if not (page.isascii() and page.isdigit() and len(page) < 10):
            raise InputError(f"page {page!r}: give a number from 0")
        return cls(
            text=last.get("q", ""),
            reply=last.get("reply", ""),
            benchmark=last.get("of", ""),
            groups=tuple((name, value) for name, _, value in groups),
            column=labels.index(label) if label else None,
            outcome=last.get("outcome", ""),
            status=last.get("status", ""),
            sort=last.get("sort", "order"),
            descending=last.get("desc") == "1",
            page=int(page),
        )


def listed(index: QuestionIndex, wanted: Filter) -> Json:
    """One page of questions, and how many there are in all."""
    where, values = _where(wanted, index.runs.columns)
    found = index.rows(
        f"SELECT count(*) AS n, count(DISTINCT clip) AS c FROM questions {where}", values
    )
    turned = "DESC" if wanted.descending else "ASC"
    rows = index.rows(
        "SELECT question, clip, benchmark, video, id, text, kind, outcomes FROM questions "
        f"{where} ORDER BY {SORTS[wanted.sort]} {turned}, question {turned} LIMIT ? OFFSET ?",
        [*values, PAGE, wanted.page * PAGE],
    )
    return {"total": found[0]["n"], "clips": found[0]["c"], "page": wanted.page, "rows": rows}


def neighbours(index: QuestionIndex, wanted: Filter, clip: int) -> Json:
    """The clips before and behind one in the list, in its order; `None` at its ends."""
    where, values = _where(wanted, index.runs.columns)
    order, turned = SORTS[wanted.sort], "DESC" if wanted.descending else "ASC"
    rows = index.rows(
        f"WITH firsts AS (SELECT clip, row_number() OVER (ORDER BY {order} {turned}, question "
        f"{turned}) AS place FROM questions {where}), "
        "clips_in_order AS (SELECT clip, min(place) AS place FROM firsts GROUP BY clip), "
        "beside AS (SELECT clip, lag(clip) OVER (ORDER BY place) AS before, "
        "lead(clip) OVER (ORDER BY place) AS behind, row_number() OVER (ORDER BY place) AS number "
        "FROM clips_in_order) SELECT before, behind, number FROM beside WHERE clip = ?",
        [*values, clip],
    )
    return rows[0] if rows else {"before": None, "behind": None, "number": None}


def _where(wanted: Filter, columns: Sequence[Column]) -> tuple[str, list[Any]]:
    """The condition in SQL, whose values are passed beside it."""
    clauses: list[str] = []
    values: list[Any] = []
    for word in wanted.text.split():
        clauses.append("contains(lower(concat_ws(chr(10), text, options, id, video)), lower(?))")
        values.append(word)
    if wanted.benchmark:
        clauses.append("benchmark = ?")
        values.append(wanted.benchmark)
    for name in dict.fromkeys(name for name, _ in wanted.groups):
        allowed = [value for other, value in wanted.groups if other == name]
        marks = ", ".join("?" for _ in allowed)
        clauses.append(f"kind IN (SELECT kind FROM kinds WHERE name = ? AND value IN ({marks}))")
        values += [name, *allowed]
    chosen = wanted.column
    if words := wanted.reply.split():
        where = "col >= 0" if chosen is None else f"col = {chosen}"
        where += " AND contains(lower(text), lower(?))" * len(words)
        clauses.append(f"question IN (SELECT question FROM answers WHERE {where})")
        values += words
    if wanted.status:
        clauses.append(_at(chosen, STATUSES[wanted.status]))
    if wanted.outcome in OUTCOMES:
        clauses.append(_at(chosen, OUTCOMES[wanted.outcome]))
    elif wanted.outcome == "differ":
        one, two = (
            f"({_at(chosen, here)} AND {_at(None, there)})"
            for here, there in (_RIGHT_AND_WRONG, _RIGHT_AND_WRONG[::-1])
        )
        clauses.append(f"({one} OR {two})")
    elif wanted.outcome:
        some = range(len(columns)) if chosen is None else [chosen]
        compared = [_versus_full(wanted.outcome, columns, column) for column in some]
        clauses.append(f"({' OR '.join(filter(None, compared)) or 'FALSE'})")
    return (f"WHERE {' AND '.join(clauses)}" if clauses else ""), values


_RIGHT_AND_WRONG = OUTCOMES["right"], OUTCOMES["wrong"]


def _versus_full(outcome: str, columns: Sequence[Column], column: int) -> str:
    """Whether a column lost or won against all tokens; "" if these were not asked."""
    base = columns[column].baseline
    if base is None:
        return ""
    there, here = _RIGHT_AND_WRONG if outcome == "lost" else _RIGHT_AND_WRONG[::-1]
    return f"({_at(base, there)} AND {_at(column, here)})"


def _at(column: int | None, letters: str) -> str:
    """Whether the outcome of a column, or of any, is one of some letters of `outcomes`."""
    if column is None:
        return f"regexp_matches(outcomes, '[{letters}]')"
    listed = ", ".join(f"'{letter}'" for letter in letters)
    return f"substr(outcomes, {column + 1}, 1) IN ({listed})"
