"""The web server's process: it listens on loopback or a unix socket until SIGINT or SIGTERM."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import trio

from casfs.store import Store
from casfs.system.log import to_file
from casfs.web import access, app, serving
from casfs.web.events import Follower
from casfs.web.site import Site


def serve(root: Path, port: int, path: Path | None, ready: Callable[[str], None]) -> None:
    """Serves the store at `root` until SIGINT or SIGTERM. `port` 0: the last one, else any free
    one; `path`: a unix socket in place of a port; `ready` gets the address with the key. Raises
    Failed, and as opening the store does."""
    with Store.open(root) as store:
        key = access.load(root)
        listener = serving.listen_unix(path) if path else serving.listen(port, key.port)
        with listener:
            if path is None:
                port = listener.getsockname()[1]
                key = access.Key(key.token, port)
            access.save(root, key)
            where = f"http://{serving.HOST}:{port}/" if path is None else "http://localhost/"
            try:
                site = Site(store, to_file(root / "log" / "web.jsonl"))
                trio.run(_run, site, key, listener, lambda: ready(f"{where}?token={key.token}"))
            finally:
                if path is not None:
                    path.unlink(missing_ok=True)


async def _run(
    site: Site, key: access.Key, listener: socket.socket, ready: Callable[[], None]
) -> None:
    follower = Follower(site.store)
    application = app.build(site, follower, key)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.run)
        nursery.start_soon(site.threads.warm)
        await serving.serve(application, listener, ready, follower.end)
        nursery.cancel_scope.cancel()
