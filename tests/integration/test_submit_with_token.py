"""A cluster with token authentication (`RAY_AUTH_MODE=token`); the token is never printed."""

from __future__ import annotations

import secrets

import pytest
from ray_head import NO_TOKEN, Client, ray_cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

TOKEN, ANOTHER = secrets.token_hex(32), secrets.token_hex(32)
WRONG = {
    "nothing set": {},
    "disabled": NO_TOKEN,
    "no token": {"RAY_AUTH_MODE": "token"},
    "another token": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ANOTHER},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Its addresses for clients (the dashboard) and for drivers."""
    with ray_cluster(tmp_path_factory.mktemp("home"), TOKEN) as addresses:
        yield addresses


@pytest.fixture
def tango(tmp_path):
    """`tango(environment, *arguments)` is a command that has never seen the cluster.

    No token stands in what it prints.
    """
    client = Client(tmp_path / "client", {"name": "full"}, 2)

    def call(environment, *arguments):
        code, out, err = client.run(*arguments, **environment)
        assert TOKEN not in out + err
        assert ANOTHER not in out + err
        return code, out, err

    return call


SUBMIT = ("submit", "recipe.yaml", "--no-wait")


@pytest.mark.parametrize("name", WRONG)
def test_commands_without_the_token_are_refused(tango, cluster, name):
    url, drivers = cluster
    code, out, err = tango(WRONG[name], *SUBMIT, "--address", url)
    assert (code, out) == (2, "")
    assert f"{url} requires a token: set RAY_AUTH_MODE=token" in err
    assert len(err.strip().splitlines()) == 1
    if "token" in name:
        code, out, err = tango(WRONG[name], "evaluate", "recipe.yaml", "--address", drivers)
        assert (code, out) == (2, "")
        assert f"no Ray cluster at --address {drivers}" in err
        assert "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH" in err


def test_jobs_with_the_token_run(tango, tmp_path, cluster):
    """In the environment, and in a file; what a run leaves has no token in it, either."""
    url, drivers = cluster
    (tmp_path / "token").write_text(TOKEN + "\n")
    by_file = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    by_value = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}

    there = tmp_path / "cluster"
    submit = (*SUBMIT, "--directory", str(there))
    code, out, err = tango(by_file, *submit, "--address", url)
    assert code == 0, err
    job = out.strip()
    code, out, err = tango(by_value, "jobs", "logs", "-f", job, "--address", url)
    assert code == 0, err + out
    assert "2 decoded, 2 encoded, 0 failed" in out
    assert f"{job}: SUCCEEDED, exit code 0" in err
    code, out, _ = tango(by_file, "jobs", "list", "--address", url)
    assert (code, job in out) == (0, True)

    code, out, err = tango(by_value, "evaluate", "recipe.yaml", "--address", drivers)
    assert code == 0, err
    assert "2 decoded, 2 encoded, 0 failed" in out
    for folder in (there, tmp_path / "client/runs"):
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) > 5
        assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
