"""The state of a store: its processes (status) and its content in figures (stats)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from casfs import config
from casfs.backend.capabilities import SharedByMachines, Tiered
from casfs.backend.derived import count_by_type, total_stored
from casfs.checkpoints import watch_list
from casfs.cli.common import open_store
from casfs.cli.daemon import daemon_lines
from casfs.cli.json_values import record, times
from casfs.cli.output import echo, echo_json, echo_lines, json_option, wants_json, warn
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.system.clock import local_time
from casfs.system.sizes import readable
from casfs.version import VERSION

ATTACHED = "attached.json"  # of a store (`casfs.attach.attachments`)
ASIDE = "spool/aside"  # (`casfs.attach.spool`)
NOTHING_ATTACHED: dict[str, Any] = {
    "attached": [],
    "elsewhere": [],
    "unheard": [],
    "paused": [],
    "waiting": 0,
    "setAside": 0,
    "lostFirstAt": None,
    "lostLastAt": None,
}


@click.command()
@click.argument("directory", required=False)
@click.option("--against", metavar="TREE", help="Compare DIRECTORY with this tree.")
@json_option
def status(directory: str | None, against: str | None) -> None:
    """Print what has changed in DIRECTORY since it was restored or recorded; without it, where the
    store is, how many threads its daemon runs, and where it is mounted.

    \b
    casfs status .
    casfs status ./project --against work~1
    """
    if directory is not None or against is not None:
        _directory_status(directory or ".", against=against)
    else:
        _store_status()


def _directory_status(directory: str, against: str | None) -> None:
    from casfs.cli import compare
    from casfs.cli.diff_output import change_json, print_changes
    from casfs.trees import recorded_state, tree
    from casfs.trees.diff import renames

    with open_store() as store:
        comparison = compare.against(store, directory, against)
        name = compare.name_of(store, comparison.old.tree, None if against else comparison.known)
        states = (comparison.old, comparison.new)
        old, new = (recorded_state.with_private(comparison.store, state) for state in states)
        private = {
            path
            for state in states
            for path in recorded_state.private_files(comparison.store, state)
        }
        changes = renames.detect(
            comparison.store, tree.changes(comparison.store, old, new=new, paths=comparison.paths)
        )
    if wants_json():
        values = [change_json(comparison.store, change, private) for change in changes]
        compared = {
            "directory": str(comparison.directory),
            "tree": comparison.old.tree,
            "name": name,
        }
        echo_json({**compared, "changes": values})
        return
    echo(f"{comparison.directory} compared with {name or comparison.old.tree}")
    print_changes(comparison.store, iter(changes), private=private)
    if not changes:
        echo("no changes")


def _store_status() -> None:
    from casfs.mount import registry
    from casfs.system import daemon_socket, store_mounts

    with open_store() as store:
        backend = store.backend
        shared = times(backend.state()) if isinstance(backend, SharedByMachines) else None
        cache = backend.local if isinstance(backend, SharedByMachines) else backend
        total = total_stored(cache.blobs)
        serving = {str(mount.mount): mount for mount in registry.listing(store.root)}
        value = {
            "store": str(store.root),
            "version": VERSION,
            "daemon": daemon_socket.status(store.root),
            "watches": times(watch_list.listing(store)),
            "agents": times(agents := _attached(store)),
            "mounts": [str(point) for point in store_mounts.mounted(store.root)],
            "serving": [record(mount) for mount in serving.values()],
            "blobs": total.blobs,
            "bytes": total.bytes,
            "databaseBytes": (store.root / "store.db").stat().st_size,
            "configFault": _config_fault(store.root),
            "shared": shared,
        }
        is_unreachable = shared is not None and shared["database"]["fault"] is not None
        tree_name = None if wants_json() or is_unreachable else _tree_here(store)
    echo_lines(value, _store_lines(value, serving))
    if tree_name is not None:
        echo(f"this directory holds {tree_name}; see casfs status .")
    if not wants_json():
        for warning in _warnings(value):
            warn(warning)
        _warn_of_agents(agents)


def _attached(store: Store) -> dict[str, Any]:
    """Returns the outside agents that are attached; loads nothing where none is."""
    # Reports that could not be read stay when nothing is attached any more.
    if not (store.root / ATTACHED).exists() and not (store.root / ASIDE).exists():
        return NOTHING_ATTACHED
    from casfs.transcripts import unheard

    return unheard.listing(store, os.environ)


def _warn_of_agents(agents: dict[str, Any]) -> None:
    if agents is not NOTHING_ATTACHED:
        from casfs.attach import state

        for warning in state.warnings(agents):
            warn(warning)


def _tree_here(store: Store) -> str | None:
    """Returns the name or hash of the tree that the working directory, or the nearest above it, is
    known to hold; reads no file of it."""
    from casfs.cli import compare
    from casfs.workspaces import directories

    try:
        known = directories.find(store, Path.cwd())
    except (CasfsError, OSError):  # an interrupted restore; a deleted directory
        return None
    return None if known is None else compare.name_of(store, known.root, known) or known.root


def _config_fault(root: Path) -> str | None:
    try:
        config.load(root, os.environ)
    except CasfsError as error:
        return str(error)
    return None


def _store_lines(value: dict[str, Any], serving: Mapping[str, object]) -> Iterator[str]:
    yield f"store   {value['store']}"
    size = f"{readable(value['bytes'])} in {value['blobs']} blobs"
    cache = "a local cache: " * bool(value["shared"])
    yield f"        {cache}{size}, database {readable(value['databaseBytes'])}"
    yield from _shared_lines(value["shared"]) if value["shared"] else ()
    yield from daemon_lines(value["daemon"]) if value["daemon"] else ("daemon  none",)
    for watch in value["watches"]:
        yield f"watch   {watch['directory']} as {watch['checkpoint'] or watch['name']}"
        yield from (f"        {watch['error']}",) if watch["error"] else ()
    for attached in value["agents"]["attached"]:
        yield f"agent   {_agent_text(attached)}"
    for point in value["mounts"]:
        yield f"mount   {point}"
        if point in serving:
            yield f"        {serving[point]}"


def _agent_text(attached: Mapping[str, Any]) -> str:
    text = f"{attached['agent']} in {attached['directory'] or 'all projects'}, "
    if not attached["lastSpokeAt"]:
        return text + "has not spoken yet"
    text += "1 session" if attached["sessions"] == 1 else f"{attached['sessions']} sessions"
    if attached["directory"] is None:
        text += f" in {attached['projects']}"
    return f"{text}, last spoke {local_time(attached['lastSpokeAt'])}"


def _shared_lines(shared: dict[str, Any]) -> Iterator[str]:
    database = shared["database"]
    lag = shared["lag"]
    yield f"shared  {database['url']}"
    if lag:
        yield f"        PostgreSQL {database['version']}, a round trip {database['roundTripMs']} ms"
        since = f"a transaction open for {lag['oldestTransactionS']:.1f} s"
        yield f"        {lag['unreadMoves']} moves not readable yet, {since}"
    yield f"objects {shared['objects']['url']}"
    for machine in shared["machines"]:
        location = f"{machine['host']}:{machine['store']}{' (here)' * machine['here']}"
        daemon = f"daemon runs {machine['running']} threads" if machine["daemon"] else "no daemon"
        yield f"machine {machine['id']} {location}, {daemon}, seen {local_time(machine['seenAt'])}"


def _warnings(value: dict[str, Any]) -> Iterator[str]:
    if value["configFault"]:
        yield value["configFault"]
    if value["daemon"] and value["daemon"]["version"] != VERSION:
        yield "the daemon runs another version; `casfs daemon restart` starts the current program"
    for part in ("database", "objects") if value["shared"] else ():
        if fault := value["shared"][part]["fault"]:
            yield fault
    for mount in value["serving"]:
        if mount["version"] != VERSION:
            yield f"{mount['mount']} runs another version; `casfs mount --replace {mount['mount']}`"


@click.command()
@json_option
def stats() -> None:
    """Print how much is stored, by type, and the space that it takes.

    \b
    casfs stats --json
    """
    with open_store() as store:
        value = _stats(store)
    if wants_json():
        echo_json(value)
        return
    for name in ("blobs", "bytes", "files", "heads", "databaseBytes"):
        echo(f"{name:16} {value[name]}")
    for kind, room in value["packs"].items():
        echo(f"{f'{kind} packs':16} {room['files']}, {room['blobs']} blobs, {room['bytes']} bytes")
    for name, count in value["types"].items():
        echo(f"  {name:14} {count}")


def _stats(store: Store) -> dict[str, Any]:
    by_type: dict[str, int] = {}
    for hash, count in count_by_type(store.blobs).items():
        name = store.registry.name(hash)
        by_type[name] = by_type.get(name, 0) + count
    packs = store.backend.tiers.room() if isinstance(store.backend, Tiered) else {}
    return {
        **record(total_stored(store.blobs)),
        "heads": sum(1 for _ in store.heads.list()),
        "databaseBytes": (store.root / "store.db").stat().st_size,
        "packs": {kind: record(room) for kind, room in packs.items()},
        "types": dict(sorted(by_type.items())),
    }
