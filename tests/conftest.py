"""Fixtures for the whole suite, and how its tests are shared out between processes."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling

# Before anything imports these libraries: no telemetry, no authentication, no hub. One thread per
# process, because tests run in several processes and their tensors are small.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# These evaluate prompts, and take three quarters of what a server needs to start.
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray's workers get their share of a machine that is busy with other tests.
os.environ.setdefault("RAY_worker_niceness", "0")

# A suite that was started in the background, or with `nohup`, ignores these; so would every program
# that its tests start and interrupt.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)


# Tests of the engine vLLM run in an environment that has it.
collect_ignore = [] if importlib.util.find_spec("vllm") else ["vllm"]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without looking for garbage, and never look at what was collected.

    Thousands of tests and their modules all stay, and the product collects garbage where memory
    runs out.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that use Ray into two groups: of one Ray, and with clusters of their own.

    They come first, because they take longest, and files with slow tests come next. Tests that
    start real processes get a second try (CONTRIBUTING.md says why); the summary lists every test
    that needed it.
    """
    slow_files = set()
    for item in items:
        if item.get_closest_marker("ray"):
            has_own = "local_ray" not in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("clusters" if has_own else "ray"))
        if any(map(item.get_closest_marker, ("ray", "slow", "system"))):
            item.add_marker(pytest.mark.flaky(reruns=1))
            slow_files.add(item.path)
    items.sort(key=lambda it: 0 if it.get_closest_marker("ray") else 2 - (it.path in slow_files))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail, not skip, a test whose Debian package is missing."""
    if item.get_closest_marker("system") and (reason := _missing_packages()):
        pytest.fail(reason, pytrace=False)


_LINES_OF_A_FIRST_TRY = 80


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test that fails because PyTorch itself refuses bfloat16 attention.

    PyTorch 2.13 does so on processors with AMX where `ATEN_CPU_CAPABILITY=default` limits it.
    """
    try:
        return (yield)
    except RuntimeError as error:
        if str(error) == _refusal_of_bfloat16_attention():
            pytest.skip(f"PyTorch refuses bfloat16 attention here: {error}")
        raise


@functools.cache
def _refusal_of_bfloat16_attention() -> str | None:
    """What PyTorch alone raises for bfloat16 attention; `None` if it computes."""
    import torch

    heads = torch.zeros(1, 1, 16, 32, dtype=torch.bfloat16)
    try:
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
    except RuntimeError as error:
        return str(error)
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why a test needed its second try, whatever came of that."""
    for report in terminalreporter.getreports("rerun"):
        lines = report.longreprtext.splitlines()
        terminalreporter.section(f"first try of {report.nodeid}", sep="_")
        terminalreporter.write("\n".join(lines[-_LINES_OF_A_FIRST_TRY:]) + "\n")


@functools.cache
def _missing_packages() -> str:
    """One line that names the Debian packages that are missing; empty if none is."""
    script = Path(__file__).parents[1] / "infra/debian_packages.sh"
    done = subprocess.run([script, "check"], capture_output=True, text=True, timeout=60)
    return done.stderr.strip()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneProcessPerFile:
    """Share the tests out between processes by group and by file."""
    return OneProcessPerFile(config, log)


class OneProcessPerFile(LoadGroupScheduling):
    """The tests of a group, or of a file, run in one process: their fixtures are made once."""

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).partition("::")[0]


@pytest.fixture(scope="session")
def local_ray():
    """One Ray for the session, with more logical CPUs than a small machine has."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=256 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture
def tango(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`tango(*arguments)` runs the console script in an empty directory: exit code and output."""
    from jobs.cli.main import main

    monkeypatch.chdir(tmp_path)
    # Where a thread is still in native code the command ends its process, which is pytest's here.
    monkeypatch.setattr("jobs.cli.main.leave", sys.exit)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tango", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return call
