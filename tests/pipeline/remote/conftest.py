"""One S3 server for the tests of a file, and a bucket for every test."""

from __future__ import annotations

import uuid

import fsspec
import pytest
from s3_server import environment, s3_server

from pipeline.remote.retries import Patience


@pytest.fixture(scope="module")
def server():
    with pytest.MonkeyPatch.context() as patch, s3_server() as server:
        for name, value in environment(server.endpoint).items():
            patch.setenv(name, value)
        # fsspec keeps file systems, and these the endpoint that they were opened with.
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        yield server
        fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture
def bucket(server):
    """The name of a new bucket; the requests of its making are not counted."""
    name = f"bucket-{uuid.uuid4().hex[:10]}"
    fsspec.filesystem("s3").mkdir(name)
    server.requests.clear()
    server.listings.clear()
    return name


@pytest.fixture
def patience():
    """As in a job, with short pauses."""
    return Patience(first_s=0.01, longest_s=0.05)
