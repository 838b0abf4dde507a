"""Servers, files and clocks that fail while a run is logged."""

import socket
import threading
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse, urlunparse
from uuid import uuid4

import pytest
from fake_answers import cell, facts_of, fake_answers, write_run

from jobs.results.summary import write_summary
from jobs.tracking import sender
from jobs.tracking.log_run import log_run
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.server import (
    TrackingError,
    default_tracking_uri,
    mlflow_client,
    raise_if_unreachable,
    raise_if_unusable,
)
from jobs.tracking.upload import upload_run

TANGO = cell("tango", 0.1)


def write_results(folder):
    """A finished run whose length is not known, without its page."""
    facts = facts_of(TANGO, run_id=folder.name, wall_s=None)
    write_run(folder, fake_answers(facts, num_clips=3), facts)
    write_summary(folder)
    return folder


@contextmanager
def relay(server, loses=lambda path: False):
    """Port of a proxy in front of a server on this machine.

    Of a request whose path it `loses`, the server does what it says, and nobody hears of it.
    """

    class Relay(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = urlparse(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kind = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            path = urlunparse(asked._replace(scheme="", netloc=""))
            with closing(HTTPConnection("127.0.0.1", server, timeout=60)) as behind:
                behind.request(self.command, path, body, kind)
                reply = behind.getresponse()
                answer = reply.read()
            if loses(asked.path):
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(reply.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = do_PATCH = do_DELETE = do_POST  # noqa: N815

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Relay) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield proxy.server_port
        finally:
            proxy.shutdown()


class FixedClock:
    """A clock that stands still."""

    def now(self):
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class TestFaults:
    """Clock, run files and client are parameters: what can go wrong is simulated through them."""

    @pytest.fixture(scope="class")
    def run(self, tmp_path_factory):
        return write_results(tmp_path_factory.mktemp("faults") / "run")

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
        with relay(mlflow_server) as port:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
            monkeypatch.setenv("no_proxy", "")
            assert raise_if_unreachable("http://mlflow.invalid:5000")

    @pytest.mark.slow
    def test_an_answer_that_is_lost_makes_no_run_twice(self, mlflow_server, tmp_path):
        run = write_results(tmp_path / f"run-{uuid4().hex}")
        lost = []

        def loses(path):
            if path.endswith(("runs/create", "runs/log-batch")) and path not in lost:
                lost.append(path)
                return True
            return False

        with relay(mlflow_server, loses) as port:
            logged = upload_run(run, f"http://127.0.0.1:{port}", idle_s=120)
        client = mlflow_client(f"http://127.0.0.1:{mlflow_server}")
        experiment = client.get_experiment_by_name("tango").experiment_id
        query = f"tags.`tango.run_id` = '{run.name}'"
        (found,) = client.search_runs([experiment], query)
        assert (found.info.run_id, found.info.status) == (logged, "FINISHED")
        assert len(lost) == 2

    @pytest.mark.parametrize(("answers", "pauses"), [(0, []), (1, [2.0, 5.0, 10.0])])
    def test_only_a_server_that_has_answered_is_asked_again_and_not_for_ever(
        self, answers, pauses, monkeypatch, capsys
    ):
        def fails(run_dir, uri, *, progress, begun):
            for _ in range(answers):
                progress()
            raise TrackingError("connection lost")

        slept = []
        monkeypatch.setattr(sender, "log_run", fails)
        monkeypatch.setattr(sender.time, "sleep", slept.append)
        assert sender._finish(Path("run"), "http://mlflow.example", None) == 1
        assert slept == pauses
        assert capsys.readouterr().out.splitlines()[-1] == "failed connection lost"

    def test_a_store_that_mlflow_does_not_have_names_the_option(self, run):
        wrong = r"^--tracking-uri foo://bar cannot be opened \(.*\); use sqlite:///"
        with pytest.raises(TrackingError, match=wrong):
            log_run(run, "foo://bar")

    def test_a_damaged_summary_is_named(self, tmp_path):
        facts_of(TANGO).save(tmp_path)
        (tmp_path / "summary.json").write_text("{}")
        with pytest.raises(ValueError, match=r"summary\.json is damaged .*tango report"):
            log_run(tmp_path)
