"""The web server's process: it listens on loopback or a unix socket until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from starlette.types import ASGIApp

from casfs.backend.derived import follow
from casfs.errors import Failed
from casfs.store.store import Store
from casfs.system.log import to_file
from casfs.web import access, app, connections
from casfs.web.events import Follower
from casfs.web.site import Site

HOST = "127.0.0.1"
GRACE_S = 3.0  # for answers under way when the server is stopped
SILENT_S = 10
BACKLOG = 4096  # where it is full, a client tries again only after a second


def serve(
    root: Path,
    port: int,
    path: Path | None,
    ready: Callable[[str], None],
    *,
    with_local: bool = False,
) -> None:
    """Serves the store at `root` until SIGINT or SIGTERM. `port` 0: the last one, else any free
    one; `path`: a unix socket in place of a port; `ready` gets the address with the key;
    `with_local`: what local trees alone reach is shown, too. Raises Failed, and as opening the
    store does."""
    with Store.open(root) as store:
        follow(store.backend)
        key = access.load(root)
        listener = _listen_unix(path) if path else listen(port, key.port)
        with listener:
            if path is None:
                port = listener.getsockname()[1]
                key = access.Key(key.token, port)
            access.save(root, key)
            where = f"http://{HOST}:{port}/" if path is None else "http://localhost/"
            try:
                site = Site(store.shown(with_local=with_local), to_file(root / "log" / "web.jsonl"))
                trio.run(_run, site, key, listener, lambda: ready(f"{where}?token={key.token}"))
            finally:
                if path is not None:
                    path.unlink(missing_ok=True)


async def _run(
    site: Site, key: access.Key, listener: socket.socket, ready: Callable[[], None]
) -> None:
    follower = Follower(site.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.run)
        nursery.start_soon(site.threads.warm)
        await run(app.build(site, follower, key), listener, ready=ready, stopping=follower.end)
        nursery.cancel_scope.cancel()


async def run(
    application: ASGIApp,
    listener: socket.socket,
    ready: Callable[[], None],
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serves an application until SIGINT or SIGTERM; then calls `stopping`, and waits GRACE_S."""
    config = Config()
    config.errorlog = None
    config.include_server_header = False
    asgi = ASGIWrapper(cast(Any, application))  # its types of ASGI are not Starlette's
    context = WorkerContext(None)
    state: LifespanState = {}
    lifespan = Lifespan(asgi, config, state)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            async with trio.open_nursery() as served, trio.open_nursery() as accepting:

                def start(client: socket.socket) -> None:
                    connection = connections.Connection(
                        client, asgi, config, context, ConnectionState(state.copy())
                    )
                    served.start_soon(connection.run)

                accepting.start_soon(connections.accept, listener, start)
                ready()
                await anext(aiter(signals))
                accepting.cancel_scope.cancel()
                stopping()
                await context.terminated.set()
                served.cancel_scope.deadline = trio.current_time() + GRACE_S
            await lifespan.wait_for_shutdown()
            nursery.cancel_scope.cancel()


def listen(port: int, last: int) -> socket.socket:
    """Returns a listening socket on loopback. Raises Failed."""
    for wanted in (port,) if port or not last else (last, 0):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel keeps who says nothing: that takes no descriptor.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SILENT_S)
        try:
            listener.bind((HOST, wanted))
            listener.listen(BACKLOG)
            return listener
        except OSError as error:
            listener.close()
            fault = error
    raise Failed(f"cannot listen on {HOST}, port {port}: {fault.strerror}")


def _listen_unix(path: Path) -> socket.socket:
    """Returns a listening unix socket of mode 600. Raises Failed."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):  # of a server that was killed
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        raise Failed(f"cannot listen at {path}: {error.strerror or error}") from None


def _answers(path: Path) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        return True
    return False
