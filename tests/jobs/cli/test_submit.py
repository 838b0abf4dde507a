"""`tango submit` and `tango jobs`: mistakes end in one line before anything is sent."""

from __future__ import annotations

import pytest
import yaml
from fake_head import JOB, fake_head, whole

RECIPE = {"benchmark": {"name": "shapes"}, "method": {"name": "tango", "retention": 0.1}}
# Nothing listens there: whoever asks it has sent something.
NOWHERE = ["--address", "http://127.0.0.1:9"]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "--otput", "x"], "no such option: --otput; did you mean --output?"),
        (["--", "--limit", "none"], "got 'none'; see `tango sweep --help`"),
        (["--", "--address", "auto"], "--address behind -- is not for submitted jobs"),
        (["--", "--set", "method.retention=2"], "retention must be in (0, 1], got 2"),
        (["--", "--set", "method.name=tanga"], "unknown method 'tanga'; did you mean 'tango'?"),
        (["--", "--set", "model.name=tyny"], "unknown model"),
        (["--", "--set", "benchmark.name=nope"], "unknown benchmark"),
        (["--", "--set", "pols=1"], "unknown key 'pols'; did you mean 'pools'?"),
        (["--", "--tracking-uri=http://a:b@c"], "--tracking-uri holds a password or a token"),
        (["--command", "precompute", "--", "--mode", "profile"], "no such option: --mode"),
        (["--command", "analyze"], "'analyze'"),
        (["--env", "NOT_SET_HERE"], "--env NOT_SET_HERE is not set here"),
        (["--runtime-env", "nowhere.yaml"], "--runtime-env nowhere.yaml cannot be read"),
        (["--entrypoint-resource", "disk"], "--entrypoint-resource disk is not of the form"),
        (["--entrypoint-memory", "much"], "--entrypoint-memory 'much' is not a size"),
        (["--", "--limit", "2"], "no Ray cluster at --address http://127.0.0.1:9"),
    ],
)
def test_a_mistake_is_one_line(tango, recipe, arguments, message):
    code, out, err = tango("submit", recipe, *NOWHERE, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1, err


def test_several_frame_counts_are_no_single_evaluation(tango, recipe):
    arguments = ["--command", "evaluate", "--", "--set", "model.num_frames=[4,8]"]
    code, _, err = tango("submit", recipe, *NOWHERE, *arguments)
    assert code == 2
    assert "submit it with --command sweep" in err


def test_paths_are_those_of_the_cluster(tango, recipe):
    """A benchmark that is not on this machine is no mistake: only the cluster is missing here."""
    arguments = ["--set", "benchmark.name=videomme", "--set", "benchmark.root=/not/here"]
    code, _, err = tango("submit", recipe, *NOWHERE, "--", *arguments)
    assert code == 2
    assert "no Ray cluster" in err


def test_without_an_address_there_is_nowhere_to_send_it(tango, recipe, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code, _, err = tango("submit", recipe)
    assert code == 2
    assert "--address is missing" in err


def test_jobs_are_listed_shown_and_end_with_their_code(tango):
    with fake_head(tails=[whole], status="FAILED", exit_code=7) as head:
        where = ["--address", head.url]
        code, out, _ = tango("jobs", "list", *where)
        assert (code, out.split()[8:12]) == (0, [JOB, "FAILED", "7", "sweep"])
        code, out, _ = tango("jobs", "status", JOB[:9], *where)
        assert code == 0
        assert "exit code:  7" in out
        (plain,) = yaml.safe_load(tango("jobs", "status", JOB, "--json", *where)[1])
        assert (plain["id"], plain["exit_code"]) == (JOB, 7)
        assert tango("jobs", "logs", JOB, *where)[:2] == (0, head.log)
        code, out, err = tango("jobs", "logs", "-f", JOB, *where)
        assert (code, out) == (7, head.log)
        assert f"{JOB}: FAILED, exit code 7" in err
        code, _, err = tango("jobs", "status", "other", *where)
        assert code == 2
        assert "other is not a job" in err


def test_an_interpreter_that_is_not_there_is_explained(tango):
    with fake_head(tails=[whole], status="FAILED", exit_code=127) as head:
        code, _, err = tango("jobs", "logs", "-f", JOB, "--address", head.url)
    assert code == 127
    assert "name it with --python" in err
