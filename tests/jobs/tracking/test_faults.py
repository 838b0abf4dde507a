"""Servers, files and clocks that fail while a run is logged."""

import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from fake_answers import cell, facts_of, fake_answers, write_run

from jobs.results.summary import write_summary
from jobs.tracking.log_run import log_run
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.server import (
    TrackingError,
    default_tracking_uri,
    mlflow_client,
    raise_if_unreachable,
    raise_if_unusable,
)

TANGO = cell("tango", 0.1)


class FixedClock:
    """A clock that stands still."""

    def now(self):
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class TestFaults:
    """Clock, run files and client are parameters: what can go wrong is simulated through them."""

    @pytest.fixture(scope="class")
    def run(self, tmp_path_factory):
        """A run whose length is not known, without its page."""
        folder = tmp_path_factory.mktemp("faults") / "run"
        facts = facts_of(TANGO, run_id="run", wall_s=None)
        write_run(folder, fake_answers(facts, num_clips=3), facts)
        write_summary(folder)
        return folder

    def test_metrics_and_an_unknown_end_have_the_time_of_the_clock(self, run):
        logged = log_run(run, clock=FixedClock())
        client = mlflow_client(default_tracking_uri(run.parent))
        (metric,) = client.get_metric_history(logged, "accuracy")
        assert metric.timestamp == client.get_run(logged).info.end_time == 1767323045000

    @pytest.mark.parametrize(
        "request_name", ["get_experiment_by_name", "log_batch", "log_artifact"]
    )
    def test_a_server_that_goes_away_is_one_error(self, run, request_name):
        def refuse(*_, **__):
            raise ConnectionResetError("connection lost\nin the middle")

        def connect(uri):
            client = mlflow_client(uri)
            setattr(client, request_name, refuse)
            return client

        with pytest.raises(TrackingError, match=r"^ConnectionResetError: connection lost$"):
            log_run(run, connect=connect)

    def test_a_file_that_cannot_be_uploaded_is_one_error(self, run):
        class VanishedReport(RunDirectory):
            def artifacts(self):
                return [self.path / "gone.html"]

        with pytest.raises(TrackingError, match=r"gone\.html"):
            log_run(run, open_run=VanishedReport)

    def test_a_server_nobody_listens_at_is_found_before_a_client_is_made(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("no_proxy", "*")

        def refused(host, port):
            raise ConnectionRefusedError(f"{host} {port}")

        asked = {"connect": pytest.fail, "port_check": refused}
        for call in (log_run, lambda _, uri, **how: raise_if_unreachable(uri, **how)):
            named = r"nothing listens at mlflow\.example:5000 .*--tracking-uri"
            with pytest.raises(TrackingError, match=named):
                call(tmp_path, "http://mlflow.example:5000", **asked)

    def test_a_server_behind_a_proxy_is_not_asked_for_directly(self, monkeypatch):
        def refused(host, port):
            raise ConnectionRefusedError(f"{host} {port}")

        for scheme, name in (("http", "HTTP_PROXY"), ("https", "https_proxy")):
            with monkeypatch.context() as environment:
                server = f"{scheme}://me:word@mlflow.example:5000"
                environment.setenv(name, "http://proxy.example:3128")
                environment.setenv("no_proxy", "other.example")
                raise_if_unusable(server, refused)
                environment.setenv("no_proxy", "other.example,.example:5000")
                with pytest.raises(TrackingError, match="nothing listens"):
                    raise_if_unusable(server, refused)

    @pytest.mark.slow
    def test_a_server_that_only_a_proxy_reaches_answers(self, mlflow_server, monkeypatch):
        class Proxy(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server = f"http://127.0.0.1:{mlflow_server}{urlparse(self.path).path}"
                request = Request(server, body, {"Content-Type": "application/json"})
                with build_opener(ProxyHandler({})).open(request, timeout=60) as reply:
                    answer = reply.read()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST  # noqa: N815

        with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
            monkeypatch.setenv("no_proxy", "")
            try:
                assert raise_if_unreachable("http://mlflow.invalid:5000")
            finally:
                proxy.shutdown()

    def test_a_store_that_mlflow_does_not_have_names_the_option(self, run):
        wrong = r"^--tracking-uri foo://bar cannot be opened \(.*\); use sqlite:///"
        with pytest.raises(TrackingError, match=wrong):
            log_run(run, "foo://bar")

    def test_a_damaged_summary_is_named(self, tmp_path):
        facts_of(TANGO).save(tmp_path)
        (tmp_path / "summary.json").write_text("{}")
        with pytest.raises(ValueError, match=r"summary\.json is damaged .*tango report"):
            log_run(tmp_path)
