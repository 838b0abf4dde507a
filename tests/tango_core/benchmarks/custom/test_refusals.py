"""Tables of people's own videos that are refused, in one line that names the row."""

import pytest

from tango_core.benchmarks import build_benchmark

CSV_HEADER = "video,question,options,answer,start,end,id\n"
MATCH_HEADER = "video,question,options,answer,match\n"


@pytest.mark.parametrize(
    ("text", "row", "message"),
    [
        ("clip,question\na.mp4,What?\n", 1, "no column 'video'"),
        ("video,question,video\na,b,c\n", 1, "names a column twice"),
        (CSV_HEADER + "a.mp4,What?\n", 2, "2 fields under 7 columns"),
        (CSV_HEADER + "a.mp4,One, two,,,,,\n", 2, "8 fields under 7 columns"),
        (CSV_HEADER + ",What?,,,,,\n", 2, "no video"),
        (
            CSV_HEADER + "a.mp4,What?,,,,,x\n\nb.mp4,What?,,,,,x\n",
            4,
            "'x' is already used in row 2",
        ),
        (CSV_HEADER + "a.mp4,What?,red,A,,,\n", 2, "give 2 to 26 options, got 1"),
        (CSV_HEADER + "a.mp4,What?,red||blue,A,,,\n", 2, "option B is empty"),
        (CSV_HEADER + "a.mp4,What?,[red],A,,,\n", 2, "not JSON"),
        (CSV_HEADER + "a.mp4,What?,red|blue,C,,,\n", 2, "'C' is none of the 2 options"),
        (CSV_HEADER + "a.mp4,What?,red|blue,2,,,\n", 2, "'2' is none of the 2 options"),
        (CSV_HEADER + "a.mp4,What?,red|blue,-1,,,\n", 2, "'-1' is none of the 2 options"),
        (CSV_HEADER + "a.mp4,What?,red|blue,green,,,\n", 2, "from A to B, an index from 0 to 1"),
        (CSV_HEADER + "a.mp4,What?,red|red,red,,,\n", 2, "the text of 2 options"),
        (CSV_HEADER + "a.mp4,,red|blue,A,,,\n", 2, "without a question"),
        ("video,Question,answer\na.mp4,What?,A\n", 2, "a question; did you mean 'Question'?"),
        (CSV_HEADER + "a.mp4,What?,,,3,2,\n", 2, "start 3 must lie before end 2"),
        (CSV_HEADER + "a.mp4,What?,,,2,2,\n", 2, "start 2 must lie before end 2"),
        (CSV_HEADER + "a.mp4,What?,,,2,,\n", 2, "start 2 without an end"),
        (CSV_HEADER + "a.mp4,What?,,,soon,9,\n", 2, "start must be seconds, 0 or more, got 'soon'"),
        (CSV_HEADER + "a.mp4,What?,,,-1,9,\n", 2, "start must be seconds"),
        (CSV_HEADER + "a.mp4,What?,,,0,nan,\n", 2, "end must be seconds"),
        (CSV_HEADER + 'a.mp4,"What?,,,0,9,\n', 2, "unexpected end of data"),
        (MATCH_HEADER + "a.mp4,What?,,red,fuzzy\n", 2, "unknown match 'fuzzy'; choose one of"),
        (MATCH_HEADER + "a.mp4,What?,,,exact\n", 2, "match 'exact' without an answer"),
        (MATCH_HEADER + "a.mp4,What?,red|blue,A,exact\n", 2, "match 'exact' beside options"),
        (MATCH_HEADER + "a.mp4,What?,,red|?,exact\n", 2, r"'red\|\?': every part needs a word"),
        (MATCH_HEADER + "a.mp4,What?,,[],exact\n", 2, r"'\[\]': every part needs a word"),
        (MATCH_HEADER + "a.mp4,What?,,[red],exact\n", 2, "answer .* not JSON"),
    ],
)
def test_a_malformed_row_is_refused_in_one_line(read_table, tmp_path, text, row, message):
    with pytest.raises(ValueError, match=message) as error:
        read_table(text)
    assert str(error.value).startswith(f"{tmp_path / 'questions.csv'}, row {row}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "row", "message"),
    [
        ("{}", 1, "no video"),
        ('{"video": "a.mp4"}\n[1]', 2, "must be a JSON object, got list"),
        ('{"video": "a.mp4"}\n\n{video}', 3, "not JSON"),
        ('{"video": 5}', 1, "video must be text, got 5"),
        ('{"video": "a.mp4", "question": ["x"]}', 1, "question must be text"),
        ('{"video": "a.mp4", "question": "x", "options": {"A": "b"}}', 1, "must be a list"),
        ('{"video": "a.mp4", "question": "x", "options": [null, "b"]}', 1, "texts or numbers"),
        ('{"video": "a.mp4", "question": "x", "options": ["a", "b"], "answer": 2}', 1, "none of"),
        (
            '{"video": "a.mp4", "question": "x", "options": ["a", "b"], "answer": true}',
            1,
            "none of",
        ),
        (
            '{"video": "a.mp4", "question": "x", "answer": true, "match": "exact"}',
            1,
            "answer must be a list or texts",
        ),
        ('{"video": "a.mp4", "start": true, "end": 4}', 1, "start must be seconds"),
        ('{"video": "a.mp4", "start": [1], "end": 4}', 1, "start must be seconds"),
        ('{"video": "a.mp4", "end": 1' + "0" * 400 + "}", 1, "end must be seconds"),
    ],
)
def test_a_malformed_line_is_refused_in_one_line(read_table, text, row, message):
    with pytest.raises(ValueError, match=message) as error:
        read_table(text, "t.jsonl")
    assert f"t.jsonl, row {row}: " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "\n\n", "video,question\n"])
def test_a_table_without_rows_is_refused(read_table, text):
    with pytest.raises(ValueError, match=r"questions\.csv: no rows"):
        read_table(text)


def test_a_table_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "q.csv").write_bytes("video,question\na.mp4,Où?\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"q\.csv: not UTF-8 text"):
        build_benchmark("custom", root=str(tmp_path / "q.csv"))


def test_a_device_is_no_folder_of_videos():
    with pytest.raises(ValueError, match="'/dev/zero' is neither a folder, nor a table"):
        build_benchmark("custom", root="/dev/zero")
