"""Which answers stand when a run goes on."""

from tempfile import TemporaryDirectory

import pyarrow as pa

from pipeline.clips import clip_of
from pipeline.progress.parts import digests_of
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
    kept = continued.keep(rows, [[f"{name}-q"] for name in "abc"])
    assert kept.tolist() == [True, False, False]
    assert continued.standing.digests.tolist() == digests_of([("bench", "a")]).tolist()


def test_answers_do_not_stand_under_other_subtitles():
    before = Continued(asked=[asked(row("a", shown="Hello."), row("b"), row("c", shown=""))])
    shown = [row("a", shown="Hello."), row("a", shown="Goodbye."), row("a")]
    assert before.agree(shown).tolist() == [True, False, False]
    assert before.agree([row("b", shown="Hello."), row("b")]).tolist() == [False, True]
    assert not before.agree([row("c")]).any(), "an empty file is not none"


def test_a_run_that_did_not_note_its_subtitles_is_compared_without_them():
    part = asked(row("a"), row("b"))
    unknown = pa.nulls(len(part), pa.string())
    part = part.set_column(part.schema.get_field_index("subtitles_digest"), "any", unknown)
    before = Continued(asked=[part.rename_columns(ASKED.names)])
    now = [row("a", shown="Hello."), row("b", text="Why?")]
    assert before.agree(now).tolist() == [True, False]


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
