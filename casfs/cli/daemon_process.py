"""The daemon's process, put together from the configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casfs import config
from casfs.cli import background
from casfs.errors import CasfsError
from casfs.system.log import Log, to_file

if TYPE_CHECKING:
    from casfs.store.store import Store
    from casfs.workspaces.strategies import TreeLocator
    from engine.runtime.workspace import Workspaces

GROWTH_SHARE = 0.1  # of the limit of turn trees


def serve_store(root: Path, report: background.Reporter, hold: bool) -> None:
    from casfs.system import daemon_socket
    from engine.processes import containment
    from engine.runtime.daemon import DaemonSettings, serve

    values = config.values(root, os.environ)
    path = daemon_socket.socket_path(root, os.environ)
    log = to_file(root / "log" / "daemon.jsonl")
    limit = values["runs.limit"]
    max_bytes = values["runs.max_workspace"] or None
    workspaces = replace(_workspaces(root, log), max_bytes=max_bytes)
    maintain = maintenance(values)

    def run(ready: Callable[[], None]) -> None:
        containment.set_defaults(_limits(values))
        extractor = None
        if values["extractor.model"]:
            from engine.llm.llm_extractor import from_settings

            extractor = from_settings(values, os.environ, log)
        settings = DaemonSettings(
            dict(os.environ),
            limit,
            log=log,
            maintenance=maintain,
            workspaces=workspaces,
            extractor=extractor,
            hold=hold,
            keep_waiting_s=values["runs.keep_waiting"],
        )
        serve(root, path, settings, ready)

    background.serve(run, report)


def _limits(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of limits as a role has them; 0 and an empty text are for none."""
    names = {"memory": "memory", "processes": "processes", "cpu_s": "cpuS"}
    limits = {theirs: values[f"limits.{ours}"] for ours, theirs in names.items()}
    switches = {name: values[f"limits.{name}"] for name in ("network", "enforce")}
    return {name: limit for name, limit in limits.items() if limit} | switches


def _workspaces(root: Path, log: Log) -> Workspaces:
    """Chooses the threads' workspaces: overlays as root, which mounting one requires, copies
    otherwise. The store is mounted only where the kernel cannot show a tree by itself."""
    from casfs.cli import implicit_mount
    from casfs.workspaces import desk, strategies, strategy_choice
    from engine.runtime.workspace import COPYING, Workspaces

    if strategy_choice.unavailable(strategies.STRATEGIES[strategies.OVERLAY]) is not None:
        return COPYING

    def trees(store: Store) -> TreeLocator:
        return implicit_mount.tree_provider(store, os.environ)

    def prepare() -> None:
        try:
            if not (implicit_mount.mount_point(root, os.environ) / "trees").is_dir():
                implicit_mount.start(root, os.environ)
        except CasfsError as error:
            log("not mounted", error=str(error))

    return Workspaces(
        trees,
        desk.OVERLAYS,
        release=lambda: implicit_mount.end(root, os.environ),
        prepare=prepare,
        log=log,
    )


def maintenance(values: Mapping[str, Any]) -> Callable[[Store], None]:
    """The daemon's periodic gc, which enforces the configured limits, and packing."""
    from casfs.attach import attachments
    from casfs.backend.derived import total_stored
    from casfs.cli.sizes import parse_age
    from casfs.maintenance import cold, gc
    from casfs.system import reserve

    limits = gc.Limits(values["gc.max_size"] or None, values["gc.max_inodes"] or None)
    max_turn_trees = values["attach.max_turn_trees"] or None
    age = parse_age(values["pack.older_than"]) if values["pack.older_than"] else None
    grace = values["gc.grace_s"]
    keep = values["gc.keep_checkpoints"]
    bytes_after_gc = 0

    def maintain(store: Store) -> None:
        if age is not None:
            with reserve.released(store.root):
                cold.pack(store, older_than=age)
        nonlocal bytes_after_gc
        applied = limits
        # A run reads every node: for the trees of tool calls alone there is none before the store
        # has grown by a part of what they may take.
        if max_turn_trees is not None and (store.root / attachments.FILE).exists():
            stored = total_stored(store.blobs).bytes
            has_grown = stored - bytes_after_gc > max_turn_trees * GROWTH_SHARE
            # A store that holds less in all has no directory over the limit.
            if has_grown and stored > max_turn_trees:
                applied = replace(limits, max_turn_trees=max_turn_trees)
        if applied != gc.NO_LIMITS:
            # Where no gc limit is set, the user did not request a gc: what was removed must stay
            # restorable by `casfs undo`.
            keeps_removed = limits == gc.NO_LIMITS
            with reserve.released(store.root):
                result = gc.collect(
                    store, grace=grace, limits=applied, keep=keep, keeps_removed=keeps_removed
                )
            bytes_after_gc = result.kept.bytes

    return maintain
