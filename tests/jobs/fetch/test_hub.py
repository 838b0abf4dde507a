"""What is asked of the hub, and the one line for everything that it may answer."""

from __future__ import annotations

import socket

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from jobs.fetch.hub import FetchError, Repository
from tango_core.models import describe_model

DATA, MODEL = "datasets/owner/data", "models/owner/model"
FILES = {f"json/{number}.json": b"%d" % number for number in range(7)}
CONFIG = {"config.json": b'{"model_type": "bert"}'}
TOKEN, OTHER = "hf_goodgoodgoodgood", "hf_otherotherother"


def of_data(revision="main"):
    """The one line about a data set that `tango data get` cannot fetch."""
    with pytest.raises(FetchError) as error:
        Repository("owner/data", "dataset", revision).raise_if_closed("json/0.json")
    return str(error.value)


def of_model(revision=None):
    """The one line about a checkpoint that a job names and cannot have."""
    with pytest.raises(FileNotFoundError) as error:
        describe_model("llava-onevision-7b", "owner/model", revision=revision)
    return str(error.value)


@pytest.fixture(params=[of_data, of_model], ids=["data", "model"])
def message(request):
    return request.param


def publish(server, **facts):
    server.publish(DATA, FILES, **facts)
    server.publish(MODEL, CONFIG, **facts)


def test_all_pages_of_a_list_are_read_and_a_busy_one_is_asked_again(server, hub):
    server.publish(DATA, FILES)
    server.page_size = 2
    server.answers["tree"] = [(503, {}), (429, {"Retry-After": "0"})]
    assert {file.path for file in hub().files()} == set(FILES)


@pytest.mark.parametrize("token", [None, OTHER])
def test_a_gated_repository_says_where_access_is_asked_for(monkeypatch, server, message, token):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    publish(server, gated=True)
    text = message()
    assert f"it is gated: ask for access on {server.url}/" in text
    assert OTHER not in text
    assert "\n" not in text


def test_the_token_that_was_granted_opens_it(server, hub, tmp_path):
    publish(server, gated=True)
    server.granted = {TOKEN}
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    hub().raise_if_closed("json/0.json")
    with pytest.raises(ValueError, match="holds a 'bert' model"):
        describe_model("llava-onevision-7b", "owner/model")


def test_what_is_not_on_the_hub(server, message):
    assert "on the hub" in message()
    publish(server)
    assert "the hub has no revision 'v9' of it" in message("v9")


def test_offline_says_which_variable(monkeypatch, server, message):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids to ask the hub; unset" in message()
    assert not server.requests


def test_a_hub_that_is_not_there(monkeypatch, server, message):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", nobody)
        close_session()
        text = message()
    assert "failed (ConnectError" in text
    assert "check the network, HF_ENDPOINT and HTTPS_PROXY" in text
