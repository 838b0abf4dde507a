"""No operation on a store ends wrong under any fault; `results/s3.md` is the table of them."""

from __future__ import annotations

import fsspec
import pytest
from s3_server import environment, s3_server

from tests.chaos.s3_faults import CASES, RESULTS, rows


@pytest.mark.slow
def test_every_fault_ends_as_the_table_says(monkeypatch):
    with s3_server() as server:
        for name, value in environment(server.endpoint).items():
            monkeypatch.setenv(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        found = [f"| {' | '.join(row)} |" for row in rows(server)]
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    assert not [line for line in found if "WRONG" in line]
    assert len(found) == len(CASES)
    assert set(found) <= set(RESULTS.read_text().splitlines())
