"""The head of a cluster: where its dashboard is asked, and what is said of another server."""

from __future__ import annotations

import pytest
from fake_head import JOB, fake_head

from jobs.submit.head import Head, HeadError, dashboard_url
from pipeline.errors import ClusterError


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("head:8265/", "http://head:8265"),
        ("head", "http://head:8265"),
        ("http://head/", "http://head:8265"),
        ("http://head:", "http://head:8265"),
        ("http://me:word@head", "http://me:word@head:8265"),
        ("http://[::1]", "http://[::1]:8265"),
        ("http://head:80", "http://head:80"),
        ("http://proxy/ray", "http://proxy/ray"),
        ("http://proxy?cluster=1", "http://proxy?cluster=1"),
        ("https://proxy", "https://proxy"),
    ],
)
def test_a_host_alone_is_asked_at_the_dashboards_port(monkeypatch, address, url):
    assert dashboard_url(address) == url
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert dashboard_url(None) == url


def test_a_password_in_the_address_is_not_shown(tango):
    with fake_head() as head:
        address = head.url.replace("http://", "http://me:topsecret9@")
        _, out, err = tango("jobs", "logs", "-f", JOB, "--address", address)
    assert "topsecret9" not in out + err


def test_the_address_that_is_given_wins_over_rays_variables(monkeypatch):
    with fake_head() as head:
        monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
        assert [job.submission_id for job in Head(head.url).jobs()] == [JOB]


def test_something_else_at_the_address_is_one_line():
    with fake_head() as head:
        head.broken = 1
        with pytest.raises(HeadError, match="does not answer"):
            Head(head.url)
    with pytest.raises(ClusterError, match=r"no Ray cluster at .*http://head:8265, or start"):
        Head(head.url)
