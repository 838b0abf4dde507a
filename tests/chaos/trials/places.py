"""Where trials run: a cluster that stays, a small disk, a store and a tracking server that fail."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

PATIENCE_S = 400.0


def below(pid: int, title: str) -> list[int]:
    """Processes below one whose command line holds a text."""
    found = []
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if any(title in part for part in process.cmdline()):
                    found.append(process.pid)
    return found


@contextmanager
def small_disk(folder: Path, size_kb: int) -> Iterator[Path]:
    """A file system in memory; needs root."""
    folder.mkdir(parents=True)
    options = f"size={size_kb}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def grow(folder: Path) -> None:
    """Make room on a small disk."""
    subprocess.run(["mount", "-o", "remount,size=256m", folder], check=True)


class Door:
    """The port at which a store is found: a process that passes requests on, and can be killed.

    Args:
        backend: Endpoint of the store behind it.
    """

    def __init__(self, backend: str) -> None:
        self._backend = urlsplit(backend).port
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.open()

    @property
    def endpoint(self) -> str:
        """For clients."""
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", f"{__package__}.door", str(self.port), str(self._backend)]
        self._process = subprocess.Popen(command)
        until(lambda: can_connect(self.port))

    def kill(self) -> None:
        """End it at once, with all connections."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@contextmanager
def tracking_server(folder: Path) -> Iterator[tuple[str, int]]:
    """A real MLflow server: its URI and its process group."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = f"sqlite:///{folder / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--workers", "1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    uri = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, start_new_session=True, cwd=folder, **quiet) as process:  # type: ignore[call-overload]
        try:
            until(lambda: urllib.request.urlopen(f"{uri}/health", timeout=5).status == 200)
            yield uri, process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def made(folder: Path) -> Path:
    """A directory that is made."""
    folder.mkdir(parents=True)
    return folder


@contextmanager
def a_door(server: Any) -> Iterator[Door]:
    """A door in front of a store, as long as the block runs."""
    door = Door(server.endpoint)
    try:
        yield door
    finally:
        door.kill()


def a_bucket(server: Any, name: str) -> Callable[[], dict[str, bytes]]:
    """The objects of a new bucket, read from the store itself."""
    import s3fs
    from s3_server import environment

    env = environment("http://{}:{}".format(*server.backend))
    store = s3fs.S3FileSystem(
        key=env["AWS_ACCESS_KEY_ID"],
        secret=env["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=env["AWS_ENDPOINT_URL"],
        client_kwargs={"region_name": env["AWS_DEFAULT_REGION"]},
        skip_instance_cache=True,
    )
    store.call_s3("create_bucket", Bucket=name)

    def look() -> dict[str, bytes]:
        store.invalidate_cache()
        return {f"/{path}": store.cat_file(path) for path in store.find(name)}

    return look


def can_connect(port: int) -> bool:
    """Whether somebody listens."""
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def until(condition: Callable[[], object]) -> None:
    """Wait until something is true and raises nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError):
            if condition():
                return
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.1)
