"""One file of the hub: whatever happens on the way, its bytes come once and are the right ones."""

from __future__ import annotations

import random

import pytest
from huggingface_hub import constants

from jobs.fetch import hub as hub_module
from jobs.fetch.hub import FetchError

LARGE = random.Random(0).randbytes(200_000)
SMALL = b'{"small": true}'
NAME = "datasets/owner/data"


def fetch(hub, folder, path="videos/a.zip"):
    """Fetch one file; its content."""
    opened = hub()
    (file,) = [each for each in opened.files() if each.path == path]
    partial = folder / "parts" / f"{file.digest}.part"
    opened.fetch(file, partial, folder / path)
    assert not list((folder / "parts").iterdir())
    return (folder / path).read_bytes()


@pytest.fixture
def published(server):
    server.publish(NAME, {"videos/a.zip": LARGE, "small.json": SMALL})
    return server


@pytest.fixture
def interrupted(published, hub, tmp_path, monkeypatch):
    """Bytes of the partial file that a first attempt leaves."""
    published.cuts["a.zip"] = [70_000] + [0] * 5  # the client asks five times more
    monkeypatch.setattr(hub_module, "_WAITS_S", ())
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(FetchError):
        fetch(hub, tmp_path)
    published.requests.clear()
    (part,) = (tmp_path / "parts").iterdir()
    assert 0 < part.stat().st_size <= 70_000
    return part.stat().st_size


def test_a_small_file_has_a_checksum_of_another_kind(published, hub, tmp_path):
    assert fetch(hub, tmp_path, "small.json") == SMALL


@pytest.mark.parametrize("resets", [False, True])
def test_a_cut_connection_is_continued(published, hub, tmp_path, resets):
    published.resets = resets
    published.cuts["a.zip"] = [70_000, 50_000]
    assert fetch(hub, tmp_path) == LARGE
    first, *others = published.gets("a.zip")
    assert first is None
    starts = [int((wanted or "bytes=0-")[len("bytes=") : -1]) for wanted in others]
    assert starts == sorted(starts)
    assert starts[0] <= 70_000
    assert resets or starts[0] > 0  # a reset may lose what has arrived


def test_another_process_goes_on_where_the_first_was_stopped(published, hub, tmp_path, interrupted):
    assert fetch(hub, tmp_path) == LARGE
    assert published.gets("a.zip") == [f"bytes={interrupted}-"]


def test_a_file_that_changed_on_the_hub_begins_anew(published, hub, tmp_path, interrupted):
    other = LARGE[::-1]
    published.publish(NAME, {"videos/a.zip": other})
    opened = hub()
    (file,) = opened.files()
    partial = tmp_path / "parts" / f"{file.digest}.part"
    opened.fetch(file, partial, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == other
    assert published.gets("a.zip") == [None]


def test_a_hub_that_sends_whole_files_only_is_asked_from_the_start(
    published, hub, tmp_path, interrupted
):
    published.ignores_ranges = True
    assert fetch(hub, tmp_path) == LARGE


def test_wrong_bytes_are_an_error_and_are_not_kept(published, hub, tmp_path):
    published.changed["a.zip"] = [LARGE[::-1]]
    with pytest.raises(FetchError, match="does not have the checksum"):
        fetch(hub, tmp_path)
    assert not (tmp_path / "videos").exists()
    assert not list((tmp_path / "parts").iterdir())


@pytest.mark.parametrize(
    "answer", [(429, {"Retry-After": "0"}), (503, {}), (429, {"ratelimit": '"resolvers";r=0;t=0'})]
)
def test_a_busy_hub_is_asked_again(published, hub, tmp_path, answer):
    published.answers["a.zip"] = [answer] * 2
    assert fetch(hub, tmp_path) == LARGE


def test_a_hub_that_stops_sending_is_not_waited_for(
    monkeypatch, published, hub, tmp_path, interrupted
):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    published.held["a.zip"] = 0
    with pytest.raises(FetchError, match=r"Timeout: .* check the network"):
        fetch(hub, tmp_path)


def test_a_token_goes_to_the_hub_and_not_to_its_store(monkeypatch, published, hub, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    fetch(hub, tmp_path)
    sent = {each.server: each.authorization for each in published.requests}
    assert sent == {"hub": "Bearer hf_abcdefghijklmnop", "store": None}


def test_a_hub_that_stays_busy_is_given_up(published, hub, tmp_path):
    published.answers["a.zip"] = [(503, {})] * 6
    with pytest.raises(FetchError, match="owner/data: the hub answers with status 503"):
        fetch(hub, tmp_path)
