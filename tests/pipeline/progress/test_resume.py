"""Which answers stand when a run goes on."""

from tempfile import TemporaryDirectory

import pyarrow as pa

from pipeline.clips import clip_of
from pipeline.progress.resume import (
    ASKED,
    AnsweredClips,
    Continued,
    read_asked,
    write_asked,
)
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
    kept = [continued.keeps(one, [question(one.video_id)]) for one in rows]
    assert kept == [True, False, False]
    assert [continued.standing.has("bench", name, [f"{name}-q"]) for name in "abc"] == kept


def test_answers_do_not_stand_under_other_subtitles():
    before = Continued(asked=[asked(row("a", shown="Hello."), row("b"), row("c", shown=""))])
    assert before.agrees(row("a", shown="Hello."))
    assert not before.agrees(row("a", shown="Goodbye."))
    assert not before.agrees(row("a"))
    assert not before.agrees(row("b", shown="Hello."))
    assert before.agrees(row("b"))
    assert not before.agrees(row("c")), "an empty file is not none"


def test_a_run_that_did_not_note_its_subtitles_is_compared_without_them():
    part = asked(row("a"), row("b"))
    unknown = pa.nulls(len(part), pa.string())
    part = part.set_column(part.schema.get_field_index("subtitles_digest"), "any", unknown)
    before = Continued(asked=[part.rename_columns(ASKED.names)])
    assert before.agrees(row("a", shown="Hello."))
    assert not before.agrees(row("b", text="Why?"))


def test_a_clip_that_is_not_listed_does_not_stand():
    continued = Continued(answered("a", "b"))
    assert continued.keeps(row("a"), [question("a")])
    assert (len(continued), len(continued.standing)) == (2, 1)


def test_the_newest_part_says_what_was_asked():
    newer, older = asked(row("a", text="New?")), asked(row("a", text="Old?"), row("b"))
    before = Continued(asked=[newer, older])
    assert before.agrees(row("a", text="New?"))
    assert not before.agrees(row("a", text="Old?"))
    assert before.agrees(row("b"))


def test_what_cannot_be_compared_agrees():
    before = Continued(asked=[asked(row("a"))])
    assert before.agrees(row("never noted"))
    assert before.agrees(row("a", key="").failed("decode_failed", "no such file"))
