"""The live dashboard."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from casfs.cli.common import check_store, store_root
from casfs.cli.output import echo_json, echo_line, json_option, wants_json
from casfs.errors import Failed, Usage
from casfs.system.extras import EXTRAS, install_line
from casfs.system.files import replacing


@click.command()
@click.argument("directory", required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of 127.0.0.1 (default: the last one, else any free one).",
)
@click.option("--socket", "path", metavar="PATH", help="Listen at a unix socket instead.")
@click.option("--with-local", is_flag=True, help="Show private and derived files, too.")
@click.option("--open", "opened", is_flag=True, help="Open it in the browser.")
@json_option
def web(
    directory: str | None, port: int | None, path: str | None, with_local: bool, opened: bool
) -> None:
    """Serve the live dashboard of the store, or of the one in DIRECTORY, until it is interrupted.

    Prints the address, which has the key to it: only who knows it may look. It reads the store;
    forms need the daemon.

    \b
    casfs web --open
    casfs web --port 8080
    """
    if path is not None and (opened or port is not None):
        raise Usage("--socket excludes --port and --open")
    root = store_root() if directory is None else Path(directory).absolute()
    _serve(root, port or 0, path=path, with_local=with_local, opens=opened)


def serve_page(page: str) -> None:
    """Serves the dashboard and opens a page of it, a path, in the browser, until it is
    interrupted."""
    _serve(store_root(), opens=True, page=page)


def _serve(
    root: Path,
    port: int = 0,
    path: str | None = None,
    *,
    with_local: bool = False,
    opens: bool = False,
    page: str = "",
) -> None:
    check_store(root)

    def ready(url: str) -> None:
        url += f"&page={quote(page)}" if page else ""
        if wants_json():
            echo_json({"url": url}, pretty=False)
        else:
            echo_line(url if path is None else f"{url} at {path}")
        if opens:
            open_privately(root / "web.html", url)

    try:
        from casfs.web import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS["web"].modules:
            raise
        raise Failed(f"no module {error.name}; run `{install_line('web')}`") from None
    where = None if path is None else Path(path).absolute()
    server.serve(root, port, path=where, ready=ready, with_local=with_local)


def open_privately(file: Path, url: str) -> None:
    """Opens an address in the browser by a file of the store: arguments of programs can be read by
    everybody on this machine."""
    import threading
    import webbrowser

    with replacing(file) as page:
        page.write(f'<meta http-equiv="refresh" content="0; url={url}">'.encode())
    # Some browsers are waited for.
    threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
