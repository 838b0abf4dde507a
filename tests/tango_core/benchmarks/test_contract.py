"""What every public benchmark does, in every layout in which it lies on people's disks."""

import json
import os
import pickle
from pathlib import Path

import pytest
import releases
import releases as first

from tango_core.benchmarks import benchmark_class, build_benchmark
from tango_core.benchmarks.base import Defect
from tango_core.benchmarks.protocols.protocol import is_failure
from tango_core.benchmarks.public.mvbench import ALL_TASKS
from tango_core.errors import UserError


def content(benchmark):
    """What is asked and what is right; a table of option columns drops an option "N/A"."""
    return {
        (
            one.text,
            one.span,
            None if one.answer is None else one.choices[one.answer],
            *(text for text in one.choices if text != "N/A"),
        )
        for one in releases.asked(benchmark)
    }


# Benchmarks that VLMEvalKit lacks, and two protocols that no harness scores.
UNSCORED = {(name, "vlmevalkit") for name in ("lvbench", "charades_sta", *first.RECORDED)}
UNSCORED |= {("nextqa_oe", "lmms_eval"), ("activitynet_captions", "lmms_eval_charades")}
# Here lmms-eval guesses whatever names no option.
GUESSING = ("longvideobench", "egoschema", "nextqa", "tomato")


@pytest.mark.parametrize(("name", "write"), releases.EVERY)
class TestEveryLayout:
    def test_every_question_and_every_clip_is_there_once(self, name, write, tmp_path):
        benchmark = releases.load(name, write(tmp_path))
        items, ids = (
            list(benchmark.items()),
            [question.id for question in releases.asked(benchmark)],
        )
        assert len(ids) == len(set(ids)) == len(benchmark.records()) > 0
        assert len({item.video_id for item in items}) == len(items)
        assert len({(item.path, item.clip) for item in items}) == len(items)
        # Videos are not there: they are items all the same.
        assert all(item.path.startswith(str(tmp_path)) for item in items)

    def test_questions_are_those_of_the_first_layout(self, name, write, tmp_path):
        found = content(releases.load(name, write(tmp_path / "one")))
        same = content(releases.load(name, releases.LAYOUTS[name][0](tmp_path / "other")))
        # lmms-eval's table of MLVU lacks rows whose answer is no option.
        assert found < same if write is first.mlvu_lmms_eval else found == same

    def test_reading_twice_gives_the_same_and_a_limit_takes_whole_clips(
        self, name, write, tmp_path
    ):
        benchmark = releases.load(name, write(tmp_path))
        assert list(benchmark.entries()) == list(benchmark.entries())
        items = list(benchmark.items())
        assert list(benchmark.items(1)) == items[:1]
        assert list(benchmark.items(0)) == []
        with pytest.raises(ValueError, match="limit must be 0 or more"):
            next(benchmark.items(-1))

    def test_every_protocol_asks_reads_and_counts_a_failure_as_wrong(self, name, write, tmp_path):
        root = write(tmp_path)
        for own, protocol in benchmark_class(name).protocols.items():
            copy = pickle.loads(pickle.dumps(protocol))  # as it travels to other processes
            assert protocol.name == own
            for question in releases.asked(releases.load(name, root, protocol=own)):
                prompt = copy.render(question)
                assert prompt == protocol.render(question)
                assert question.text.split("\n")[0].strip() in prompt.after
                assert protocol.read_choice("A", question) in (0, None)
                if protocol.harness_score is None:
                    assert (name, own) in UNSCORED
                elif not (name in GUESSING and own.startswith("lmms_eval")):
                    assert not protocol.harness_score(protocol.failed_reply, question)
                    assert is_failure(protocol.failed_reply) or name == "motionbench"


