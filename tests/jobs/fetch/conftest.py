"""A hub on loopback that this process asks instead of the real one."""

from __future__ import annotations

import pytest
from hub_server import hub_server
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from jobs.fetch import hub as hub_module
from jobs.fetch.hub import Repository

NAME = "datasets/owner/data"


@pytest.fixture
def server(monkeypatch, tmp_path):
    """The hub, without a token, a cache or a proxy of this machine."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with hub_server() as state:
        monkeypatch.setattr(constants, "ENDPOINT", state.url)
        template = f"{state.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):  # a busy machine is slow
            monkeypatch.setattr(constants, name, 60)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1_000)
        monkeypatch.setattr(hub_module, "_WAITS_S", (0.0,) * 5)
        close_session()
        yield state
        close_session()


@pytest.fixture
def hub(server):
    """Opens `owner/data` of that hub at a revision."""
    return lambda revision="main": Repository("owner/data", "dataset", revision)
