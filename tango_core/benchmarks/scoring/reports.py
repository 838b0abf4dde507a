"""The tables that papers and harnesses print: means over groups of questions, and tables of them.

Each function takes one score per question (1 right, 0 wrong, or what a harness makes of it) and the
groups of the same questions. A score of `None` is in no mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Scores = Sequence[float | None]
Groups = Sequence[Mapping[str, str]]
Section = dict[str, "float | dict[str, float]"]


def mean_score(scores: Scores) -> float | None:
    """Mean over all questions, in the order given; `None` if there are none.

    It is MLVU's M-Avg in VLMEvalKit, and the overall accuracy everywhere else.
    """
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known else None


def by_group(scores: Scores, groups: Groups, name: str) -> dict[str, float]:
    """Mean for every value of one group, in the order in which values first occur.

    Raises:
        ValueError: If there is not one mapping of groups per score.
    """
    members: dict[str, list[float]] = {}
    for score, mapping in zip(scores, groups, strict=True):
        if score is not None and name in mapping:
            members.setdefault(mapping[name], []).append(score)
    return {value: sum(known) / len(known) for value, known in members.items()}


def macro_average(scores: Scores, groups: Groups, name: str) -> float | None:
    """Mean over the values of a group, however many questions each has.

    With `name="task"` it is MLVU's M-Avg in lmms-eval.
    """
    means = by_group(scores, groups, name)
    return sum(means.values()) / len(means) if means else None


def cross_table(
    scores: Scores, groups: Groups, rows: str, columns: Sequence[str]
) -> dict[str, Section]:
    """Tabulate means as VLMEvalKit's `_rating.json` does for Video-MME and LongVideoBench.

    Args:
        scores: One per question.
        groups: One mapping per question.
        rows: Group whose values are the rows, e.g. `"duration"`.
        columns: Groups that are broken down inside each row.

    Returns:
        Value of `rows`, or `"overall"` -> `{"overall": mean, column: {value: mean}}`.
    """
    values = dict.fromkeys(mapping[rows] for mapping in groups if rows in mapping)
    table: dict[str, Section] = {}
    for value in (*values, "overall"):
        chosen = [
            at
            for at, mapping in enumerate(groups)
            if value == "overall" or mapping.get(rows) == value
        ]
        part = [scores[at] for at in chosen]
        their_groups = [groups[at] for at in chosen]
        overall = mean_score(part)
        section: Section = {} if overall is None else {"overall": overall}
        section.update({column: by_group(part, their_groups, column) for column in columns})
        table[value] = section
    return table