@pytest.mark.parametrize("name", releases.LAYOUTS)
class TestMistakes:
    def test_roots_that_hold_no_release_end_in_one_line(self, name, tmp_path):
        with pytest.raises(ValueError, match=r"benchmark\.root is missing; set it to the folder"):
            build_benchmark(name)
        for root, message in (
            (tmp_path / "nothing", "is not a folder; .* expects there: "),
            (tmp_path, r"annotations not found under .*; expected there: "),
        ):
            with pytest.raises(FileNotFoundError, match=message) as error:
                releases.load(name, root)
            assert "\n" not in str(error.value)
        assert str(error.value).endswith(
            f"; to fetch them: tango data get {name} --root {tmp_path}"
        )

    def test_unknown_split_and_protocol(self, name, tmp_path):
        with pytest.raises(ValueError, match=r"unknown benchmark\.split 'tset'; did you mean"):
            releases.load(name, tmp_path, split="tset")
        with pytest.raises(ValueError, match=r"unknown benchmark\.protocol 'own'"):
            releases.load(name, tmp_path, protocol="own")


@pytest.mark.parametrize(
    ("write", "file"),
    [
        *((first.videomme_release, f"video/aAaAaAaAaA0{end}") for end in (".mp4", ".MP4")),
        (first.videomme_vlmevalkit, "aAaAaAaAaA0.mp4"),
        (first.longvideobench_release, "videos/long-_1.mp4"),
        (first.mlvu_release, "MLVU/video/1_plotQA/movie_1.mp4"),
        (first.mlvu_lmms_eval, "movie_1.mp4"),
        (first.mvbench_main, "video/tvqa/frames_fps3_hq/show_s01_clip_00/00001.jpg"),
        (first.mvbench_main, "video/data0613/clevrer/video_validation/object_existence.mp4"),
        (first.mvbench_cut, "star/Charades_segment/shared_1.mp4"),
        (first.tempcompass_authors, "videos/101.mp4"),
        (first.lvbench_release, "videos/-a.b-c_d-e1.mp4"),
        (first.lvbench_authors, "Cm73ma6Ibcs.mp4"),
        *((first.videomme_v2_release, f"{folder}/001.mp4") for folder in ("video", "videos")),
        (first.charades_text, "Charades_v1_480/00HFP.mp4"),
        (first.egoschema_release, "videos/0a01d7d0-11d6-4af6-abd9-2025656d3c63.mp4"),
        (first.egoschema_authors, "egoschema/videos/00b9a0de-c59e-49cb-a127-6081e2fb8c8e.MP4"),
        (first.nextqa_release, "NExTVideo/4010069381.mp4"),
        (first.nextqa_oe_release, "nextqa/NExTVideo/4010069381.mp4"),
        (first.perceptiontest_release, "videos/video_10.mp4"),
        (first.tomato_release, "videos/human/0215-06.mp4"),
        (first.motionbench_release, "MotionBench/self-collected/a_b.mp4"),
        (first.tvbench_release, "video/action_count/v1.mp4"),
        (first.activitynet_captions_authors, "videos/v_abc.mp4"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_videos_are_found_where_releases_harnesses_and_people_put_them(write, file, tmp_path):
    releases.touch(tmp_path, file)
    (name,) = (own for own, layouts in releases.LAYOUTS.items() if write in layouts)
    paths = {item.path for item in releases.load(name, write(tmp_path)).items()}
    expected = tmp_path / file
    assert str(expected.parent if expected.suffix == ".jpg" else expected) in paths


def test_below_hf_home_as_lmms_eval_leaves_it(tmp_path):
    first.videomme_release(tmp_path / "hub" / "datasets--lmms-lab--Video-MME" / "snapshots" / "abc")
    releases.touch(tmp_path, "videomme/data/aAaAaAaAaA0.mp4")
    expected = str(tmp_path / "videomme" / "data" / "aAaAaAaAaA0.mp4")
    assert next(releases.load("videomme", tmp_path).items()).path == expected
    assert next(releases.load("videomme", tmp_path / "videomme").items()).path == expected


def test_a_repository_folder_of_the_hub_cache_stands_for_its_snapshot(tmp_path):
    for name, seconds in (("abc", 200), ("abd", 100)):
        first.videomme_release(tmp_path / "snapshots" / name)
        os.utime(tmp_path / "snapshots" / name, (seconds, seconds))
    item = next(releases.load("videomme", tmp_path).items())
    assert item.path.startswith(str(tmp_path / "snapshots" / "abc" / "video"))  # the newest


# Benchmark, a row, and what is said about it.
MALFORMED = json.loads(Path(__file__).with_name("malformed_rows.json").read_text())["releases"]
V2 = first.VIDEOMME_V2_ROWS
FILES = {
    "videomme": "videomme.json",
    "longvideobench": "lvb_val.json",
    "tempcompass": "multi-choice.json",
    "videomme_v2": "videomme_v2.json",
}


@pytest.mark.parametrize(("name", "row", "problem"), MALFORMED, ids=[row[2] for row in MALFORMED])
def test_malformed_rows_are_named(name, row, problem, tmp_path):
    if name == "charades_sta":
        (tmp_path / "charades_sta_test.txt").write_text(f"{row}\n")
    elif name == "mvbench":
        releases.write_tsv(tmp_path / "MVBench.tsv", [row])
    elif name == "lvbench":
        (tmp_path / "video_info.meta.jsonl").write_text(json.dumps(row))
    else:
        releases.write_json(
            tmp_path / FILES[name], [row, *V2[1:]] if name == "videomme_v2" else [row]
        )
    benchmark = releases.load(name, tmp_path)
    defects = [entry for entry in benchmark.entries() if isinstance(entry, Defect)]
    assert problem in defects[0].problem
    assert defects[0].where.endswith("row 1")
    with pytest.raises(ValueError, match=r"rows: \d, check all rows with: tango data check"):
        benchmark.records()


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("longvideobench", "lvb_val.json", '[{"id": "1",', "not JSON .*; download the file again"),
        ("videomme", "videomme.json", "[]", "holds no questions; download the file again"),
        ("videomme", "test-00000-of-00001.parquet", "PAR1", r"damaged \(ArrowInvalid: "),
        (
            "lvbench",
            "video_info.meta.jsonl",
            '{"qa": "none"}',
            "qa must be a list of quest",
        ),
        ("tempcompass", "yes_no.json", '{"101": ["action"]}', "must hold .*; download the file"),
        ("tempcompass", "yes_no.json", '{"101": {"action": "Does he?"}}', "must hold .*; download"),
        ("mvbench", "test.json", '{"root": ["a"], "meta": {"Action Count": [{}]}}', "must hold"),
        ("mvbench", "test.json", '{"meta": {"Action Count": ["a"]}}', "must hold .*; download"),
    ],
)
def test_files_of_another_form_are_refused_in_one_line(name, file, content, message, tmp_path):
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=message) as error:
        releases.load(name, tmp_path)
    assert str(error.value).startswith(str(tmp_path / file))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "write", "file"),
    [
        ("mlvu", first.mlvu_release, "MLVU/json/5_order.json"),
        ("mvbench", first.mvbench_main, f"json/{ALL_TASKS[3].stem}.json"),
    ],
)
def test_releases_of_several_files_must_be_complete(name, write, file, tmp_path):
    (write(tmp_path) / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"incomplete, missing {file.rpartition('/')[2]}"):
        releases.load(name, tmp_path)


def test_the_length_that_rows_state_is_that_of_the_file_in_seconds(tmp_path):
    rows = [dict(row) for row in first.LONGVIDEOBENCH_ROWS]
    rows[0]["duration"] = "unknown"
    releases.write_json(tmp_path / "lvb_val.json", rows)
    records = releases.load("longvideobench", tmp_path).records()
    assert [record.length_s for record in records] == [None, 12.5, 12.5]
