"""The viewer's server: responses, security headers and refused requests."""

from __future__ import annotations

import pytest
from clips import clip as clip_file
from starlette.testclient import TestClient
from viewed_runs import video_id, write_viewed_run

from jobs.viewer.command import SITE, build_app, opened
from jobs.viewer.frames import FrameDecoder


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    run = write_viewed_run(tmp_path_factory.mktemp("run"), video=clip_file("closed_gop.mp4"))
    decoder = FrameDecoder(pixels=2_000)
    with opened([run]) as pages:
        yield TestClient(build_app(pages, decoder), base_url="http://127.0.0.1:8000")
    decoder.close()


def test_the_page_loads_nothing_from_other_hosts(client):
    for path in SITE.rglob("*.*"):
        if path.suffix in (".html", ".css", ".js") and path.parent.name != "vendor":
            assert client.get(f"/{path.relative_to(SITE)}").status_code == 200
            text = path.read_text()
            assert not any(word in text for word in ("http://", "https://", "innerHTML")), path
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy


@pytest.mark.parametrize(
    "path", ["/", "/data/start/0", "/frames/0/0/0.jpg", "/nope", "/data/clips/999"]
)
def test_every_response_has_the_security_headers(client, path):
    headers = client.get(path).headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8000", ""])
def test_other_host_names_are_refused(client, host):
    assert client.get("/data/start/0", headers={"host": host}).status_code == 400


def test_paths_cannot_leave_the_site(client):
    for path in (
        *("../server.py", "%2e%2e/server.py", "..%2fserver.py", "vendor/../../server.py"),
        *("vendor/%2e%2e/%2e%2e/server.py", "/etc/passwd", "data/..%2f..%2fserver.py"),
        "frames/0/0/../../../server.py",
    ):
        answer = client.get(f"http://127.0.0.1:8000/{path}")
        assert answer.status_code == 404, path
        assert "starlette" not in answer.text


def test_errors_are_one_line(client):
    for path, status in (
        ("/data/list/1", 404),
        ("/data/nope/0", 404),
        ("/data/tokens/0?columns=99", 404),
        ("/data/tokens/0?columns=", 400),
        ("/data/tokens/99?columns=0", 404),
        ("/frames/0/99/0.jpg", 404),
        ("/frames/0/0/99.jpg", 404),
        ("/frames/3/0/0.jpg", 404),
        ("/frames/99/0/0.jpg", 404),
    ):
        answer = client.get(path)
        assert (path, answer.status_code) == (path, status)
        assert answer.headers["content-type"].startswith("text/plain")
        assert len(answer.text.splitlines()) == 1


def test_data_of_a_clip_with_tokens_and_frames(client):
    assert client.get("/data/clips/1").json()["video"] == video_id(1)
    tokens = client.get("/data/tokens/1?columns=1,0").json()
    assert set(tokens) == {"0", "1"}
    picture = client.get(f"/{tokens['1']['view']['urls'][0]}")
    assert picture.headers["content-type"] == "image/jpeg"
