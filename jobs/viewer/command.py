"""`tango view`: open runs, and serve them until Ctrl-C or export them as files.

The server sends the page, its data as JSON, and frames as pictures, to this machine alone: requests
with another host name are rejected, which protects against DNS rebinding. A content security policy
forbids the page to load anything from other hosts.

An export is for a local disk or any web server. Pages opened from a disk cannot read files but can
load scripts. So every piece of data is a script that passes one value:
`tangoData("list/0", {...})`.
"""

from __future__ import annotations

import json
import shutil
import socket
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import uvicorn
from rich.console import Console
from rich.progress import track
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from jobs.results.facts import FACTS_FILE
from jobs.viewer.frames import FrameDecoder, NotShownError, View
from jobs.viewer.index import QuestionIndex, Runs
from jobs.viewer.pages import Pages
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import Place
from tango_core.errors import InputError, MissingFileError

SITE = Path(__file__).parent / "site"
PAGE_FILE = "index.html"
_META = '<meta charset="utf-8">'
HOST = "127.0.0.1"
HOSTS = [HOST, "localhost"]
PIXELS, EXPORT_PIXELS = 200_000, 60_000

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


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
    with opened(runs, cache) as pages, closing(FrameDecoder(pixels)) as decoder:
        return export_site(pages, decoder, folder, console)


async def _with_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Add security headers to a response."""
    response = await call_next(request)
    response.headers.update(_HEADERS)
    return response


def build_app(pages: Pages, decoder: FrameDecoder) -> Starlette:
    """The server's application.

    Args:
        pages: Provides the data.
        decoder: Decodes the frames.
    """

    def data(request: Request) -> Response:
        return JSONResponse(pages.piece(**request.path_params))

    def tokens(request: Request) -> Response:
        clip = request.path_params["clip"]

        def urls(view: View, column: int) -> tuple[list[str], None]:
            return [f"frames/{clip}/{column}/{at}.jpg" for at in range(view.num_sprites)], None

        columns = map(int, request.query_params.get("columns", "").split(","))
        return JSONResponse(pages.all_tokens(clip, columns, urls))

    def frames(request: Request) -> Response:
        found = pages.tokens(request.path_params["clip"], request.path_params["column"])
        picture = decoder.sprites(found.view)[request.path_params["part"]]
        return Response(picture, media_type="image/jpeg")

    routes = [
        Route("/data/tokens/{clip:int}", tokens),
        Route("/data/{kind}/{number:int}", data),
        Route("/frames/{clip:int}/{column:int}/{part:int}.jpg", frames),
        Mount("/", StaticFiles(directory=SITE, html=True)),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=_with_headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
        ],
        exception_handlers={ValueError: _error_reply, LookupError: _error_reply},
    )


def _error_reply(request: Request, error: Exception) -> Response:
    """The error message as a response."""
    status = 404 if isinstance(error, LookupError | NotShownError) else 400
    return PlainTextResponse(" ".join(str(error).split()), status)


def export_site(
    pages: Pages,
    decoder: FrameDecoder,
    folder: Path,
    console: Console | None = None,
) -> Path:
    """Write the viewer to a directory.

    Args:
        pages: Provides the data.
        decoder: Decodes the frames.
        folder: A new or empty directory, or an earlier export, which is replaced.
        console: Shows the progress; `None` for none.

    Returns:
        Path of the page to open.

    Raises:
        ValueError: If the directory contains other files.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--export {folder} is a file; name a directory")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "data").is_dir():
        raise InputError(f"--export {folder} holds other files; name a new or empty directory")
    (folder / PAGE_FILE).unlink(missing_ok=True)
    for name in ("data", "frames"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(SITE, folder, ignore=lambda *_: [PAGE_FILE], dirs_exist_ok=True)
    for kind, (size, make) in pages.pieces.items():
        for number in range(size):
            _write(folder, f"{kind}/{number}", make(number))
    every = range(len(pages.index.runs.columns))
    clips = range(len(pages.index.clips))
    for clip in track(clips, "clips", console=console, transient=True, disable=not console):
        pictures = partial(_pictures, folder, clip, decoder)
        _write(folder, f"tokens/{clip}", pages.all_tokens(clip, every, pictures))
    html = (SITE / PAGE_FILE).read_text(encoding="utf-8")
    policy = POLICY.replace("; frame-ancestors 'none'", "")  # not allowed in a meta tag
    policy = f'{_META}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    html = html.replace(_META, policy).replace(
        '<html lang="en">', '<html lang="en" data-export="1">'
    )
    # Last, so that an interrupted export cannot be opened.
    (folder / PAGE_FILE).write_text(html, encoding="utf-8")
    return folder / PAGE_FILE


def _write(folder: Path, name: str, value: object) -> None:
    """Write a piece of data as a script, with escaped tags."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")
    path = folder / "data" / f"{name}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f'tangoData("{name}",{text});\n'.encode())


def _pictures(
    folder: Path, clip: int, decoder: FrameDecoder, view: View, column: int
) -> tuple[list[str], str | None]:
    """Write the pictures of a view; returns their names, and the reason if there are none."""
    try:
        made = decoder.sprites(view)
    except NotShownError as error:
        return [], str(error)
    names = [f"frames/{clip}-{column}-{part}.jpg" for part in range(len(made))]
    (folder / "frames").mkdir(exist_ok=True)
    for file, picture in zip(names, made, strict=True):
        (folder / file).write_bytes(picture)
    return names, None
