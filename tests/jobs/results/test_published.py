"""Published numbers beside ours: only where the setting is theirs, and never without its limits."""

import csv
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import golden_files
import pytest
import yaml
from paper_cells import FULL, TANGO, cells_of

import jobs.results.published
from jobs.report.tables.paper import SHARE, paper_table
from jobs.results.published import published_scores
from tango_core.benchmarks import BENCHMARKS
from tango_core.compressors import build_method
from tango_core.models import MODELS

PUBLISHED_DIR = Path(golden_files.__file__).parent / "published"


def complete(cells):
    """The same cells, as if all questions of their benchmarks had been asked."""
    asked = published_file()["questions"]
    return [with_questions(entry, asked[entry.benchmark]) for entry in cells]


def with_questions(entry, num_questions):
    """The same cell, asked so many questions."""
    return replace(entry, counts=replace(entry.counts, num_questions=num_questions))


FILES = ("published.yaml", "published_lmms_eval.yaml")


def published_file(name=FILES[0]):
    path = jobs.results.published.files("jobs.results") / name
    return yaml.safe_load(path.read_text())


def test_shares_of_the_full_run_are_those_the_paper_states():
    """98.9 % at 10 % and 99.7 % at 20 %, from the abstract and the text of the paper."""
    table = paper_table(cells_of(FULL, TANGO, ("tango", 0.2, {})), published=True)
    shares = [f"{100 * row.published[SHARE]:.1f}" for row in table.rows]
    assert shares == ["100.0", "98.9", "99.7"]
    assert ",0.719,0.563,0.496,0.593," in table.csv()


SUBTITLES = "vlmevalkit@2026-05+subtitles"


@pytest.mark.parametrize(
    ("options", "change", "found"),
    [
        ({}, {}, True),
        ({"legacy_writeback": True}, {}, True),
        ({"st_rope": False}, {}, False),
        ({"inner": {"name": "fastv-merge", "layer": 18, "retention": 0.5}}, {}, False),
        ({}, {"num_frames": 16}, False),
        ({}, {"method": "their model"}, False),
        ({}, {"retention_requested": 0.12}, False),
        ({}, {"protocol": "vlmevalkit@2026-05"}, True),
        ({}, {"protocol": "lmms_eval@0.7.3"}, False),
        ({}, {"protocol": SUBTITLES}, False),
    ],
)
def test_only_the_published_setting_gets_them(options, change, found):
    (entry,) = cells_of(("tango", 0.1, options), benchmarks=["mvbench"])
    assert bool(published_scores(replace(entry, **change))) is found


MODEL_OF = {
    "LLaVA-OneVision-7B": ("llava-onevision-7b", 32),
    "LLaVA-Video-7B": ("llava-video-7b", 64),
    "Qwen2.5-VL-7B": ("qwen2.5-vl-7b", 32),
}
COLUMNS = (
    ("videomme", "short", "videomme_short"),
    ("videomme", "medium", "videomme_medium"),
    ("videomme", "long", "videomme_long"),
    *((name, "overall", name) for name in ("videomme", "mvbench", "longvideobench", "mlvu")),
)
INNER = {
    "Tango-dagger": {"name": "fastv-merge", "layer": 18, "retention": 0.5},
    "HoliTom": {"name": "holitom-merge", "layer": 18, "retention": 0.5},
}


def transcribed(name):
    with (PUBLISHED_DIR / name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "row",
    transcribed("tango_tables_1_2.csv"),
    ids=lambda row: f"{row['model']} {row['method']} {row['retention_percent']}",
)
def test_every_cell_of_tables_1_and_2_is_as_printed(row):
    model, num_frames = MODEL_OF[row["model"]]
    method = "tango" if row["method"] == "Tango-dagger" else row["method"].lower()
    options = {"inner": INNER[row["method"]]} if row["method"] in INNER else {}
    if (method, model) == ("fastvid", "llava-video-7b"):
        options["variant"] = "segment"
    (entry,) = cells_of(
        (method, float(row["retention_percent"]) / 100, options),
        benchmarks=["mvbench"],
        model=model,
        num_frames=num_frames,
    )
    found = published_scores(entry)
    assert {
        column: f"{100 * found[benchmark][part]:.1f}" for benchmark, part, column in COLUMNS
    } == {column: row[column] for _, _, column in COLUMNS}


