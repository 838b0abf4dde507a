"""Which answers stand when a run goes on."""

from pipeline.continued import AskedBefore, Continued
from pipeline.finished import AnsweredClips
from pipeline.rows import ANSWER, CLIP, clip_row, failed, to_table
from tango_core.types import Question, VideoItem

CELLS = ("full", "tango")


def question(name, text="What?"):
    return Question(f"{name}-q", text, ("a", "b"), 1)


def row(name, *, text="What?", key="key"):
    item = VideoItem(name, f"/{name}.mp4", None, (question(name, text),))
    return clip_row("bench", item, f"{key}-{name}", f"stat:{name}")


def answered(*names):
    rows = [
        {"benchmark": "bench", "video_id": name, "cell": cell, "question_id": f"{name}-q"}
        for name in names
        for cell in CELLS
    ]
    return AnsweredClips.of([to_table([{**one, "status": "ok"} for one in rows], ANSWER)], CELLS)


def asked(*rows):
    return to_table(rows, CLIP)


def test_answers_stand_to_the_same_words_about_the_same_file():
    before = AskedBefore.of([asked(*map(row, "abc"))])
    continued = Continued(answered("a", "b", "c"), before)
    rows = [row("a"), row("b", text="Why?"), row("c", key="other")]
    kept = [continued.keeps(one, [question(one["video_id"])]) for one in rows]
    assert kept == [True, False, False]
    assert [continued.standing.has("bench", name, [f"{name}-q"]) for name in "abc"] == kept


def test_a_clip_that_is_not_listed_does_not_stand():
    continued = Continued(answered("a", "b"))
    assert continued.keeps(row("a"), [question("a")])
    assert (len(continued), len(continued.standing)) == (2, 1)


def test_the_newest_part_says_what_was_asked():
    newer, older = asked(row("a", text="New?")), asked(row("a", text="Old?"), row("b"))
    before = AskedBefore.of([newer, older])
    assert before.agrees(row("a", text="New?"))
    assert not before.agrees(row("a", text="Old?"))
    assert before.agrees(row("b"))


def test_what_cannot_be_compared_agrees():
    before = AskedBefore.of([asked(row("a"))])
    assert before.agrees(row("never noted"))
    assert before.agrees(failed(row("a", key=""), "decode_failed", "no such file"))
