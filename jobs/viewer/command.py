"""`tango view`: open runs, and serve them until Ctrl-C or export them as files."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from rich.console import Console

from jobs.results.facts import FACTS_FILE
from jobs.viewer.frames import FrameDecoder
from jobs.viewer.index import QuestionIndex
from jobs.viewer.pages import Pages
from jobs.viewer.runs import Runs
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import Place
from tango_core.errors import MissingFileError

HOST = "127.0.0.1"
PIXELS, EXPORT_PIXELS = 200_000, 60_000


@contextmanager
def opened(runs: Sequence[Place], cache: str | None = None) -> Iterator[Pages]:
    """Open runs for the viewer.

    Args:
        runs: Run directories or their URLs.
        cache: Directory or URL of the token caches; `None` for the caches named by the runs or next
            to them.

    Raises:
        FileNotFoundError: If a directory is not a finished run.
        DamagedFileError: If a file of a run is damaged.
    """
    with ExitStack() as stack:
        folders = [stack.enter_context(local_copy(run, sent=lambda name: False)) for run in runs]
        yield Pages(QuestionIndex(Runs.open(folders, runs)), cache)


def newest_run(below: Path) -> Path:
    """Find the most recent finished run.

    Raises:
        FileNotFoundError: If there is no finished run.
    """
    found = [path for path in below.glob(f"*/{FACTS_FILE}") if (path.parent / "answers").is_dir()]
    if not found:
        raise MissingFileError(
            f"{below} holds no finished run; name one, or make one with `tango sweep RECIPE`"
        )
    return max(found, key=lambda path: path.stat().st_mtime).parent


def view(
    runs: Sequence[Place],
    console: Console,
    *,
    cache: str | None = None,
    port: int = 0,
    pixels: int = PIXELS,
    opens: bool = False,
) -> None:
    """Serve the viewer on this machine until a signal arrives.

    Args:
        runs: Run directories or their URLs.
        console: Receives the address.
        cache: See `opened`.
        port: Port on 127.0.0.1; 0 for a free port.
        pixels: Area of a frame in pixels.
        opens: Whether to open the address in a browser.

    Raises:
        OSError: If the port is in use.
    """
    import uvicorn

    from jobs.viewer.server import build_app

    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise OSError(
            f"--port {port} cannot be used ({error.strerror}); leave it out for a free one"
        ) from error
    with listening, opened(runs, cache) as pages, closing(FrameDecoder(pixels)) as decoder:
        config = uvicorn.Config(
            build_app(pages, decoder),
            log_level="warning",
            access_log=False,
            lifespan="off",
            # Browsers keep connections open; closing them loses nothing.
            timeout_graceful_shutdown=1,
        )
        url = f"http://{HOST}:{listening.getsockname()[1]}/"
        counts = f"{len(pages.index.questions):,} questions about {len(pages.index.clips):,}"
        lines = f"{counts} clips: {url}\nfor this machine alone; Ctrl-C ends it"
        console.print(lines, markup=False, highlight=False, soft_wrap=True)
        if opens:
            webbrowser.open(url)
        uvicorn.Server(config).run(sockets=[listening])


def export(
    runs: Sequence[Place],
    folder: Path,
    console: Console,
    *,
    cache: str | None = None,
    pixels: int = EXPORT_PIXELS,
) -> Path:
    """Export the viewer to a directory; returns the path of its page.

    Args:
        runs: Run directories or their URLs.
        folder: See `export_site`.
        console: Receives the progress.
        cache: See `opened`.
        pixels: Area of a frame in pixels; 0 exports no frames.

    Raises:
        ValueError: If the directory contains other files.
    """
    from jobs.viewer.export import export_site

    with opened(runs, cache) as pages, closing(FrameDecoder(pixels)) as decoder:
        return export_site(pages, decoder, folder, console)
