"""Checks of directories and object stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_results import result_in_a_new_process, result_of

from jobs.doctor import storage
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
