"""LongVideoBench: the releases' layouts."""

import pytest
from releases import (
    LONGVIDEOBENCH_ROWS,
    asked,
    load,
    longvideobench_parquet,
    longvideobench_release,
    longvideobench_vlmevalkit,
    touch,
    write_json,
)


@pytest.mark.parametrize(
    "write", [longvideobench_release, longvideobench_parquet, longvideobench_vlmevalkit]
)
def test_longvideobench_rows_in_every_layout(write, tmp_path):
    touch(tmp_path, "videos/long-_1.mp4", "videos/short_2.mp4")
    items = list(load("longvideobench", write(tmp_path), split="val").items())
    assert [(item.video_id, len(item.questions)) for item in items] == [
        ("long-_1", 2),
        ("short_2", 1),
    ]
    assert items[0].path == str(tmp_path / "videos" / "long-_1.mp4")
    first, second = items[0].questions
    assert (first.id, first.answer, len(first.choices)) == ("long-_1_0", 4, 5)
    assert first.groups == {"duration": "600", "category": "S2E"}
    assert (second.choices, second.answer) == (("red", "blue"), 1)


def test_longvideobench_hidden_answers_are_unknown(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "correct_choice"} for row in LONGVIDEOBENCH_ROWS]
    write_json(tmp_path / "lvb_test_wo_gt.json", rows)
    assert {q.answer for q in asked(load("longvideobench", tmp_path, split="test_wo_gt"))} == {None}
    with pytest.raises(FileNotFoundError, match=r"lvb_val\.json"):
        load("longvideobench", tmp_path)
