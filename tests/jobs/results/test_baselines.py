"""Cells against others of their own retention: by name, the one listed before, across runs."""

import json
import re

import pytest
from fake_answers import cell, facts_of, fake_answers, summary_json, unmeasured, write_run

from jobs.report.compare import report_runs
from jobs.results.baselines import PREVIOUS, with_baselines

LISTED = (
    cell("full"),
    cell("topk", 0.1),
    cell("topk", 0.2),
    cell("tango", 0.1),
    cell("tango", 0.2),
    cell("random", 0.2),
)


def named(*cells, **own):
    """What comparing needs to know of cells."""
    return unmeasured(*cells, **{"run_id": "a", "model": "tiny", "num_frames": 8, **own})


def pairs_of(cells, *names):
    """Cell -> baseline -> cell it is compared with."""
    found = with_baselines(cells, names, lambda _, other: cells[other].name)
    return {(entry.run_id, entry.name): entry.versus for entry in found}


def test_a_method_is_looked_for_at_the_cells_own_retention():
    pairs = pairs_of(named(*LISTED), "topk")
    assert [versus["topk"] for versus in pairs.values()] == [
        None,
        None,
        None,
        "topk r=0.1",
        "topk r=0.2",
        "topk r=0.2",
    ]


def test_previous_is_the_method_listed_before_at_the_same_retention():
    pairs = pairs_of(named(*LISTED), PREVIOUS)
    assert [versus[PREVIOUS] for versus in pairs.values()] == [
        None,
        None,
        None,
        "topk r=0.1",
        "topk r=0.2",
        "tango r=0.2",
    ]


def test_a_whole_name_stands_for_that_cell_at_every_retention():
    pairs = pairs_of(named(*LISTED), "topk r=0.1")
    assert pairs["a", "tango r=0.2"] == {"topk r=0.1": "topk r=0.1"}
    assert pairs["a", "topk r=0.1"] == {"topk r=0.1": None}


def test_a_cells_own_run_comes_before_others_and_other_frames_never():
    first, second = named(*LISTED[1:4]), named(*LISTED[1:4], run_id="b")
    other = named(cell("random", 0.1), run_id="c", num_frames=16)
    cells = [*first, *second, *other]
    found = with_baselines(cells, ["topk"], lambda _, other: cells[other].run_id)
    versus = {(entry.run_id, entry.name): entry.versus["topk"] for entry in found}
    assert versus["a", "tango r=0.1"] == "a"
    assert versus["b", "tango r=0.1"] == "b"
    assert versus["c", "random r=0.1"] is None


def test_a_baseline_that_nobody_ran_is_named_with_those_there_are():
    with pytest.raises(ValueError, match=r"'topkk' is none of the methods; .*topk, tango"):
        with_baselines(named(*LISTED), ["topkk"], lambda *_: None)


def test_tables_hold_the_differences_between_the_two_accuracies(tmp_path):
    facts = facts_of(*LISTED)
    run = write_run(tmp_path / "run", fake_answers(facts), facts)
    accuracy = {
        entry["cell"]: entry["accuracy"]
        for entry in summary_json(fake_answers(facts), facts)["cells"]
    }
    report_runs([run], tmp_path / "out", baselines=["topk", PREVIOUS])
    cells = json.loads((tmp_path / "out" / "summary.json").read_text())["cells"]
    tango = next(entry for entry in cells if entry["cell"] == "tango r=0.2")
    expected = accuracy["tango r=0.2"] - accuracy["topk r=0.2"]
    assert tango["versus"]["topk"]["difference"] == pytest.approx(expected)
    low, high = tango["versus"]["topk"]["difference_ci95"]
    shown = f"{100 * expected:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
    shown = shown.replace("-", "\N{MINUS SIGN}")
    for name in ("table.md", "table.tex", "grid.md", "report.html"):
        text = (tmp_path / "out" / name).read_text().replace("$-$", "\N{MINUS SIGN}")
        if name == "report.html":  # the interval is a smaller text of its own
            text = re.sub(r'<span class="small">([^<]+ to [^<]+)</span>', r"(\1)", text)
        assert shown in text, name
        assert "vs topk" in text or "Difference to `topk`" in text, name
    head, *lines = (tmp_path / "out" / "table.csv").read_text().splitlines()
    columns = head.split(",")
    line = next(text for text in lines if "tango r=0.2" in text).split(",")
    assert float(line[columns.index("versus_topk")]) == pytest.approx(expected)
    assert float(line[columns.index("versus_previous_p")]) == tango["versus"][PREVIOUS]["p_value"]


def test_a_run_reported_in_place_keeps_its_own_summary(tmp_path):
    facts = facts_of(*LISTED)
    run = write_run(tmp_path / "run", fake_answers(facts), facts)
    report_runs([run], baselines=["topk"])
    assert "vs topk, points" in (run / "report.html").read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert all("versus" not in entry for entry in summary["cells"])
