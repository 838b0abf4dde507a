"""Which answers stand when a run goes on."""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory

from pipeline.clips import clip_of
from pipeline.progress.answers import (
    AnsweredClips,
    Continued,
    read_asked,
    write_asked,
)
from pipeline.progress.parts import digests_of
from pipeline.rows import ANSWER, CLIP, to_table
from pipeline.storage import Storage
from tango_core.types import Question, Subtitles, VideoItem

CELLS = ("full", "tango")


def question(name, text="What?"):
    return Question(f"{name}-q", text, ("a", "b"), 1)


def row(name, *, text="What?", key="key", shown=None):
    subtitles = None if shown is None else Subtitles(shown)
    item = VideoItem(name, f"/{name}.mp4", None, (question(name, text),), subtitles)
    return clip_of("bench", item, f"{key}-{name}", f"stat:{name}")


def answered(*names):
    rows = [
        {"benchmark": "bench", "video_id": name, "cell": cell, "question_id": f"{name}-q"}
        for name in names
        for cell in CELLS
    ]
    return AnsweredClips.of([to_table([{**one, "status": "ok"} for one in rows], ANSWER)], CELLS)


def asked(*rows):
    """One part, as a run keeps it."""
    with TemporaryDirectory() as folder:
        write_asked(to_table(rows, CLIP), Storage.at(folder))
        return next(read_asked(Storage.at(folder)))


def test_answers_stand_to_the_same_words_about_the_same_file():
    before = [asked(*map(row, "abc"))]
    continued = Continued(answered("a", "b", "c"), before)
    rows = [row("a"), row("b", text="Why?"), row("c", key="other")]
    kept = continued.keep(rows, [[f"{name}-q"] for name in "abc"])
    assert kept.tolist() == [True, False, False]
    assert continued.standing.digests.tolist() == digests_of([("bench", "a")]).tolist()


def test_answers_do_not_stand_under_other_subtitles():
    before = Continued(asked=[asked(row("a", shown="Hello."), row("b"), row("c", shown=""))])
    shown = [row("a", shown="Hello."), row("a", shown="Goodbye."), row("a")]
    assert before.agree(shown).tolist() == [True, False, False]
    assert before.agree([row("b", shown="Hello."), row("b")]).tolist() == [False, True]
    assert not before.agree([row("c")]).any(), "an empty file is not none"


def test_a_clip_that_is_not_listed_does_not_stand():
    continued = Continued(answered("a", "b"))
    assert continued.keep([row("a")], [["a-q"]]).all()
    assert (len(continued), len(continued.standing)) == (2, 1)


def test_the_newest_part_says_what_was_asked():
    newer, older = asked(row("a", text="New?")), asked(row("a", text="Old?"), row("b"))
    before = Continued(asked=[newer, older])
    now = [row("a", text="New?"), row("a", text="Old?"), row("b")]
    assert before.agree(now).tolist() == [True, False, True]


def test_what_cannot_be_compared_agrees():
    before = Continued(asked=[asked(row("a"))])
    gone = row("a", key="").failed("decode_failed", "no such file")
    assert before.agree([row("never recorded"), gone]).all()


def clips(*names, text="What?", path="/videos/{}.mp4"):
    rows = []
    for name in names:
        question = Question(f"{name}-0", text, ("a", "b"), 1)
        item = VideoItem(name, path.format(name), (1.0, 2.0), (question,))
        rows.append(clip_of("bench", item, f"key-{name}", f"stat:{name}"))
    return to_table(rows, CLIP)


def asked_of(run):
    """Clip -> its row, of the newest part that has one."""
    rows = [row for table in read_asked(run) for row in table.to_pylist()]
    return {(row["benchmark"], row["video_id"]): row for row in reversed(rows)}


def test_what_was_asked_is_read_back(tmp_path):
    write_asked(clips("one", "two"), Storage.at(tmp_path / "run"))
    found = asked_of(tmp_path / "run")
    assert set(found) == {("bench", "one"), ("bench", "two")}
    row = found["bench", "two"]
    assert (row["path"], row["clip_start"], row["clip_key"]) == ("/videos/two.mp4", 1.0, "key-two")
    assert json.loads(row["questions"])[0]["text"] == "What?"
    assert list(read_asked(tmp_path / "elsewhere")) == []


def test_a_continued_run_adds_to_it_and_the_later_row_counts(tmp_path):
    run = Storage.at(tmp_path / "run")
    write_asked(clips("one", "two"), run)
    write_asked(clips("two", text="Really?"), run)
    write_asked(clips(), run)
    assert len(list(read_asked(run))) == 2
    texts = [json.loads(row["questions"])[0]["text"] for row in asked_of(run).values()]
    assert sorted(texts) == ["Really?", "What?"]


def test_secrets_of_addresses_are_not_written(tmp_path):
    secret = "https://user:hunter2@host/{}.mp4?X-Amz-Signature=abcdef"
    write_asked(clips("one", path=secret), Storage.at(tmp_path / "run"))
    (row,) = asked_of(tmp_path / "run").values()
    assert "hunter2" not in row["path"]
    assert "abcdef" not in row["path"]
