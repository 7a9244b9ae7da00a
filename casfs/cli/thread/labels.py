"""Commands that name, archive and pin threads: by the daemon, or on the store where none runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from casfs.cli.common import open_store, store_root
from casfs.cli.output import echo_lines, json_option
from casfs.errors import Usage
from casfs.system import daemon_socket
from casfs.system.files import closing_fd
from casfs.threads import lookup
from casfs.threads.threads import ThreadId


@click.command()
@click.argument("id")
@click.argument("name", required=False)
@click.option("--undo", "is_undo", is_flag=True, help="Take the name away.")
@json_option
def rename(id: str, name: str | None, is_undo: bool) -> None:
    """Give a thread a name, usable in place of its id.

    \b
    casfs thread rename 01K2 parser-fix
    casfs thread rename parser-fix --undo
    """
    if is_undo == (name is not None):
        raise Usage("give NAME or --undo")
    if name == "":
        raise Usage("a name has at least one character; --undo takes it away")
    _label([id], "name taken away" if is_undo else f"named {name}", name=name or "")


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--undo", "is_undo", is_flag=True, help="List them again.")
@json_option
def archive(ids: tuple[str, ...], is_undo: bool) -> None:
    """Leave threads out of lists and of the board; nothing is deleted.

    `casfs thread list --archived` has them still. The next prompt of a session ends it.

    \b
    casfs thread archive 01K2 parser-fix
    casfs thread archive 01K2 --undo
    """
    _label(ids, "listed again" if is_undo else "archived", archived=not is_undo)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--undo", "is_undo", is_flag=True, help="Let them go.")
@json_option
def pin(ids: tuple[str, ...], is_undo: bool) -> None:
    """Have threads first in lists and on the board.

    \b
    casfs thread pin 01K2
    casfs thread pin 01K2 --undo
    """
    _label(ids, "no longer pinned" if is_undo else "pinned", pinned=not is_undo)


def _label(texts: Sequence[str], done: str, **labels: Any) -> None:
    root = store_root()
    with open_store() as store:
        ids = [lookup.find(store, text).id for text in texts]
    for id in ids:
        if daemon_socket.runs(root):
            daemon_socket.request(root, "label", id=id, **labels)
        else:
            _label_on_store(root, id, labels)
    echo_lines({"ids": ids}, [f"{id} {done}" for id in ids])


def _label_on_store(root: Path, id: ThreadId, labels: Mapping[str, Any]) -> None:
    from engine.threads.labels import set_idle

    # So that no daemon starts meanwhile and runs the thread.
    lock = daemon_socket.lock(root)
    with closing_fd(lock), open_store() as store:
        set_idle(store, id, **labels)
