"""A command run on a stored tree: in a workspace of its own, through the action cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from casfs.cli import implicit_mount
from casfs.cli.output import warn
from casfs.digest import TreeHash
from casfs.store import Store
from casfs.system import locks

FOLDER = "tests"  # in the store: the workspace of the one command that runs, by its tree


def run_on_tree(store: Store, tree: TreeHash, argv: Sequence[str]) -> int:
    """Returns the exit code of a command, whose output goes to stderr. Raises NotFound (the
    program), Failed."""
    from casfs.actions import key, runner

    streams = runner.Streams(sys.stderr.buffer, sys.stderr.buffer, lambda line: None)
    with _workspace(store, tree) as path:
        request = key.request(argv, directory=path, here=path, env=os.environ)
        return runner.run(store, request, streams, cached=True).exit_code


@contextmanager
def _workspace(store: Store, tree: TreeHash) -> Iterator[Path]:
    from engine.runtime.overlay_workspace import OverlayWorkspace

    assert store.root is not None
    waiting = partial(warn, "waiting for another command that runs on a tree of this store")
    with implicit_mount.kept(store.root), locks.held(store.root, FOLDER, waiting):
        trees = implicit_mount.tree_provider(store, os.environ)
        workspace = OverlayWorkspace(store, store.root / FOLDER / tree, trees)
        try:
            workspace.remove()  # left by a command that was killed
            workspace.reset(tree)
            yield workspace.path
        finally:
            workspace.remove()
    implicit_mount.end_unused(store, os.environ)
