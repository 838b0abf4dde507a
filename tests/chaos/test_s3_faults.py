"""No operation on a store ends wrong under any fault; `results/s3.md` is the table of them."""

from __future__ import annotations

import pytest
from s3_server import s3_of_this_process

from tests.chaos.s3_faults import CASES, RESULTS, rows


@pytest.mark.slow
def test_every_fault_ends_as_the_table_says():
    with s3_of_this_process() as server:
        found = [f"| {' | '.join(row)} |" for row in rows(server)]
    assert not [line for line in found if "WRONG" in line]
    assert len(found) == len(CASES)
    assert set(found) <= set(RESULTS.read_text().splitlines())
