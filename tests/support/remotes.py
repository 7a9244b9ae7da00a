"""Stores that push to and pull from one remote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.backend.protocols import targets
from casfs.checkpoints import create as checkpoints
from casfs.exchange.arrivals import Asks
from casfs.packs.reader import open_pack
from casfs.remotes import heads, pull, push
from casfs.remotes import remote as remotes
from casfs.remotes.log import MAX_ENTRY_BYTES
from casfs.remotes.pull import Pulled
from casfs.remotes.push import Pushed
from casfs.remotes.remote import Remote, Settings
from casfs.store import graph
from casfs.store.store import Store
from casfs.system.zstd import Dictionary
from tests.support.helpers import Tree, write_tree
from tests.support.new_store import init_store

NAME = "origin"


def quiet(blobs: int, size: int) -> Any:
    return nullcontext(lambda done, bytes: None)


@dataclass
class Site:
    """A store with a remote."""

    store: Store
    settings: Settings

    @property
    def root(self) -> Path:
        return self.store.root

    @contextmanager
    def remote(self) -> Iterator[Remote]:
        with Remote.open(self.root, NAME) as opened:
            yield opened

    def push(self, *texts: str, dry_run: bool = False, with_local: bool = False) -> Pushed:
        with self.remote() as remote:
            wanted = heads.of_store(self.store, texts)
            return push.push(
                self.store, remote, wanted, dry_run=dry_run, begin=quiet, with_local=with_local
            )

    def trust(self) -> None:
        """Calls the remote one's own."""
        remotes.save(self.root, NAME, self.settings._replace(trusted=True))

    def pull(
        self,
        *texts: str,
        lazy: bool = False,
        purge: bool = False,
        replace: bool = False,
        with_local: bool = False,
        asks: Asks | None = None,
    ) -> Pulled:
        with self.remote() as remote:
            return pull.pull(
                self.store,
                remote,
                list(texts),
                lazy=lazy,
                begin=quiet,
                options=pull.PullOptions(
                    purge=purge, replace=replace, with_local=with_local, asks=asks
                ),
            )

    def refs(self) -> dict[str, Any]:
        with self.remote() as remote:
            remote.catch_up()
            return remote.state.refs()

    def heads(self, prefix: str = "") -> dict[str, Any]:
        """The heads that travel, and what they stand for."""
        found = {name: head.hash for name, head in self.store.heads.list(prefix)}
        return {name: one for name, one in found.items() if not name.startswith("schemas/")}

    def checkpoint(self, name: str, tree: Tree) -> str:
        """Records a tree; returns the head's name."""
        directory = write_tree(self.root.parent / f"{self.root.name}-{name}", tree)
        made = checkpoints.create(self.store, name, directory)
        return f"checkpoints/{name}/{made.checkpoint.id}"

    def contents(self, name: str) -> dict[str, bytes]:
        """All that a head reaches, byte by byte."""
        head = self.store.heads.get(name)  # type: ignore[arg-type]
        assert head is not None
        return {one: self.store.get(one) for one in graph.walk(self.store, targets(head))}

    def contents_but(self, name: str, hash: str) -> dict[str, bytes]:
        """As `contents`, of what was purged nothing."""
        head = self.store.heads.get(name)  # type: ignore[arg-type]
        assert head is not None
        found = graph.walk(self.store, targets(head))
        return {one: self.store.get(one) for one in found if one != hash}


def remote_bytes(folder: Path) -> bytes:
    """All that the files of a directory remote hold: log entries and members of packs, unpacked."""
    found = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in sorted((folder / "log").glob("0*")):
        found.append(Dictionary().decompress(path.read_bytes(), MAX_ENTRY_BYTES))
    for path in sorted((folder / "packs").glob("*.pack")):
        pack = open_pack(path)
        found += [pack.read(number) for number in range(pack.index.members)]
    return b"\n".join(found)


def site(root: Path, settings: Settings) -> Site:
    """A new store whose remote is at `settings`."""
    store = init_store(root)
    remotes.create(settings.storage())
    remotes.save(root, NAME, settings)
    return Site(store, settings)
