"""`tango cache ls`."""

from __future__ import annotations

import time

import pytest
from filled_caches import fill, path_of

from pipeline.storage import Storage


def test_ls_says_what_each_cache_holds(tango, tmp_path):
    first = fill(tmp_path / "caches", range(2), alpha=1.5)
    second = fill(tmp_path / "caches", range(20), days_old=400, alpha=2.0)
    broken = fill(tmp_path / "caches", range(1), name="evs")
    broken.storage.write("manifest.json", b"{")
    (tmp_path / "caches" / "holidays").mkdir()
    for root in ("caches", f"file://{tmp_path}/caches"):
        code, out, _ = tango("cache", "ls", "--cache", root)
        assert code == 0
        lines = {line.split()[0]: line for line in out.splitlines() if "tiny-8f-" in line}
        assert lines.keys() == {first.name, second.name, broken.name}
        assert " tiny 8f  tango r=0.25 " in lines[first.name]
        assert " 3/12 (25.0 %) " in lines[first.name]
        assert lines[first.name].endswith("compressor.alpha=1.5")
        assert " 20 " in lines[second.name]
        assert "~3/12" in lines[second.name]
        written = time.localtime(path_of(second, 0).stat().st_mtime)
        assert time.strftime("%Y-", written) in lines[second.name]
        assert "manifest.json is damaged" in lines[broken.name]
        assert "3 token cache(s), 23 clips" in out


def test_ls_of_an_empty_directory_says_so(tango, tmp_path):
    (tmp_path / "caches").mkdir()
    code, out, _ = tango("cache", "ls", "--cache", "caches")
    assert (code, out) == (0, "no token caches in caches\n")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("ls",), 0, "1 clips"),
        (("verify",), 1, "1 clips in 2 token cache(s) read"),
        (("gc", "--max-size", "1"), 0, "skipped: "),
        (("compact",), 1, "skipped: "),
    ],
)
def test_a_cache_that_is_closed_to_the_user_hides_no_other_one(
    tango, tmp_path, monkeypatch, command, code, said
):
    fill(tmp_path / "caches", range(1), alpha=1.5)
    closed = fill(tmp_path / "caches", range(1), alpha=2.0)
    files = Storage.files

    def refused(self):
        if self.root.endswith(closed.name):
            raise PermissionError(13, "Permission denied", self.root)
        return files(self)

    monkeypatch.setattr(Storage, "files", refused)
    ended, out, err = tango("cache", *command, "--cache", "caches")
    assert ended == code, err
    assert said in out
    assert closed.name in out
    assert "may not be read by this user" in out
