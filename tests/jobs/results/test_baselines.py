"""Cells against others of their own retention and setup: by name, the one before, across runs."""

import json
from dataclasses import replace

import pytest
from fake_answers import QWEN2_7B, cell, facts_of, fake_answers, unmeasured, write_run

from jobs.report.compare import report_runs
from jobs.results.comparisons import (
    PREVIOUS,
    full_index,
    setup_names,
    setup_of,
    setups_of,
    unpaired_notes,
    with_baselines,
)
from tango_core.models.base import LLMShape

FIRST, SECOND = "a1" * 20, "b2" * 20
SMALL = LLMShape(36, 2048, 11008, 16, 2, 128, 151936)
TANGO = cell("tango", 0.1)
LISTED = (
    cell("full"),
    cell("topk", 0.1),
    cell("topk", 0.2),
    cell("tango", 0.1),
    cell("tango", 0.2),
    cell("random", 0.2),
)


def of(*cells, **own):
    return unmeasured(*cells, **{"run_id": "a", "llm": QWEN2_7B, **own})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("topk", [None, None, None, "topk r=0.1", "topk r=0.2", "topk r=0.2"]),
        (PREVIOUS, [None, None, None, "topk r=0.1", "topk r=0.2", "tango r=0.2"]),
        ("topk r=0.1", ["topk r=0.1", None, *["topk r=0.1"] * 4]),
    ],
)
def test_a_baseline_is_at_the_cells_own_retention_unless_its_whole_name_is_given(name, expected):
    cells = of(*LISTED)
    found = with_baselines(cells, [name], lambda _, other: cells[other].name)
    assert [entry.versus[name] for entry in found] == expected


def test_a_cells_own_run_comes_before_others_and_other_setups_never():
    cells = [
        *of(cell("topk", 0.1), TANGO),
        *of(cell("topk", 0.1), TANGO, run_id="b"),
        *of(cell("random", 0.1), run_id="c", num_frames=16),
        *of(TANGO, run_id="d", checkpoint=FIRST),
    ]
    cells[:4] = [replace(one, num_frames=8, checkpoint=SECOND) for one in cells[:4]]
    found = with_baselines(cells, ["topk"], lambda _, other: cells[other].run_id)
    assert [found[at].versus["topk"] for at in (1, 3, 4, 5)] == ["a", "b", None, None]


def test_a_baseline_that_nobody_ran_is_named_with_those_there_are():
    with pytest.raises(ValueError, match=r"'topkk' is none of the methods; .*topk, tango"):
        with_baselines(of(*LISTED), ["topkk"], lambda *_: None)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"checkpoint": FIRST}, {"checkpoint": SECOND}, False),
        ({"checkpoint": FIRST}, {"checkpoint": ""}, True),
        ({"checkpoint": f"{FIRST}+{SECOND}"}, {"checkpoint": FIRST}, True),
        ({"llm": SMALL}, {}, False),
        ({"llm": SMALL}, {"llm": None}, True),
    ],
    ids=["other", "unknown", "saliency", "size", "unknown size"],
)
def test_setups_differ_where_both_are_known_and_others(one, other, same):
    first, second = (setup_of(*of(TANGO, **own)) for own in (one, other))
    assert first.fits(second) is second.fits(first) is same


def test_an_unknown_checkpoint_is_the_only_one_that_it_can_be():
    known = [*of(TANGO, checkpoint=FIRST), *of(TANGO, checkpoint=SECOND, llm=SMALL)]
    unknown = [*of(TANGO, llm=SMALL), *of(TANGO, llm=None)]
    found = [setup.checkpoint for setup in setups_of([*known, *unknown])]
    assert found == [FIRST[:12], SECOND[:12], SECOND[:12], None]
    assert set(setup_names(setups_of([known[0], *of(TANGO)]))) == {"llava-onevision-7b"}


@pytest.mark.parametrize(
    ("full", "own", "note"),
    [
        ({}, {}, ""),
        ({}, {"model": "qwen2.5-vl-7b"}, "qwen2.5-vl-7b on shapes; nobody ran full for it"),
        ({"num_frames": 16}, {"num_frames": 8}, "8 frames on shapes; nobody ran full for it"),
        ({"protocol": "vlmevalkit"}, {"protocol": "vlmevalkit@2026-05"}, ""),
        ({"protocol": "vlmevalkit"}, {"protocol": "lmms_eval"}, "lmms_eval on shapes; nobody"),
        ({"protocol": "vlmevalkit"}, {}, ""),
    ],
)
def test_full_of_another_setting_is_no_reference_and_the_note_says_why(full, own, note):
    (first,), (second,) = of(cell("full")), of(TANGO, run_id="b")
    cells = [replace(first, **full), replace(second, **own)]
    assert full_index(1, cells) == (None if note else 0)
    assert [note in sentence for sentence in unpaired_notes(cells)] == ([True] if note else [])
    assert unpaired_notes(cells[1:]) == [], "a single run has no note"


def test_full_under_the_same_protocol_comes_first():
    (other,), (same,), (tango,) = of(cell("full")), of(cell("full")), of(TANGO)
    cells = [other, replace(same, protocol="vlmevalkit"), replace(tango, protocol="vlmevalkit")]
    assert full_index(2, cells) == 1


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
    note = f"llava-onevision-7b, {SECOND[:12]} on shapes; nobody ran full for it."
    for name in ("table.md", "paper_table.md"):
        assert (note in (tmp_path / "out" / name).read_text()) is not paired


def test_tables_hold_the_differences_between_the_two_accuracies(tmp_path):
    facts = facts_of(*LISTED)
    run = write_run(tmp_path / "run", fake_answers(facts), facts)
    report_runs([run], tmp_path / "out", baselines=["topk", PREVIOUS])
    cells = json.loads((tmp_path / "out" / "summary.json").read_text())["cells"]
    tango, topk = (
        next(entry for entry in cells if entry["cell"] == f"{name} r=0.2")
        for name in ("tango", "topk")
    )
    expected = tango["accuracy"] - topk["accuracy"]
    assert tango["versus"]["topk"]["difference"] == pytest.approx(expected)
    low, high = tango["versus"]["topk"]["difference_ci95"]
    shown = f"{100 * expected:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
    for name in ("table.md", "table.tex", "report.html"):
        text = (tmp_path / "out" / name).read_text().replace("$-$", "\N{MINUS SIGN}")
        assert shown.replace("-", "\N{MINUS SIGN}") in text, name
    head, *lines = (tmp_path / "out" / "table.csv").read_text().splitlines()
    line = next(text for text in lines if "tango r=0.2" in text)
    row = dict(zip(head.split(","), line.split(","), strict=True))
    assert float(row["versus_topk"]) == pytest.approx(expected)
    assert float(row["versus_previous_p"]) == tango["versus"][PREVIOUS]["p_value"]
