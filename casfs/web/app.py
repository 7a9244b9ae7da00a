"""The application: every route, what serves it, and the order of its layers."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from casfs.web import (
    actions,
    answer,
    board,
    compare,
    download,
    node,
    review,
    rewind,
    search,
    step,
    store,
    thread,
    trace,
    workflow,
)
from casfs.web.access import Access, Key
from casfs.web.events import Follower
from casfs.web.events import endpoint as events
from casfs.web.rendering import TYPES
from casfs.web.site import IMMUTABLE, Handler, Site, endpoint, error_page

# path, handler, name; one row for each screen and each form
PAGES: list[tuple[str, Handler, str]] = [
    ("/", board.show, "board"),
    ("/threads/{id}", thread.show, "thread"),
    ("/threads/{id}/steps/{index}", step.show, "step"),
    ("/threads/{id}/steps/{index}/trace", trace.show, "trace"),
    ("/threads/{id}/answer", answer.show, "answer"),
    ("/threads/{id}/rewind", rewind.show, "rewind"),
    ("/threads/{id}/review", review.show, "review"),
    ("/compare", compare.show, "compare"),
    ("/nodes/{hash}", node.show, "node"),
    ("/search", search.show, "search"),
    ("/store", store.show, "store"),
    ("/workflows", workflow.show_list, "workflows"),
    ("/workflows/{name:path}", workflow.show, "workflow"),
]
DOWNLOADS: list[tuple[str, Handler, str]] = [
    ("/blobs/{hash}", download.blob, "blob"),
    ("/trees/{hash}.tar.zst", download.tree, "tree"),
]
ACTIONS: list[tuple[str, Handler, str]] = [
    ("/threads/{id}/resume", actions.resume, "resume"),
    ("/threads/{id}/cancel", actions.cancel, "cancel"),
    ("/threads/{id}/label", actions.label, "label"),
    ("/threads/{id}/answer", answer.send, "send"),
    ("/threads/{id}/rewind", rewind.send, "rewound"),
    ("/threads/{id}/review", review.send, "reviewed"),
    ("/threads/{id}/fork", actions.fork, "fork"),
    ("/threads/{id}/compact", actions.compact, "compact"),
    ("/checkpoints", actions.promote, "promote"),
]


def build(site: Site, follower: Follower, key: Key) -> ASGIApp:
    """Returns the whole application. The follower's task is run by the caller."""

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        data = site.rendering.static.get(name)
        if data is None or request.url.path != site.rendering.static_url(name):
            raise HTTPException(404)
        tag = f'"{request.path_params["hash"]}"'
        headers = {"ETag": tag, "Cache-Control": IMMUTABLE}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=TYPES[name.rpartition(".")[2]], headers=headers)

    async def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_page(site, error.status_code, error.detail)

    routes = [
        Route(path, endpoint(site, handler), name=name)
        for path, handler, name in [*PAGES, *DOWNLOADS]
    ]
    routes += [
        Route(path, endpoint(site, handler), name=name, methods=["POST"])
        for path, handler, name in ACTIONS
    ]
    routes += [
        Route("/events", events(site, follower), name="events"),
        Route("/static/{hash}/{name}", static, name="static"),
    ]
    return Access(Starlette(routes=routes, exception_handlers={HTTPException: failed}), key)
