"""What programs in a worktree find in their environment: its name, a block of ports of its own, and
an `.env` by the project's template.

Two worktrees of one project run the same servers at once, so each has PORTS_EACH ports that no
other worktree of the store has. A project says in `.env.worktree` which variables of its `.env`
have other values in a worktree:

    PORT={port}
    DATABASE_URL=postgres://localhost:{port+1}/{name}

{port} is the first of the ports, {port+N} one of the others; {name} and {branch} are those of the
worktree.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from casfs.digest import hash_bytes
from casfs.errors import Failed, Invalid
from casfs.store.nodes.directory import Entry, File, Properties
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot.stat_cache import NO_BLOB
from casfs.worktrees import project_files

PORTS_EACH = 20
# Below those that the kernel gives to connections (ip_local_port_range), above those of services.
FIRST_PORT = 20_000
BLOCKS = range(450)
THREAD_BLOCKS = range(450, 600)  # of those that the daemon runs, and knows alone
NAME_VARIABLE = "CASFS_WORKTREE"
PORT_VARIABLE = "CASFS_PORT_BASE"
ENV = b".env"
TEMPLATE = b".env.worktree"
PRIVATE_MODE = 0o600
MAX_OFFSET_DIGITS = 4
PLACEHOLDER = re.compile(r"\{(port|name|branch)(?:\+(\d+))?\}")
ASSIGNMENT = re.compile(r"""[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(["']?)""")
LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")


def free_ports(taken: Collection[int], path: Path, *, of_threads: bool = False) -> int:
    """Returns the first port of a block that is in none of the blocks `taken`, and in which nothing
    listens. It begins to look by the worktree's path, so that stores of other users, of which
    nothing is known here, rarely begin with the same. Raises Failed where there is none."""
    blocks = THREAD_BLOCKS if of_threads else BLOCKS
    start = int(hash_bytes(os.fsencode(path))[:8], 16)
    for number in range(len(blocks)):
        base = FIRST_PORT + blocks[(start + number) % len(blocks)] * PORTS_EACH
        if base not in taken and not any(_is_used(base + port) for port in range(PORTS_EACH)):
            return base
    raise Failed("no block of ports is free; remove a worktree (`casfs worktree list --all`)")


def _is_used(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers bind: what has just ended does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind(("", port))
            return False
    return True


def variables(name: str, port: int) -> dict[str, str]:
    return {NAME_VARIABLE: name, PORT_VARIABLE: str(port)}


def with_env(
    store: Store, state: RecordedState, *, name: str, branch: str, port: int
) -> RecordedState:
    """Returns the state with an `.env` by its template; the same where it has none. The `.env` is
    where it was: work, or kept here only. Raises Invalid for a template, or an `.env`, that is not
    one."""
    template = project_files.text(store, state.full, TEMPLATE)
    if template is None:
        return state
    values = {"name": name, "branch": branch, "port": str(port)}
    text = merged(project_files.text(store, state.full, ENV) or "", _filled(template, values))
    old = tree.find(store, state.full, ENV)
    is_work = old is not None and tree.find(store, state.tree, ENV) == old
    if not isinstance(old, File):
        old = File(ENV, NO_BLOB, properties=Properties(unix_mode=PRIVATE_MODE))
    with store.local_writes().batch() as batch:
        file = old._replace(digest=batch.put(text.encode("utf-8", "surrogateescape")))
        batch.commit()
    changes: dict[bytes, Entry | None] = {ENV: file}
    return project_files.edited(store, state, work=changes if is_work else {}, whole=changes)


def _filled(template: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, offset = match.groups()
        if offset is None:
            return values[name]
        if name != "port" or len(offset) > MAX_OFFSET_DIGITS or int(offset) >= PORTS_EACH:
            raise Invalid(
                f".env.worktree: {match[0]}: there are {{port}} to {{port+{PORTS_EACH - 1}}}"
            )
        return str(int(values["port"]) + int(offset))

    return PLACEHOLDER.sub(value, template)


def merged(text: str, overlay: str) -> str:
    """Returns the text of an `.env` with the variables of another one: in their lines, or at the
    end."""
    pieces = _assignments(text)
    positions = {name: number for number, (name, _) in enumerate(pieces) if name is not None}
    for name, piece in _assignments(overlay):
        if name is None:
            continue
        if name in positions:
            pieces[positions[name]] = name, piece
        else:
            pieces.append((name, piece))
    return "".join(piece if piece.endswith("\n") else f"{piece}\n" for _, piece in pieces)


def _assignments(text: str) -> list[tuple[str | None, str]]:
    """Returns the pieces of an `.env`, each of one line, or of several where a value is quoted;
    with the variable that it sets, if any."""
    pieces: list[tuple[str | None, str]] = []
    lines = iter(LINE.findall(text))
    for line in lines:
        match = ASSIGNMENT.match(line)
        if match is None:
            pieces.append((None, line))
            continue
        piece = line
        quote = match[2]
        while quote and not _is_closed(piece[match.end(2) :], quote):
            following = next(lines, None)
            if following is None:
                break
            piece += following
        pieces.append((match[1], piece))
    return pieces


def _is_closed(value: str, quote: str) -> bool:
    # In double quotes a backslash escapes one.
    plain = value.replace("\\\\", "").replace('\\"', "") if quote == '"' else value
    return quote in plain
