"""A job that names a checkpoint of the hub: one line for everything that may be wrong with it."""

from __future__ import annotations

import json
import socket
import sys

import pytest
from huggingface_hub import constants

from jobs.cli.main import _run
from tango_core.models import describe_model

ID = "owner/model"
NAME = f"models/{ID}"
FILES = {"config.json": b'{"model_type": "bert"}'}


def message(path=ID, **options):
    """What a job says about a checkpoint that it cannot describe."""
    with pytest.raises(FileNotFoundError) as error:
        describe_model("llava-onevision-7b", path, **options)
    text = str(error.value)
    assert text.startswith(f"model.path {path}")
    assert "\n" not in text
    return text


def test_no_such_checkpoint(server):
    assert "there is no such checkpoint on the hub" in message()


def test_no_such_revision(server):
    server.publish(NAME, FILES)
    assert "at revision v2: the hub has no revision 'v2' of it" in message(revision="v2")


@pytest.mark.parametrize(
    ("token", "said"), [(None, "ask for access on"), ("hf_otherotherother", "has no access yet")]
)
def test_a_gated_checkpoint(monkeypatch, server, token, said):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    server.publish(NAME, FILES, gated=True)
    text = message()
    assert said in text
    assert f"{server.url}/{ID}" in text
    assert "otherother" not in text


def test_a_granted_token_opens_it(monkeypatch, server):
    monkeypatch.setenv("HF_TOKEN", "hf_goodgoodgoodgood")
    server.publish(NAME, FILES, gated=True)
    server.granted = {"hf_goodgoodgoodgood"}
    with pytest.raises(ValueError, match="holds a 'bert' model"):
        describe_model("llava-onevision-7b", ID)


def test_offline(monkeypatch, server):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    text = message()
    assert "HF_HUB_OFFLINE forbids to ask the hub" in text
    assert "tango model get" in text
    assert not server.requests


def test_a_proxy_that_is_not_there(monkeypatch, server):
    from huggingface_hub.utils import close_session

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
        close_session()
        assert "check the network, HF_ENDPOINT and HTTPS_PROXY" in message()


def test_a_command_ends_in_one_line(monkeypatch, capsys, server, tmp_path):
    server.publish(NAME, FILES, gated=True)
    recipe = {
        "benchmark": {"name": "shapes", "root": str(tmp_path / "shapes")},
        "model": {"name": "llava-onevision-7b", "path": ID},
        "method": {"name": "full"},
        "executor": "local",
        "limit": 1,
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tango", "evaluate", "recipe.yaml"])
    assert _run() == 2  # `main` would end this process
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"tango: recipe.yaml: model.path {ID}: it is gated: ask for access on")
