"""Checks of directories and object stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_results import result_in_a_new_process, result_of

from jobs.doctor import recipe as storage
from jobs.doctor.checks import CheckResult


def test_a_directory_is_written_to_and_left_unchanged(tmp_path):
    for location in (tmp_path, tmp_path / "a" / "b"):
        assert result_of(storage.writable, str(location), "--output").status in ("ok", "note")
    assert list(tmp_path.iterdir()) == []


def test_urls_are_written_to(tmp_path):
    assert result_of(storage.writable, "memory://bucket/cache", "--cache").status == "ok"
    result = result_of(storage.writable, "nonsense://bucket", "--cache")
    assert result.status == "problem"
    assert "nonsense://bucket" in result.text


def test_a_file_instead_of_a_directory_is_a_problem(tmp_path):
    (tmp_path / "file").write_text("here")
    result = result_of(storage.writable, str(tmp_path / "file" / "runs"), "--output")
    assert result == CheckResult(
        "problem", f"{tmp_path / 'file'} is not a directory; choose another --output"
    )


# A machine without one of our packages: Python runs this before anything else.
_WITHOUT_S3FS = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "s3fs":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
"""


def test_a_package_that_is_missing_names_its_extra(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT_S3FS)
    monkeypatch.syspath_prepend(tmp_path)
    result = result_in_a_new_process(storage.writable, "s3://bucket/cache", "--cache")
    assert result == CheckResult(
        "problem",
        "s3fs is not installed; it comes with the extra 's3': pip install 'tango-video[s3]'",
    )


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_a_read_only_directory_is_a_problem():
    result = result_of(storage.writable, "/proc/runs", "--output")
    assert result.status == "problem"
    assert "/proc cannot be written to" in result.text
    assert "--output" in result.text


def test_temporary_files_can_be_written_here_and_not_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert str(tmp_path) in result_in_a_new_process(storage.temporary).text
    assert list(tmp_path.iterdir()) == []
