"""Charades-STA: both forms of the release, and prompts and spans against lmms-eval's."""

import json

import numpy as np
import pytest
from golden_files import GOLDEN_DIR
from releases import asked, load
from scored_releases import (
    CHARADES_ROWS,
    charades_parquet,
    charades_parquet_of_texts,
    charades_text,
)

from tango_core.benchmarks.base import Defect
from tango_core.benchmarks.charades_sta import (
    CharadesSTABenchmark,
    charades_span,
    timelens_spans,
)
from tango_core.benchmarks.scoring.judge import judge
from tango_core.benchmarks.scoring.spans import read_span, span_iou
from tango_core.types import Question

PROTOCOLS = CharadesSTABenchmark.protocols
GOLDEN = json.loads((GOLDEN_DIR / "videomme_v2_charades_sta.json").read_text())
LAYOUTS = [charades_text, charades_parquet, charades_parquet_of_texts]
TIMES = GOLDEN["scores"]["charades_times"]


@pytest.mark.parametrize("write", LAYOUTS)
class TestLayouts:
    def test_all_layouts_have_the_same_questions(self, write, tmp_path):
        benchmark = load("charades_sta", write(tmp_path / "one"), protocol="lmms_eval")
        other = load("charades_sta", charades_text(tmp_path / "other"))
        assert asked(benchmark) == asked(other)
        found = [(record.video_id, record.question) for record in benchmark.records()]
        assert [(video, *one.span, one.text) for video, one in found] == list(CHARADES_ROWS)
        assert [one.id for _, one in found] == [
            "3MSZA-1",
            "3MSZA-2",
            "00HFP-1",
            "XXABC-1",
            "3MSZA-3",
        ]

    def test_only_the_last_of_equal_rows_counts_in_the_harness(self, write, tmp_path):
        benchmark = load("charades_sta", write(tmp_path), protocol="lmms_eval")
        scores = [
            benchmark.protocol.harness_score("24.3 - 30.4", record.question)
            for record in benchmark.records()
        ]
        assert scores == [1.0, None, 0.0, 0.0, 1.0]

    def test_videos_are_found(self, write, tmp_path):
        root = write(tmp_path)
        (root / "Charades_v1_480").mkdir(exist_ok=True)
        (root / "Charades_v1_480" / "00HFP.mp4").touch()
        items = {item.video_id: item.path for item in load("charades_sta", root).items()}
        assert items["00HFP"] == str(root / "Charades_v1_480" / "00HFP.mp4")
        assert items["3MSZA"] == str(root / "Charades_v1_480" / "3MSZA.mp4")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("3MSZA 24.3##person sits", "must be 'VIDEO start end##sentence'"),
        ("3MSZA a b##person sits", "start must be a number, got 'a'"),
        ("3MSZA -1 5##person sits", "must not be negative"),
        ("3MSZA 1 5##", "no caption"),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, problem):
    charades_text(tmp_path)
    with (tmp_path / "charades_sta_test.txt").open("a") as file:
        file.write(line + "\n")
    defects = [e for e in load("charades_sta", tmp_path).entries() if isinstance(e, Defect)]
    (defect,) = defects
    assert problem in defect.problem
    assert "row 6" in defect.where


def test_times_in_the_wrong_order_are_swapped_and_noted(tmp_path):
    (tmp_path / "charades_sta_test.txt").write_text("A 9 2.5##person sits.\n")
    (record,) = load("charades_sta", tmp_path).records()
    assert record.question.span == (2.5, 9)
    assert record.notes == ("start 9 s is after end 2.5 s; swapped",)


@pytest.mark.parametrize("case", GOLDEN["charades_sta"])
def test_prompts_are_the_harnesses_byte_for_byte(case):
    ((name, expected),) = ((key, text) for key, text in case.items() if key != "row")
    text = case["row"].get("caption") or case["row"]["query"]
    prompt = PROTOCOLS[name].render(Question("q", text, span=(24.3, 30.4)))
    assert (prompt.before, prompt.after) == ("", expected)


@pytest.mark.parametrize("case", TIMES, ids=lambda case: case["reply"])
class TestHarnessReading:
    def test_charades(self, case):
        found = charades_span(case["reply"])
        assert ([] if found is None else [list(found)]) == case["charades_sta"]

    def test_timelens(self, case):
        assert list(map(list, timelens_spans(case["reply"]))) == case["timelens"]


# What our reader makes of the same replies, where it is not what the harness reads.
OURS = {
    "24.3 seconds to 30.4 seconds": (24.3, 30.4),
    "Start time: 24.3, end time: 30.4": (24.3, 30.4),
    '{"start": 24.3, "end": 30.4}': (24.3, 30.4),
    "<24.3 seconds> to <30.4 seconds>": (24.3, 30.4),
    "1 - 2, 5 - 9": None,
}


@pytest.mark.parametrize("case", TIMES, ids=lambda case: case["reply"])
def test_our_reader_refuses_several_spans_and_knows_more_forms(case):
    harness = charades_span(case["reply"])
    assert read_span(case["reply"]) == OURS.get(case["reply"], harness)


@pytest.mark.parametrize(
    ("reply", "span"),
    [
        ("between 24.3 and 30.4 s", (24.3, 30.4)),
        ("[24.3, 30.4]", (24.3, 30.4)),
        ("[[1, 2], [3, 4]]", None),
        ("24.3-30.4 seconds. So 24.3 to 30.4.", (24.3, 30.4)),
        ("24.3-30.4 seconds. So 24 to 30.", None),
        ("2024-10-11", None),
        ("1 - 2 - 3", None),
        ("3.5.1 - 4", None),
        ("from 1:02:03.5 until 1:02:09", (3723.5, 3729.0)),
        ("person turn 2 lights on", None),
        ("", None),
    ],
)
def test_more_forms(reply, span):
    assert read_span(reply) == span


class TestIoU:
    @pytest.mark.parametrize("case", GOLDEN["scores"]["iou"])
    def test_is_the_harnesses(self, case):
        assert span_iou(case["a"], case["b"]) == pytest.approx(case["iou"])

    def test_is_the_share_of_covered_milliseconds(self):
        rng = np.random.default_rng(0)
        for _ in range(50):
            one, other = np.sort(rng.integers(0, 400, (2, 2)), axis=1)
            ticks = np.arange(400)
            first, second = ((low <= ticks) & (ticks < high) for low, high in (one, other))
            together = (first | second).sum()
            expected = (first & second).sum() / together if together else 0.0
            # Between spans that do not meet, the covered length has a gap: IoU is 0 either way.
            assert span_iou(tuple(one / 1000), tuple(other / 1000)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("reply", "readable", "score", "correct"),
    [
        ("10 - 20", True, 1.0, True),
        ("10 - 30", True, 0.5, True),
        ("10 - 31", True, 10 / 21, False),
        ("no idea", False, 0.0, False),
        (None, False, 0.0, False),
    ],
)
def test_a_span_is_right_from_half_on(reply, readable, score, correct):
    found = judge(reply, Question("q", "When?", span=(10.0, 20.0)), lambda *_: None)
    assert (found.readable, found.score, found.correct) == (readable, pytest.approx(score), correct)
    assert found.answer_text == "10 to 20 s"


@pytest.mark.parametrize(
    "options", [{"span": (3, 2)}, {"span": (-1, 2)}, {"span": (1, 2), "choices": ("a", "b")}]
)
def test_questions_have_one_kind_of_answer(options):
    with pytest.raises(ValueError, match="span must be"):
        Question("q", "When?", **options)
