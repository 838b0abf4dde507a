"""A fixture for the output of successful commands."""

import pytest


@pytest.fixture
def output_of(tango):
    """`output_of(*arguments)` is what a command prints that ends well."""

    def call(*arguments):
        code, out, err = tango(*arguments)
        assert code == 0, err
        return out

    return call
