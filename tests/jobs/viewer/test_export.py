"""Export of the viewer: its data, escaping, and replacement of earlier exports."""

from __future__ import annotations

import json
import re

import pytest
from clips import clip as clip_file
from viewed_runs import CELLS, HOSTILE, write_viewed_run

from jobs.viewer.command import export_site, opened
from jobs.viewer.frames import FrameDecoder

NO_FRAMES = FrameDecoder(pixels=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_viewed_run(tmp_path_factory.mktemp("run"), video=clip_file("closed_gop.mp4"))


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "viewer"
    decoder = FrameDecoder(pixels=2_000)
    with opened([run]) as pages:
        assert export_site(pages, decoder, folder) == folder / "index.html"
    decoder.close()
    return folder


def piece(folder, name):
    """The value that a script hands over."""
    text = (folder / "data" / f"{name}.js").read_text()
    found = re.fullmatch(r'tangoData\("([a-z0-9/]+)",(.*)\);\n', text, re.DOTALL)
    assert found
    assert found[1] == name
    return json.loads(found[2])


def test_an_export_contains_all_data_of_the_runs(folder):
    contents = piece(folder, "start/0")
    assert contents["questions"] == 12
    assert len(piece(folder, "list/0")["outcomes"]) == 12
    assert piece(folder, "words/0")["text"][0] == "Question 0-0?"
    assert len(piece(folder, "videos/0")) == 6
    assert piece(folder, "clips/1")["questions"][0]["choices"][2] == HOSTILE
    tokens = piece(folder, "tokens/0")
    assert set(tokens) == {str(at) for at in range(len(CELLS))}
    (urls,) = {tuple(one["view"]["urls"]) for one in tokens.values()}
    assert (folder / urls[0]).read_bytes()[:2] == b"\xff\xd8"


def test_hostile_strings_cannot_end_a_script(folder):
    texts = [path.read_text() for path in (folder / "data").rglob("*.js")]
    assert any("onerror" in text for text in texts)
    assert all("<" not in text and text.isascii() and text.count("\n") == 1 for text in texts)


def test_the_exported_page_has_the_security_policy_and_its_files(folder):
    html = (folder / "index.html").read_text()
    assert 'data-export="1"' in html
    assert "Content-Security-Policy\" content=\"default-src 'none'" in html
    assert (folder / "vendor/LICENSE").is_file()
    for name in re.findall(r'(?:src|href)="([\w/.-]+\.\w+)"', html):
        assert (folder / name).is_file(), name


def test_only_an_earlier_export_is_replaced(run, folder, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with opened([run]) as pages:
        with pytest.raises(ValueError, match="holds other files"):
            export_site(pages, NO_FRAMES, tmp_path)
        with pytest.raises(ValueError, match="is a file"):
            export_site(pages, NO_FRAMES, tmp_path / "mine.txt")
        export_site(pages, NO_FRAMES, tmp_path / "new")
        (tmp_path / "new/data/clips/99.js").write_text("of an earlier run")
        export_site(pages, NO_FRAMES, tmp_path / "new")
    assert not (tmp_path / "new/data/clips/99.js").exists()
    assert not (tmp_path / "new/frames").exists()
    view = piece(tmp_path / "new", "tokens/0")["0"]["view"]
    assert view["urls"] == []
    assert "without frames" in view["missing"]
