"""The viewer's local server: the page, its data as JSON, and frames as pictures.

A content security policy forbids loading anything from other hosts. Requests with another host name
are rejected, which protects against DNS rebinding.
"""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from jobs.viewer.frames import FrameDecoder, NotShownError, View
from jobs.viewer.pages import Pages

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
