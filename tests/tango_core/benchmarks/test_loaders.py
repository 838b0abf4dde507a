"""The four public benchmarks, read from every layout in which they lie on people's disks."""

import pytest
from releases import (
    LONGVIDEOBENCH_ROWS,
    asked,
    load,
    longvideobench_parquet,
    longvideobench_release,
    longvideobench_vlmevalkit,
    mlvu_lmms_eval,
    mlvu_release,
    mlvu_vlmevalkit,
    mvbench_cut,
    mvbench_main,
    mvbench_vlmevalkit,
    videomme_release,
    videomme_vlmevalkit,
    write_json,
)

from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.base import Defect

LAYOUTS = [
    ("videomme", videomme_release),
    ("videomme", videomme_vlmevalkit),
    ("longvideobench", longvideobench_release),
    ("longvideobench", longvideobench_parquet),
    ("longvideobench", longvideobench_vlmevalkit),
    ("mlvu", mlvu_release),
    ("mlvu", mlvu_vlmevalkit),
    ("mlvu", mlvu_lmms_eval),
    ("mvbench", mvbench_main),
    ("mvbench", mvbench_cut),
    ("mvbench", mvbench_vlmevalkit),
]


@pytest.mark.parametrize(("name", "write"), LAYOUTS, ids=lambda v: getattr(v, "__name__", v))
class TestEveryLayout:
    def test_every_question_is_asked_once(self, name, write, tmp_path):
        benchmark = load(name, write(tmp_path))
        ids = [question.id for question in asked(benchmark)]
        assert len(ids) == len(set(ids)) == len(benchmark.records()) > 0

    def test_every_clip_has_an_id_and_a_path_of_its_own(self, name, write, tmp_path):
        items = list(load(name, write(tmp_path)).items())
        assert len({item.video_id for item in items}) == len(items)
        assert len({(item.path, item.clip) for item in items}) == len(items)

    def test_missing_videos_are_items_all_the_same(self, name, write, tmp_path):
        items = list(load(name, write(tmp_path)).items())
        assert all(item.path.startswith(str(tmp_path)) for item in items)

    def test_reading_twice_gives_the_same(self, name, write, tmp_path):
        benchmark = load(name, write(tmp_path))
        assert list(benchmark.entries()) == list(benchmark.entries())
        assert list(benchmark.items()) == list(benchmark.items())

    def test_limit_takes_the_first_clips_whole(self, name, write, tmp_path):
        benchmark = load(name, write(tmp_path))
        assert list(benchmark.items(1)) == list(benchmark.items())[:1]
        assert list(benchmark.items(0)) == []

    def test_both_protocols_render_and_read(self, name, write, tmp_path):
        root = write(tmp_path)
        for protocol in ("vlmevalkit", "lmms_eval"):
            benchmark = load(name, root, protocol=protocol)
            for question in asked(benchmark):
                prompt = benchmark.protocol.render(question)
                assert question.text.strip() in prompt.after
                assert benchmark.protocol.read_choice("A", question) in (0, None)


@pytest.mark.parametrize("name", ["videomme", "mvbench", "longvideobench", "mlvu"])
class TestMistakes:
    def test_no_root(self, name):
        with pytest.raises(ValueError, match=r"benchmark\.root is missing; set it to the folder"):
            build_benchmark(name)

    def test_root_that_is_not_there(self, name, tmp_path):
        with pytest.raises(
            FileNotFoundError, match=r"is not a folder; .* expects there: "
        ) as error:
            load(name, tmp_path / "nothing")
        assert "\n" not in str(error.value)

    def test_root_without_annotations(self, name, tmp_path):
        with pytest.raises(
            FileNotFoundError, match=r"annotations not found under .*; expected there: "
        ) as error:
            load(name, tmp_path)
        assert str(error.value).endswith(
            f"; to fetch them: tango data get {name} --root {tmp_path}"
        )
        assert "\n" not in str(error.value)

    def test_unknown_split_and_protocol(self, name, tmp_path):
        with pytest.raises(ValueError, match=r"unknown benchmark\.split 'tset'; did you mean"):
            load(name, tmp_path, split="tset")
        with pytest.raises(ValueError, match=r"unknown benchmark\.protocol 'own'"):
            load(name, tmp_path, protocol="own")


def test_malformed_rows_are_all_known_and_the_first_one_ends_a_job(tmp_path):
    rows = [dict(row) for row in LONGVIDEOBENCH_ROWS]
    rows[0]["correct_choice"] = 5
    del rows[1]["question"]
    rows.append(dict(rows[2]))
    write_json(tmp_path / "lvb_val.json", rows)
    benchmark = load("longvideobench", tmp_path)
    defects = [entry for entry in benchmark.entries() if isinstance(entry, Defect)]
    assert [defect.problem for defect in defects] == [
        "correct_choice 5 is none of the 5 options",
        "no question",
        "question id 'long-_1_1' occurs twice",
    ]
    with pytest.raises(
        ValueError, match=r"row 1: correct_choice 5 .*; 3 rows are malformed, check"
    ):
        next(benchmark.items())


def test_one_malformed_row_is_counted_as_one_and_the_check_is_of_its_split(tmp_path):
    write_json(tmp_path / "lvb_val.json", [{**LONGVIDEOBENCH_ROWS[0], "correct_choice": 5}])
    command = f"tango data check longvideobench {tmp_path}"
    for split, ending in (("test", command), ("val", f"{command} --split val")):
        with pytest.raises(ValueError, match="; 1 row is malformed, check all rows with") as error:
            load("longvideobench", tmp_path, split=split).records()
        assert str(error.value).endswith(ending)


@pytest.mark.parametrize(
    "write",
    [
        longvideobench_release,
        longvideobench_parquet,
        longvideobench_vlmevalkit,
        mlvu_release,
        mlvu_vlmevalkit,
    ],
)
def test_the_length_that_rows_state_is_that_of_the_file_in_seconds(write, tmp_path):
    name = write.__name__.partition("_")[0]
    lengths = {record.length_s for record in load(name, write(tmp_path)).records()}
    assert lengths == {12.5 if name == "longvideobench" else 480.5}


def test_rows_without_a_length_are_questions_all_the_same(tmp_path):
    rows = [dict(row) for row in LONGVIDEOBENCH_ROWS]
    rows[0]["duration"], rows[1]["duration"] = "unknown", 0
    del rows[2]["duration"]
    write_json(tmp_path / "lvb_val.json", rows)
    records = load("longvideobench", tmp_path).records()
    assert [record.length_s for record in records] == [None, None, None]


def test_a_damaged_annotation_file_is_named(tmp_path):
    (tmp_path / "lvb_val.json").write_text('[{"id": "1",')
    with pytest.raises(ValueError, match=r"lvb_val\.json: not JSON .*; download the file again"):
        load("longvideobench", tmp_path)


def test_an_annotation_file_without_rows_is_named(tmp_path):
    (tmp_path / "videomme.json").write_text("[]")
    with pytest.raises(ValueError, match=r"videomme\.json: holds no questions; download") as caught:
        load("videomme", tmp_path)
    assert "\n" not in str(caught.value)
