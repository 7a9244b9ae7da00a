"""A command run on stored trees: in the store's workspace for that, through the action cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from casfs.cli import implicit_mount
from casfs.cli.output import warn
from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.system import locks
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState

if TYPE_CHECKING:
    from casfs.actions.runner import Outcome

TreeRun: TypeAlias = "Callable[[DatedTree], Outcome]"
FOLDER = "tests"  # in the store: the desk of the one command that runs
MARK = "CASFS_TREE"  # in its environment, so in its key: `casfs action` replays no failure of it


@contextmanager
def tree_runner(
    store: Store, argv: Sequence[str], names: Iterable[str] = (), cached: bool = True
) -> Iterator[TreeRun]:
    """Yields a function that runs a command on a tree, or replays its result; what it prints goes
    to stderr. `names`: variables to pass on. Raises NotFound (the program), Failed."""
    from casfs.actions import key, runner
    from casfs.workspaces.desk import OVERLAYS, Desk

    def run(root: DatedTree) -> Outcome:
        def prepare(_: TreeHash) -> None:
            desk.reset(RecordedState.of_tree(root))

        request_args = tuple(argv), desk.path, ".", (), env | {MARK: root.tree}, None
        request = key.Request(*request_args, tree=root.tree, prepare=prepare)
        return runner.run(store, request, streams, cached=cached)

    env = {name: os.environ[name] for name in ("PATH", *names) if name in os.environ}
    streams = runner.Streams(sys.stderr.buffer, sys.stderr.buffer, lambda line: None)
    waiting = partial(warn, "waiting for another command that runs on a tree of this store")
    with implicit_mount.kept(store.root), locks.held(store.root, FOLDER, waiting):
        trees = implicit_mount.tree_provider(store, os.environ)
        desk = Desk(store, store.root / FOLDER, trees, preferred=OVERLAYS)
        try:
            desk.remove()  # left by a command that was killed
            yield run
        finally:
            desk.remove()
    implicit_mount.end_unused(store, os.environ)
