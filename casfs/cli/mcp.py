"""The MCP server for agents."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click

from casfs.cli.common import open_store, step_secrets, store_root
from casfs.cli.output import echo
from casfs.errors import Failed, Usage
from casfs.system.extras import EXTRAS, install_line
from casfs.system.home import refuse_home_or_root

KEY_FILE = "mcp.json"


@click.command()
@click.option("--allow-write", is_flag=True, help="Also checkpoint, restore, start, answer, fork.")
@click.option(
    "--dir", "folders", metavar="DIR", multiple=True, help="Where --allow-write may write (here)."
)
@click.option("--with-local", is_flag=True, help="Show private and derived files, too.")
@click.option("--http", is_flag=True, help="Serve HTTP on 127.0.0.1, not stdin and stdout.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port (default: as last time, or any).")
def mcp(
    allow_write: bool, folders: tuple[str, ...], with_local: bool, http: bool, port: int | None
) -> None:
    """Serve the store to an agent by the Model Context Protocol.

    It reads the store: search, threads, steps, files, diffs; and puts content. With --http the
    address and the token are printed, which every request must have.

    \b
    casfs mcp
    casfs mcp --allow-write --dir ./project
    casfs mcp --http --port 8765
    """
    if (folders and not allow_write) or (port is not None and not http):
        raise Usage("--dir goes with --allow-write, --port with --http")
    places = [Path(os.path.realpath(folder)) for folder in folders or (".",)] if allow_write else []
    for directory in places:
        refuse_home_or_root(directory, force=None)
    root = store_root()
    try:
        import trio

        from casfs.mcp import stdio
        from casfs.mcp.reading import Reading
        from casfs.mcp.server import Server
        from casfs.mcp.writing import Writing

        if http:
            from casfs.web import access
            from casfs.web import server as web_server
    except ModuleNotFoundError as error:
        needed = (*EXTRAS["mcp"].modules, *EXTRAS["web"].modules)
        if (error.name or "").partition(".")[0] not in needed:
            raise
        line = install_line("mcp", "web") if http else install_line("mcp")
        raise Failed(f"no module {error.name}; run `{line}`") from None
    is_own = Path(os.environ.get("CASFS_STORE", "")) == root
    thread = os.environ.get("CASFS_THREAD", "") if is_own else ""
    with open_store(with_local) as store:
        kind = Writing if allow_write else Reading
        server = Server(kind(store, thread, step_secrets(), places))
        if not http:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)  # a thread waits for stdin
            trio.run(stdio.serve, server)
            return
        key = access.load(root, KEY_FILE)
        with web_server.listen(port or 0, key.port) as listener:
            key = access.Key(key.token, listener.getsockname()[1])
            access.save(root, key, KEY_FILE)
            said = f"http://{web_server.HOST}:{key.port}/mcp\nAuthorization: Bearer {key.token}"
            app = access.Access(server.streamable_http_app(), key, programs=True)
            trio.run(web_server.run, app, listener, lambda: echo(said))
