"""One file of the hub: whatever happens on the way, its bytes come once and are the right ones."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from huggingface_hub import constants

from jobs.fetch.hub import FetchError, Hub, Patience
from jobs.fetch.stream import Download, open_file

LARGE = random.Random(0).randbytes(200_000)
SMALL = b'{"small": true}'
NAME = "datasets/owner/data"


def fetch(hub, folder, path="videos/a.zip", **options):
    """Fetch one file; the target."""
    sha = hub.commit().sha
    (file,) = [each for each in hub.files(sha) if each.path == path]
    download = Download(file, folder / "parts" / f"{file.digest}.part", folder / path)
    download.run(hub, sha, **options)
    return download.target


@pytest.fixture
def published(server):
    server.publish(NAME, {"videos/a.zip": LARGE, "small.json": SMALL})
    return server


@pytest.mark.parametrize("path", ["videos/a.zip", "small.json"])
def test_a_file_comes_whole_and_leaves_nothing_else(published, hub, tmp_path, path):
    came = []
    target = fetch(hub, tmp_path, path, on_bytes=came.append)
    assert target.read_bytes() == {"videos/a.zip": LARGE, "small.json": SMALL}[path]
    assert sum(came) == target.stat().st_size
    assert not list((tmp_path / "parts").iterdir())


def test_a_cut_connection_is_continued_from_the_last_byte(published, hub, tmp_path):
    published.cuts["a.zip"] = [70_000, 50_000]
    came = []
    assert fetch(hub, tmp_path, on_bytes=came.append).read_bytes() == LARGE
    first, *others = published.gets("a.zip")
    assert first is None
    starts = [int(wanted.removeprefix("bytes=").rstrip("-")) for wanted in others]
    assert starts == sorted(starts)
    assert 0 < starts[0] <= 70_000
    assert sum(came) == len(LARGE)


def test_another_process_goes_on_where_the_first_was_stopped(published, tmp_path):
    published.cuts["a.zip"] = [70_000]
    with pytest.raises(FetchError, match="are kept"):
        fetch(Hub("owner/data", "dataset", "main", Patience(tries=1)), tmp_path)
    (part,) = (tmp_path / "parts").glob("*.part")
    here = part.stat().st_size
    assert 0 < here <= 70_000
    assert fetch(Hub("owner/data", "dataset", "main"), tmp_path).read_bytes() == LARGE
    assert published.gets("a.zip") == [None, f"bytes={here}-"]


def test_many_cuts_with_progress_are_no_reason_to_give_up(published, hub, tmp_path):
    published.cuts["a.zip"] = [9_000] * 12
    assert fetch(hub, tmp_path).read_bytes() == LARGE


def test_bytes_of_two_versions_are_never_joined(published, hub, tmp_path):
    published.cuts["a.zip"] = [70_000]
    published.tags["a.zip"] = ["one", "two", "two"]
    came = []
    assert fetch(hub, tmp_path, on_bytes=came.append).read_bytes() == LARGE
    assert published.gets("a.zip")[-1] is None
    assert sum(came) == len(LARGE)


def test_a_file_that_changed_on_the_hub_begins_anew(published, hub, tmp_path):
    published.cuts["a.zip"] = [70_000]
    with pytest.raises(FetchError):
        fetch(Hub("owner/data", "dataset", "main", Patience(tries=1)), tmp_path)
    other = LARGE[::-1]
    published.publish(NAME, {"videos/a.zip": other})
    assert fetch(hub, tmp_path).read_bytes() == other
    assert published.gets("a.zip") == [None, None]


def test_a_hub_that_sends_whole_files_only_is_asked_from_the_start(published, hub, tmp_path):
    published.cuts["a.zip"] = [70_000]
    published.ignores_ranges = True
    came = []
    assert fetch(hub, tmp_path, on_bytes=came.append).read_bytes() == LARGE
    assert sum(came) == len(LARGE)


def test_a_partial_file_that_is_too_long_is_thrown_away(published, hub, tmp_path):
    sha = hub.commit().sha
    (file,) = [each for each in hub.files(sha) if each.path == "videos/a.zip"]
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / f"{file.digest}.part").write_bytes(LARGE + b"more")
    assert fetch(hub, tmp_path).read_bytes() == LARGE


@pytest.mark.parametrize(("path", "wrong"), [("videos/a.zip", LARGE[::-1]), ("small.json", b"[]")])
def test_wrong_bytes_are_fetched_again_once(published, hub, tmp_path, path, wrong):
    name = Path(path).name
    published.changed[name] = [wrong.ljust(len(SMALL))]
    target = fetch(hub, tmp_path, path)
    assert target.read_bytes() == (LARGE if name == "a.zip" else SMALL)


def test_bytes_that_stay_wrong_are_an_error_and_are_not_kept(published, hub, tmp_path):
    published.changed["a.zip"] = [LARGE[::-1], LARGE[::-1]]
    with pytest.raises(FetchError, match="does not have the checksum"):
        fetch(hub, tmp_path)
    assert not (tmp_path / "videos").exists()
    assert not list((tmp_path / "parts").iterdir())


BUSY = [
    (429, {"Retry-After": "0"}),
    (503, {"Retry-After": "0"}),
    (429, {"ratelimit": '"resolvers";r=0;t=0'}),
]


@pytest.mark.parametrize("answer", BUSY)
def test_a_busy_hub_is_asked_again_when_it_says(published, tmp_path, answer):
    published.answers["a.zip"] = [answer] * 2
    never = Patience(first_wait_s=10**6, longest_wait_s=10**6)  # what the hub says counts
    assert fetch(Hub("owner/data", "dataset", "main", never), tmp_path).read_bytes() == LARGE


@pytest.mark.parametrize("headers", [{"Retry-After": "7200"}, {"ratelimit": '"api";r=0;t=7200'}])
def test_a_hub_that_wants_hours_is_left_alone(published, tmp_path, headers):
    published.answers["a.zip"] = [(429, headers)]
    with pytest.raises(FetchError, match="status 429; wait and try again"):
        fetch(Hub("owner/data", "dataset", "main"), tmp_path)


def test_a_hub_that_stays_busy_is_given_up(published, hub, tmp_path):
    published.answers["a.zip"] = [(503, {})] * 3
    with pytest.raises(FetchError, match="owner/data: the hub answers with status 503"):
        fetch(hub, tmp_path)


def test_a_hub_that_stops_sending_is_not_waited_for(monkeypatch, published, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    published.held["a.zip"] = 30_000
    with pytest.raises(FetchError, match=r"Timeout: .* check the network"):
        fetch(Hub("owner/data", "dataset", "main", Patience(tries=1)), tmp_path)


def test_a_full_disk_is_one_line_and_what_came_is_kept(published, hub, tmp_path):
    def opener(path, mode):
        return _Full(open_file(path, mode), 50_000)

    with pytest.raises(FetchError, match="no room for videos") as error:
        fetch(hub, tmp_path, opener=opener)
    assert "make room and give the same command again" in str(error.value)
    (part,) = (tmp_path / "parts").glob("*.part")
    assert part.stat().st_size == 50_000
    assert fetch(hub, tmp_path).read_bytes() == LARGE
    assert published.gets("a.zip") == [None, "bytes=50000-"]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no second disk here")
def test_a_folder_may_be_a_link_to_another_disk(published, hub, tmp_path):
    with TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("this machine has one disk")
        (tmp_path / "videos").symlink_to(other)
        assert fetch(hub, tmp_path).read_bytes() == LARGE
        assert [path.name for path in Path(other).iterdir()] == ["a.zip"]


class _Full:
    """A file on a disk with room for so many bytes."""

    def __init__(self, stream, room):
        self._stream, self._room = stream, room

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.close()

    def write(self, data):
        self._stream.write(data[: self._room])
        if len(data) > self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= len(data)


def test_a_token_goes_to_the_hub_and_not_to_its_store(monkeypatch, published, hub, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    fetch(hub, tmp_path)
    sent = {each.server: each.authorization for each in published.requests}
    assert sent == {"hub": "Bearer hf_abcdefghijklmnop", "store": None}
