"""One S3 server for the tests of a file, and a bucket for every test."""

from __future__ import annotations

import pytest
from s3_server import new_bucket, s3_of_this_process

from pipeline.storage.objects import Patience


@pytest.fixture(scope="module")
def server():
    with s3_of_this_process() as server:
        yield server


@pytest.fixture
def bucket(server):
    """The name of a new bucket; the requests of its making are not counted."""
    return new_bucket(server)


@pytest.fixture
def patience():
    """As in a job, with short pauses."""
    return Patience(first_s=0.01, longest_s=0.05)
