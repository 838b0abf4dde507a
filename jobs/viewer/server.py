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

from jobs.viewer.frames import FrameDecoder, FramesMissingError
from jobs.viewer.pages import NoSuchPieceError, Pages
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


def build_app(pages: Pages, decoder: FrameDecoder) -> Starlette:
    """The server's application.

    Args:
        pages: Provides the data.
        decoder: Decodes the frames.
    """
    num_columns = len(pages.index.runs.columns)

    def data(request: Request) -> Response:
        return JSONResponse(pages.piece(**request.path_params))

    def tokens(request: Request) -> Response:
        number = request.path_params["clip"]
        given = request.query_params.get("columns", "")
        columns = [int(one) for one in given.split(",") if one.isascii() and one.isdigit()]
        if not columns or max(columns) >= num_columns:
            limit = f"give numbers from 0 to {num_columns - 1} with commas"
            raise InputError(f"columns {given!r}: {limit}")
        seen = pages.seen(number, dict.fromkeys(columns))
        urls = [
            [f"frames/{number}/{view.column}/{part}.jpg" for part in range(view.num_sprites)]
            for view in seen.views
        ]
        return JSONResponse(seen.to_json(urls, [None] * len(urls)))

    def frames(request: Request) -> Response:
        column, part = request.path_params["column"], request.path_params["part"]
        if column >= num_columns:
            raise NoSuchPieceError(f"there is no column {column}")
        seen = pages.seen(request.path_params["clip"], [column])
        if not seen.views:
            raise FramesMissingError(str(seen.columns[column]))
        made = seen.views[0].sprites(decoder)
        if part >= len(made):
            raise NoSuchPieceError(f"there are {len(made)} pictures")
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
            NoSuchPieceError: _error_reply(404),
            FramesMissingError: _error_reply(404),
        },
    )


def _error_reply(status: int) -> Callable[[Request, Any], Response]:
    """Exception handler whose response is the error message."""

    def answer(request: Request, error: Exception) -> Response:
        return PlainTextResponse(" ".join(str(error).split()), status)

    return answer
