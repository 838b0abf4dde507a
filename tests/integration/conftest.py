"""Fixtures for the output of successful commands, and for generated clips."""

import pytest


@pytest.fixture
def output_of(tango):
    """`output_of(*arguments)` is what a command prints that ends well."""

    def call(*arguments):
        code, out, err = tango(*arguments)
        assert code == 0, err
        return out

    return call


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Where the jobs of a file keep the clips of `shapes`."""
    return tmp_path_factory.mktemp("shapes")
