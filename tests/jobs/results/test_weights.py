"""Cells of different weights under one model's name are not compared."""

import json
from dataclasses import replace

import pytest
from fake_answers import QWEN2_7B, cell, facts_of, fake_answers, unmeasured, write_run

from jobs.report.compare import report_runs
from jobs.results.baselines import (
    full_index,
    same_weights,
    unpaired_notes,
    weights_names,
    with_baselines,
)
from tango_core.models.base import LLMShape

FIRST, SECOND = "a1" * 20, "b2" * 20
SMALL = LLMShape(36, 2048, 11008, 16, 2, 128, 151936)
TANGO = cell("tango", 0.1)


def of(*cells, checkpoint="", llm=QWEN2_7B, run_id="a"):
    return unmeasured(*cells, checkpoint=checkpoint, llm=llm, run_id=run_id)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"checkpoint": FIRST}, {"checkpoint": SECOND}, False),
        ({"checkpoint": FIRST}, {"checkpoint": FIRST}, True),
        ({"checkpoint": FIRST}, {"checkpoint": ""}, True),
        ({"checkpoint": f"{FIRST}+{SECOND}"}, {"checkpoint": FIRST}, True),
        ({"llm": SMALL}, {}, False),
        ({"llm": SMALL}, {"llm": None}, True),
    ],
    ids=["other", "equal", "unknown", "saliency", "size", "unknown size"],
)
def test_weights_differ_where_both_are_known_and_others(one, other, same):
    (first,), (second,) = of(TANGO, **one), of(TANGO, **other)
    assert same_weights(first, second) is same_weights(second, first) is same


def test_an_unknown_checkpoint_is_the_only_one_that_it_can_be():
    known = [*of(TANGO, checkpoint=FIRST), *of(TANGO, checkpoint=SECOND, llm=SMALL)]
    unknown = [*of(TANGO, llm=SMALL), *of(TANGO, llm=None)]
    assert weights_names([*known, *unknown]) == [FIRST[:12], SECOND[:12], SECOND[:12], ""]
    assert weights_names([known[0], *of(TANGO)]) == ["", ""]
    sizes = [*of(TANGO), *of(TANGO, llm=SMALL)]
    assert weights_names(sizes) == ["28 layers of width 3584", "36 layers of width 2048"]


def test_a_baseline_is_of_the_same_checkpoint_the_known_one_first():
    cells = [
        *of(cell("topk", 0.1), checkpoint=FIRST, run_id="a"),
        *of(cell("topk", 0.1), run_id="b"),
        *of(TANGO, checkpoint=FIRST, run_id="c"),
        *of(TANGO, checkpoint=SECOND, run_id="d"),
    ]
    found = with_baselines(cells, ["topk"], lambda _, other: cells[other].run_id)
    assert [entry.versus["topk"] for entry in found[2:]] == ["a", "b"]
    found = with_baselines([cells[0], cells[3]], ["topk"], lambda _, other: other)
    assert found[1].versus == {"topk": None}


@pytest.mark.parametrize(("second", "paired"), [(SECOND, False), (FIRST, True), ("", True)])
def test_full_of_another_checkpoint_is_no_reference(second, paired, tmp_path):
    runs = []
    for entry, checkpoint in ((cell("full"), FIRST), (TANGO, second)):
        facts = facts_of(entry, run_id=entry.method, checkpoint=checkpoint)
        runs.append(write_run(tmp_path / entry.method, fake_answers(facts), facts))
    report_runs(runs, tmp_path / "out")
    pruned = json.loads((tmp_path / "out" / "summary.json").read_text())["cells"][1]
    assert pruned["checkpoint"] == second
    assert (pruned["versus_full"] is not None) is paired
    notes = (
        "Not compared with each other: runs of llava-onevision-7b with different checkpoints, "
        f"{FIRST[:12]} (full), {SECOND[:12]} (tango).",
        "Not compared with all tokens: llava-onevision-7b on shapes with checkpoint "
        f"{SECOND[:12]}; nobody ran full for it.",
    )
    for name in ("table.md", "paper_table.md"):
        text = (tmp_path / "out" / name).read_text()
        assert [note in text for note in notes] == [not paired] * 2


@pytest.mark.parametrize(
    ("full", "own", "note"),
    [
        ({}, {}, ""),
        ({}, {"model": "qwen2.5-vl-7b"}, "qwen2.5-vl-7b on shapes; nobody ran full for it"),
        ({"num_frames": 16}, {"num_frames": 8}, "shapes with 8 frames; nobody ran full for it"),
        # Versions differ in the harness's own score; prompts, frames and our reading are equal.
        ({"protocol": "vlmevalkit"}, {"protocol": "vlmevalkit@2026-05"}, ""),
        ({"protocol": "vlmevalkit"}, {"protocol": "lmms_eval"}, "they were run under vlmevalkit,"),
        ({"protocol": "vlmevalkit"}, {}, ""),
    ],
)
def test_full_of_another_setting_is_no_reference_and_the_note_says_why(full, own, note):
    cells = [
        replace(entry, **changes)
        for entry, changes in zip(
            [*of(cell("full")), *of(TANGO, run_id="b")], (full, own), strict=True
        )
    ]
    assert full_index(1, cells) == (None if note else 0)
    if note:
        (sentence,) = unpaired_notes(cells)
        assert note in sentence
    assert unpaired_notes(cells[1:]) == [], "one run needs no words"


def test_full_under_the_same_protocol_comes_first():
    (other,), (same,), (tango,) = of(cell("full")), of(cell("full")), of(TANGO)
    cells = [other, replace(same, protocol="vlmevalkit"), replace(tango, protocol="vlmevalkit")]
    assert full_index(2, cells) == 1
