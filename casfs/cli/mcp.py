"""The MCP server for agents."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from casfs.cli.common import refuse_home_or_root, step_secrets, store_root
from casfs.cli.output import echo_line
from casfs.errors import Failed, Usage

if TYPE_CHECKING:
    from casfs.mcp.server import Server

KEY_FILE = "mcp.json"


@click.command()
@click.option("--allow-write", is_flag=True, help="Also checkpoint, restore, start, answer, fork.")
@click.option(
    "--dir", "folders", metavar="DIR", multiple=True, help="Where --allow-write may write (here)."
)
@click.option("--http", is_flag=True, help="Serve HTTP on 127.0.0.1, not stdin and stdout.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port (default: as last time, or any).")
@click.pass_context
def mcp(
    ctx: click.Context,
    allow_write: bool,
    folders: tuple[str, ...],
    http: bool,
    port: int | None,
) -> None:
    """Serve the store to an agent by the Model Context Protocol.

    It reads the store: search, threads, steps, files, diffs; and puts content. With --http the
    address and the token are printed, which every request must have.

    \b
    casfs mcp
    casfs mcp --allow-write --dir ./project
    casfs mcp --http --port 8765
    """
    if folders and not allow_write:
        raise Usage("--dir goes with --allow-write")
    if port is not None and not http:
        raise Usage("--port goes with --http")
    root = store_root(ctx)
    try:
        import trio

        from casfs.mcp.reading import Reading
        from casfs.mcp.server import Server
        from casfs.mcp.writing import Writing
        from casfs.store import Store
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "pydantic"):
            raise
        raise Failed(f"no module {error.name}; run `pip install casfs[mcp]`") from None
    thread, step = (os.environ.get(f"CASFS_{name}", "") for name in ("THREAD", "STEP"))
    if Path(os.environ.get("CASFS_STORE", "")) != root:
        thread = step = ""
    places = [Path(os.path.realpath(one)) for one in folders or (".",)] if allow_write else []
    for place in places:
        refuse_home_or_root(place, None)
    with Store.open(root) as store:
        kind = Writing if allow_write else Reading
        tools = kind(store, thread, int(step) if step.isdigit() else None, step_secrets(), places)
        if http:
            _serve_http(root, Server(tools), port or 0)
        else:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)  # a thread waits for stdin
            trio.run(Server(tools).run_stdio_async)


def _serve_http(root: Path, server: Server, port: int) -> None:
    import trio

    from casfs.web import access, serving

    key = access.load(root, KEY_FILE)
    with serving.listen(port, key.port) as listener:
        key = access.Key(key.token, listener.getsockname()[1])
        access.save(root, key, KEY_FILE)
        url = f"http://{serving.HOST}:{key.port}/mcp"

        def ready() -> None:
            echo_line(url)
            echo_line(f"Authorization: Bearer {key.token}")

        application = access.Bearer(server.streamable_http_app(), key)
        trio.run(serving.serve, application, listener, ready)
