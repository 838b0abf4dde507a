"""The list of questions: index, filters, search and orders."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from viewed_runs import CELLS, HOSTILE, KINDS, OLD, write_viewed_run

from jobs.viewer.command import opened
from jobs.viewer.frames import NotShownError
from jobs.viewer.pages import NO_WORDS, PAGE
from pipeline.progress.answers import read_answers

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_viewed_run(tmp_path_factory.mktemp("run"), clips=60, questions=2)


@pytest.fixture(scope="module")
def pages(run):
    with opened([run]) as pages:
        yield pages


@pytest.fixture(scope="module")
def listed(pages, asked):
    return asked(pages)


@pytest.fixture(scope="module")
def find(listed):
    """`find(column=..., group=[...])`: ids of the first page, and how many questions there are."""

    def ask(group=(), **given):
        page = listed([*given.items(), *(("group", one) for one in group)])
        return [row["id"] for row in page["rows"]], page["total"]

    return ask


def answers_of(run):
    """Question -> cell -> whether it is right, read without the viewer."""
    found = {}
    for row in read_answers(run / "answers").to_pylist():
        found.setdefault(row["question_id"], {})[row["cell"]] = row
    return found


TANGO = "tango r=0.25"
RIGHT = {cell: (lambda by, cell=cell: bool(by[cell]["correct"])) for cell in CELLS}
FULL, PRUNED = RIGHT["full"], RIGHT[TANGO]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, lambda by: True),
        *(({"column": cell, "outcome": "right"}, RIGHT[cell]) for cell in CELLS),
        ({"column": OLD, "outcome": "wrong"}, lambda by: not RIGHT[OLD](by)),
        ({"column": TANGO, "outcome": "lost"}, lambda by: FULL(by) and not PRUNED(by)),
        ({"column": TANGO, "outcome": "won"}, lambda by: PRUNED(by) and not FULL(by)),
        ({"column": "full", "outcome": "lost"}, lambda by: False),
        ({"outcome": "lost"}, lambda by: FULL(by) and not all(is_(by) for is_ in RIGHT.values())),
        ({"outcome": "differ"}, lambda by: len({is_(by) for is_ in RIGHT.values()}) == 2),
        ({"status": "decode_failed"}, lambda by: by["full"]["status"] == "decode_failed"),
        ({"column": OLD, "status": "unparsed"}, lambda by: by[OLD]["status"] == "unparsed"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_filters_by_outcome_and_status(run, find, given, expected):
    wanted = [question for question, by in answers_of(run).items() if expected(by)]
    assert find(**given) == (wanted[:PAGE], len(wanted))
    assert find(**given, page="1")[0] == wanted[PAGE : 2 * PAGE]


@pytest.mark.parametrize(
    ("given", "total"),
    [
        ({"group": ["type=color"]}, 40),
        ({"group": ["type=color", "type=shape"]}, 80),
        ({"group": ["type=color", "half=a"]}, 20),
        ({"group": [f"type={KINDS[2]}"]}, 40),
        ({"q": "QUESTION 7-1? 0007"}, 1),
        ({"q": "q11-0"}, 1),
        ({"q": "0011 video"}, 2),
        ({"q": "blue"}, 120),
        ({"q": HOSTILE}, 2),
        ({"q": "100%_'; DROP TABLE questions"}, 0),
        ({"reply": "tango uniform"}, 0),  # both words are in replies to most questions, not in one
        ({"reply": "'; DROP TABLE answers"}, 0),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_filters_by_group_and_search(find, given, total):
    assert find(**given)[1] == total


def test_search_in_replies_of_one_or_all_cells(run, find):
    answers = answers_of(run)
    for column in ("", "tango r=0.25"):
        wanted = {
            question
            for question, cells in answers.items()
            for cell, row in cells.items()
            if column in ("", cell) and "r=0.25 B" in (row["text"] or "")
        }
        found, total = find(reply="b R=0.25", **({"column": column} if column else {}))
        assert total == len(wanted) > 0
        assert set(found) <= wanted


def test_sort_orders(find, listed):
    ids, _ = find(sort="id")
    assert ids[:6] == ["q0-0", "q0-1", "q1-0", "q1-1", "q10-0", "q10-1"]
    assert find(sort="order", desc="1")[0][0] == "q59-1"
    rights = [row["outcomes"].count("R") for row in listed([("sort", "rights")])["rows"]]
    assert rights == sorted(rights)


def test_contents_list_columns_groups_and_counts(pages, find):
    found = pages.contents()
    assert (found["questions"], found["clips"]) == (120, 60)
    assert [column["label"] for column in found["columns"]] == list(CELLS)
    assert [column["baseline"] for column in found["columns"]] == [None, 0, 0, 0]
    assert found["groups"] == {"half": ["a", "b"], "type": sorted(KINDS)}
    assert found["missing"] == []
    first = found["columns"][0]
    assert (first["asked"], first["right"]) == (120, find(column="full", outcome="right")[1])


def test_two_runs_share_questions(tmp_path):
    one = write_viewed_run(tmp_path, clips=4, name="one")
    two = write_viewed_run(tmp_path / "other", clips=6, name="two", seed=5, first_clip=2)
    with opened([one, two]) as pages:
        index = pages.index
        labels = [column.label for column in index.runs.columns]
        assert labels[0] == "full (one)"
        assert labels[4] == "full (two)"
        assert [column.short for column in index.runs.columns][4] == "full [2]"
        assert [column.baseline for column in index.runs.columns] == [None, 0, 0, 0, None, 4, 4, 4]
        rows = index.questions.set_index("id")["outcomes"]
        assert len(rows) == 16
        assert rows["q0-0"].endswith("....")
        assert rows["q7-1"].startswith("....")
        assert "." not in rows["q3-0"]


def test_shards_of_a_job_share_columns(tmp_path):
    recipe = "benchmark: {{name: shapes}}\nshard: {}/2\n"
    shards = [
        write_viewed_run(
            tmp_path, clips=3, name=f"s{at}", first_clip=3 * at, recipe=recipe.format(at)
        )
        for at in range(2)
    ]
    with opened(shards) as pages:
        assert [column.label for column in pages.index.runs.columns] == list(CELLS)
        assert len(pages.index.questions) == 12
    again = write_viewed_run(tmp_path, clips=3, name="s2", recipe=recipe.format(1))
    with (
        pytest.raises(ValueError, match="questions that another shard"),
        opened([shards[0], again]),
    ):
        pass


def test_a_run_without_recorded_questions_is_shown_without_their_text(tmp_path):
    run = write_viewed_run(tmp_path, clips=3, words=False)
    with opened([run]) as pages:
        found = pages.contents()
        page = pages.clip(0)
        with pytest.raises(NotShownError, match=re.escape(NO_WORDS)):
            pages.tokens(0, 1)
    assert found["missing"] == [NO_WORDS]
    assert page["questions"][0]["text"] == ""
    assert page["questions"][0]["answers"]["0"]["text"].startswith("reply full")


def test_the_list_opens_without_torch(run):
    code = (
        "import sys; from pathlib import Path; from jobs.viewer.command import opened\n"
        f"with opened([Path({str(run)!r})]) as pages: pages.piece('start', 0)\n"
        "print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout == "False\n"
