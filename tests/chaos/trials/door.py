"""A port in front of another one: `python -m tests.chaos.trials.door PORT BACKEND_PORT`."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Bytes from one to the other, until either ends."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Serve until killed."""
    port, backend = map(int, sys.argv[1:])
    with socket.create_server(("127.0.0.1", port), backlog=128) as server:
        while True:
            client, _ = server.accept()
            behind = socket.create_connection(("127.0.0.1", backend))
            for pair in ((client, behind), (behind, client)):
                threading.Thread(target=_pass_on, args=pair, daemon=True).start()


if __name__ == "__main__":
    main()
