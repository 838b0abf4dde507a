"""The viewer's local server: the page, its data as JSON, and frames as pictures.

A content security policy forbids loading anything from other hosts. Requests with another host name
are rejected, which protects against DNS rebinding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs.viewer.clips import ClipPages, NoSuchClipError, num_sprites, seen_to_json, sprites_of
from jobs.viewer.contents import piece
from jobs.viewer.frames import FrameDecoder, FramesMissingError
from tango_core.errors import InputError

SITE = Path(__file__).parent / "site"
HOSTS = ["127.0.0.1", "localhost"]

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


class _Headers:
    """Middleware that adds security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                kept = [pair for pair in message["headers"] if pair[0].decode() not in _HEADERS]
                message = {**message, "headers": [*kept, *extra]}
            await send(message)

        await self._app(scope, receive, with_headers)


def build_app(pages: ClipPages, decoder: FrameDecoder) -> Starlette:
    """The server's application.

    Args:
        pages: Provides the data.
        decoder: Decodes the frames.
    """

    def data(request: Request) -> Response:
        return JSONResponse(
            piece(pages, request.path_params["kind"], request.path_params["number"])
        )

    def tokens(request: Request) -> Response:
        number = request.path_params["clip"]
        columns = _columns(request, len(pages.index.runs.columns))
        seen = pages.seen(number, columns)
        urls = [
            [f"frames/{number}/{view.column}/{part}.jpg" for part in range(num_sprites(view))]
            for view in seen.views
        ]
        return JSONResponse(seen_to_json(seen, urls, [None] * len(urls)))

    def frames(request: Request) -> Response:
        column, part = request.path_params["column"], request.path_params["part"]
        if column >= len(pages.index.runs.columns):
            raise NoSuchClipError(f"there is no column {column}")
        seen = pages.seen(request.path_params["clip"], [column])
        if not seen.views:
            raise FramesMissingError(str(seen.columns[column]))
        made = sprites_of(decoder, seen.views[0])
        if part >= len(made):
            raise NoSuchClipError(f"there are {len(made)} pictures")
        return Response(made[part], media_type="image/jpeg")

    routes = [
        Route("/data/tokens/{clip:int}", tokens),
        Route("/data/{kind}/{number:int}", data),
        Route("/frames/{clip:int}/{column:int}/{part:int}.jpg", frames),
        Mount("/", StaticFiles(directory=SITE, html=True)),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(_Headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
        ],
        exception_handlers={
            ValueError: _error_reply(400),
            NoSuchClipError: _error_reply(404),
            FramesMissingError: _error_reply(404),
        },
    )


def _columns(request: Request, there: int) -> list[int]:
    """Column indices of a request."""
    given = request.query_params.get("columns", "")
    numbers = [int(one) for one in given.split(",") if one.isascii() and one.isdigit()]
    if not numbers or any(number >= there for number in numbers):
        raise InputError(f"columns {given!r}: give numbers from 0 to {there - 1} with commas")
    return list(dict.fromkeys(numbers))


def _error_reply(status: int) -> Callable[[Request, Any], Response]:
    """Exception handler whose response is the error message."""

    def answer(request: Request, error: Exception) -> Response:
        return PlainTextResponse(" ".join(str(error).split()), status)

    return answer