@pytest.mark.parametrize(
    "row", transcribed("tango_ablation.csv"), ids=lambda row: ",".join([*row.values()][:4])
)
def test_every_row_of_the_ablation_is_as_printed(row):
    options = {
        "diverse": row["with_div"] == "yes",
        "context_ratio": 0.4 if row["st_merge"] == "yes" else 0.0,
        "st_rope": row["st_rope"] == "yes",
        "timestamps": row["tsa"] == "yes",
    }
    (entry,) = cells_of(("tango", 0.1, options), benchmarks=["mvbench"])
    found = published_scores(entry)
    for name in ("videomme", "longvideobench"):
        assert f"{100 * found[name]['overall']:.1f}" == row[name]


def test_a_part_of_the_questions_is_not_comparable_and_says_so():
    cells = cells_of(FULL, TANGO)
    cells[0] = with_questions(cells[0], 300)
    note = (
        "Ours and the published numbers are not comparable, which are of complete benchmarks: "
        "videomme 72 of 2,700 questions, mvbench 72 of 4,000 questions, longvideobench 72 of "
        "1,337 questions, mlvu 72 of 2,174 questions."
    )
    table = paper_table(cells, published=True)
    assert table.notes == (note,)
    assert table.markdown().endswith(f"\n\n{note}")
    assert table.latex().endswith(f"\n% {note}")
    assert paper_table(cells).notes == ()
    assert paper_table(complete(cells), published=True).notes == ()


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"model": "tiny"}, "Nothing is published for tiny with 32 frames."),
        ({"llm_shape": (24, 896)}, " of 24 layers of width 896 with 32 frames."),
        ({"num_frames": 8}, "Nothing is published for llava-onevision-7b with 8 frames."),
        ({"protocol": "lmms_eval", "num_frames": 8}, "-7b with 8 frames under lmms_eval."),
    ],
)
def test_another_setting_than_the_published_one_is_named(change, note):
    cells = [replace(entry, **change) for entry in complete(cells_of(TANGO))]
    table = paper_table(cells, published=True)
    assert [note in one for one in table.notes] == [True]
    assert all(not row.published for row in table.rows)
    same = [replace(entry, llm_shape=(28, 3584)) for entry in complete(cells_of(FULL))]
    assert paper_table(same, published=True).notes == ()


@pytest.mark.parametrize(
    ("method", "retention", "model", "num_frames", "printed"),
    [
        ("full", 1.0, "llava-onevision-7b", 32, 0.585),
        ("flashvid", 0.1, "llava-onevision-7b", 32, 0.578),
        ("flashvid", 0.2, "llava-video-7b", 64, 0.622),
        ("vcast", 0.25, "llava-onevision-7b", 32, 0.586),
    ],
)
def test_numbers_made_with_lmms_eval_stand_beside_cells_asked_so(
    method, retention, model, num_frames, printed
):
    given = {} if method == "full" else {"retention": retention}
    options = {
        name: value
        for name, value in build_method(method, model=model, **given).options.items()
        if name != "retention"
    }
    about = {"benchmarks": ["videomme"], "model": model, "num_frames": num_frames}
    (entry,) = cells_of((method, retention, options), **about)
    asked = published_scores(replace(entry, protocol="lmms_eval"))
    assert asked["videomme"]["overall"] == pytest.approx(printed)
    other = published_scores(replace(entry, protocol="vlmevalkit"))
    assert other.get("videomme", {}).get("overall") != pytest.approx(printed)


@pytest.mark.parametrize("name", FILES)
def test_complete_is_what_the_benchmarks_hold(name):
    for benchmark, asked in published_file(name)["questions"].items():
        module, attribute = BENCHMARKS[benchmark].split(":")
        assert getattr(import_module(module), attribute).splits["test"] == asked


@pytest.mark.parametrize("name", FILES)
def test_every_row_names_things_that_exist(name):
    for row in published_file(name)["rows"]:
        assert row["model"] in MODELS
        given = {"retention": row["retention"]} if "retention" in row else {}
        build_method(row["method"], **given, **row.get("options", {}))
