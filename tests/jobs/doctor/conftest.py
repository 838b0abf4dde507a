"""One child process for the checks of all tests, as `tango doctor` has one for all of its own."""

import doctor_results
import pytest


@pytest.fixture(scope="package", autouse=True)
def _one_process():
    yield
    doctor_results.close()
