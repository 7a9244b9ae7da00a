"""Downloads: a blob as it is, a tree as a compressed tar. Neither is held in memory."""

from __future__ import annotations

import re
from collections.abc import Generator

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from casfs.digest import CHUNK, TreeHash
from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.system.zstd import compress_pieces
from casfs.trees import tarball
from casfs.web.events import until_disconnect
from casfs.web.site import Call, Site

UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
MAX_NAME_CHARS = 100
Pieces = Generator[bytes, None, None]


class Download(Response):
    """A file that the browser saves under a name, and never shows."""

    media_type = "application/octet-stream"

    def __init__(self, site: Site, name: str, pieces: Pieces, size: int | None = None) -> None:
        """`pieces`: each is made in a worker thread. Raises what the first one raises."""
        super().__init__()
        del self.headers["content-length"]
        if size is not None:
            self.headers["content-length"] = str(size)
        self.headers["content-disposition"] = f'attachment; filename="{safe_name(name)}"'
        self._site = site
        self._pieces = pieces
        self._first = next(pieces, b"")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_disconnect, receive, nursery.cancel_scope)
            try:
                await self._send(send, scope["method"] == "HEAD")
                sent = True
            except Exception as error:  # the connection is closed before the file is whole
                self._site.log("download failed", error=repr(error))
                raise
            finally:
                self._pieces.close()
            nursery.cancel_scope.cancel()
        if sent:  # Hypercorn lets go of the connection here: not cancelled
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, is_head: bool) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        piece = b"" if is_head else self._first
        while piece:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            limiter = self._site.limiter
            piece = await trio.to_thread.run_sync(next, self._pieces, b"", limiter=limiter)


def blob(call: Call) -> Response:
    """`name`: what the browser saves it as."""
    store = call.store
    hash = call.path["hash"]
    info = store.blobs.info([hash]).get(hash)
    if info is None:
        raise NotFound(f"no blob {hash} in this store")
    return Download(
        call.site, call.query.get("name") or hash, pieces=_read(store, hash), size=info.size
    )


def tree(call: Call) -> Response:
    hash = call.store.node(call.path["hash"], "directory").hash
    name = safe_name(call.query.get("name") or f"tree-{hash[:12]}")
    pieces = compress_pieces(tarball.pieces(call.store, TreeHash(hash), name))
    return Download(call.site, f"{name}.tar.zst", pieces)


def safe_name(text: str) -> str:
    """Returns a name of a file, from its path or any other text, that no system takes for more."""
    name = UNSAFE.sub("_", text.rpartition("/")[2]).lstrip(".")
    return name[-MAX_NAME_CHARS:] or "download"


def _read(store: Store, hash: str) -> Pieces:
    with store.blobs.open(hash) as source:
        while data := source.read(CHUNK):
            yield data
