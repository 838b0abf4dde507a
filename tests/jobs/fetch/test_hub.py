"""What is asked of the hub, and the one line for everything it may answer."""

from __future__ import annotations

import socket

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from jobs.fetch.hub import FetchError, Repository

NAME = "datasets/owner/data"
FILES = {f"json/{number}.json": b"%d" % number for number in range(7)}


def message(error):
    """The one line of an error."""
    text = str(error.value)
    assert "\n" not in text
    return text


def test_all_pages_of_a_list_are_read(server, hub):
    server.publish(NAME, FILES)
    server.page_size = 2
    assert {file.path for file in hub().files()} == set(FILES)


def test_facts_of_a_commit(server, hub):
    sha = server.publish(NAME, FILES, gated=True, licence="mit")
    commit = hub()
    assert (commit.sha, commit.gated, commit.licence) == (sha, True, "mit")


def test_a_busy_list_is_asked_again(server, hub):
    server.publish(NAME, FILES)
    server.answers["tree"] = [(503, {}), (429, {"Retry-After": "0"})]
    assert len(hub().files()) == 7


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (None, "it is gated: ask for access on {page}, then give the token of that account"),
        ("hf_otherotherother", "the account of your token has no access yet: ask for it on {page}"),
    ],
)
def test_a_gated_repository_says_where_access_is_asked_for(monkeypatch, server, hub, token, said):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    server.publish(NAME, FILES, gated=True)
    opened = hub()
    with pytest.raises(FetchError) as error:
        opened.raise_if_closed(opened.files()[0].path)
    assert said.format(page=f"{server.url}/datasets/owner/data") in message(error)
    assert "otherother" not in message(error)


def test_the_token_that_was_granted_opens_it(monkeypatch, server, hub, tmp_path):
    server.publish(NAME, FILES, gated=True)
    server.granted = {"hf_goodgoodgoodgood"}
    (tmp_path / "token").write_text("hf_goodgoodgoodgood\n")
    hub().raise_if_closed("json/0.json")


def test_what_is_not_on_the_hub(server, hub):
    with pytest.raises(FetchError) as error:
        Repository("owner/other", "dataset", "main")
    assert message(error).startswith("owner/other: there is no such data set on the hub")
    server.publish(NAME, FILES)
    with pytest.raises(FetchError) as error:
        hub("v9")
    assert message(error) == "owner/data: the hub has no revision 'v9' of it"


def test_offline_says_which_variable(monkeypatch, server, hub):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError) as error:
        hub()
    assert message(error).startswith("owner/data: HF_HUB_OFFLINE forbids to ask the hub; unset")
    assert not server.requests


def test_a_hub_that_is_not_there(monkeypatch, server, hub):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(FetchError) as error:
            hub()
    assert f"the hub at {constants.ENDPOINT} failed (ConnectError" in message(error)
    assert "check the network, HF_ENDPOINT and HTTPS_PROXY" in message(error)


def test_a_proxy_is_used(monkeypatch, server, hub):
    server.publish(NAME, FILES)
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    close_session()
    assert hub().sha in server.repositories[NAME].commits
