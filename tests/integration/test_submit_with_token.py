"""A head that demands a token (`RAY_AUTH_MODE=token`) of everybody."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

import pytest
import yaml
from ray_head import NO_TOKEN, ROOT, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

TOKEN, ANOTHER = secrets.token_hex(32), secrets.token_hex(32)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The dashboard of a cluster."""
    with ray_head(tmp_path_factory.mktemp("home"), TOKEN) as address:
        yield address


@pytest.fixture
def tango(tmp_path, address):
    """`tango(environment, *arguments)` is the command of somebody at another machine."""
    recipe = {"benchmark": {"name": "shapes"}, "method": {"name": "full"}, "limit": 2}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))

    def call(environment, *arguments):
        done = subprocess.run(
            [sys.executable, "-m", "jobs.cli.entry", *arguments],
            cwd=tmp_path,
            env={
                "PATH": os.defpath,
                "HOME": str(tmp_path),
                "PYTHONPATH": str(ROOT),
                "RAY_ADDRESS": address,
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.parametrize(
    "environment",
    [{}, NO_TOKEN, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ANOTHER}],
    ids=["nothing set", "disabled", "another token"],
)
def test_without_the_token_everything_is_refused_in_one_line(tango, address, environment):
    for arguments in (("jobs", "list"), ("submit", "recipe.yaml", "--no-wait")):
        code, out, err = tango(environment, *arguments)
        assert code == 2, err
        assert f"{address} asks for a token: set RAY_AUTH_MODE=token" in err
        assert len(err.strip().splitlines()) == 1
        assert ANOTHER not in out + err
