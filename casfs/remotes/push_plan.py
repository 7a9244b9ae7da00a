"""What a push has to send: what its roots reach and the remote lacks, and tombstones.

Purged content is not sent, whichever side purged it: its tombstone and its substitute are.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from casfs.backend.protocols import BlobInfo, Head, HeadName
from casfs.packs.index import PackIndex
from casfs.remotes import purged
from casfs.remotes.log import BLOBS, NODES, pack_key
from casfs.remotes.remote import Remote
from casfs.remotes.state import LIVE, PENDING
from casfs.store import graph, local_trees
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone

PENDING_S = 12 * 3600  # a stray pack may be deleted after a week


class Item(NamedTuple):
    """What is missing."""

    hash: str
    size: int
    type: str | None


@dataclass(slots=True)
class Plan:
    """Nodes after their references, blobs in tree order; `reused`: packs uploaded before.
    `purged`: what was reached and is left out, with its substitute."""

    live: set[str]  # packs that it relies on
    nodes: list[Item] = field(default_factory=list)
    blobs: list[Item] = field(default_factory=list)
    reused: set[str] = field(default_factory=set)
    purged: dict[str, str | None] = field(default_factory=dict)
    purged_there: set[str] = field(default_factory=set)
    tombstones: list[Tombstone] = field(default_factory=list)
    local: dict[HeadName, Head] = field(default_factory=dict)  # local trees that are sent


def make(store: Store, remote: Remote, roots: list[str], *, with_local: bool) -> Plan:
    """Walks from the roots, and stops at what the remote has. `with_local` it goes through nodes
    that are there, as they may have come without what their local refs lead to; directories have
    no such refs."""
    plan = Plan({*remote.state.since_when(LIVE)}, purged_there={*purged.of_remote(remote)})
    walk = _Walk(store, remote, plan=plan, with_local=with_local)
    walk.follow(roots)
    while True:  # a substitute may reach other purged contents
        plan.tombstones = purged.to_push(store, remote, plan.purged)
        substitutes = [
            tombstone.substitute for tombstone in plan.tombstones if tombstone.substitute
        ]
        new = [hash for hash in substitutes if hash not in walk.seen]
        if not new:
            break
        walk.follow(new)
    if remote.state.packs(PENDING):
        _reuse(remote, plan)
    return plan


class _Walk:
    """Notes in a plan what the remote lacks."""

    def __init__(self, store: Store, remote: Remote, plan: Plan, with_local: bool) -> None:
        self._store = store
        self._remote = remote
        self._plan = plan
        self._with_local = with_local
        self._directory = store.registry.current("directory")
        self._passed: set[str] = set()  # nodes that the remote has
        self._infos: dict[str, BlobInfo] = {}  # of nodes that are to be followed
        self.seen: set[str] = set()

    def follow(self, roots: list[str]) -> None:
        trail = [("", self._below(roots))]
        while trail:
            hash, children = trail[-1]
            child = next((candidate for candidate in children if candidate not in self.seen), None)
            if child is not None:
                self.seen.add(child)
                if self._with_local and (local := local_trees.get(self._store, child)):
                    self._plan.local[local_trees.head_name(child)] = local.head
                refs = graph.node_refs(self._store, child, with_local=self._with_local)
                trail.append((child, self._below(refs)))
                continue
            trail.pop()
            if hash:
                info = self._infos.pop(hash)
                if hash not in self._passed:
                    self._plan.nodes.append(Item(hash, info.size, info.type))

    def _below(self, hashes: list[str]) -> Iterator[str]:
        """Returns the nodes among them that are missing, once the blobs are noted."""
        plan = self._plan
        state = self._remote.state
        infos: dict[str, BlobInfo] = {}
        new = self._without_purged(hashes, infos)
        blobs = [hash for hash in new if hash in infos and infos[hash].type is None]
        self.seen.update(blobs)
        there = state.locate(blobs).keys()
        plan.blobs += [
            Item(hash, infos[hash].size, type=None) for hash in blobs if hash not in there
        ]
        nodes = [hash for hash in new if hash not in self.seen]
        known = state.locate(nodes, LIVE, NODES).keys()
        if self._with_local:
            passed = (hash for hash in known & infos.keys() if infos[hash].type != self._directory)
            self._passed.update(passed)
        self.seen.update(known - self._passed)
        # Of one that is not here `follow` says so, which reads it.
        missing = [hash for hash in nodes if hash in infos and hash not in self.seen]
        self._infos |= {hash: infos[hash] for hash in missing}
        return iter(nodes)

    def _without_purged(self, hashes: list[str], infos: dict[str, BlobInfo]) -> list[str]:
        """Returns those that are new; of what was purged the substitutes. Fills in `infos`."""
        new_hashes: list[str] = []
        waiting = hashes
        while waiting:
            new = [sys.intern(hash) for hash in waiting if hash not in self.seen]  # a chain has all
            waiting = []
            infos |= self._store.blobs.info(new)
            for hash in new:
                info = infos.get(hash)
                if hash not in self._plan.purged_there and not (info and info.purged):
                    new_hashes.append(hash)
                    continue
                substitute = info.substitute if info else None
                self.seen.add(hash)
                self._plan.purged[hash] = substitute
                if substitute is not None:
                    waiting.append(substitute)
        return new_hashes


def _reuse(remote: Remote, plan: Plan) -> None:
    """Takes from the plan what was uploaded before. A pack of nodes counts only where all of it is
    planned: what another of its nodes refers to may be in no live pack."""
    doomed = remote.state.holders({*plan.purged, *plan.purged_there})
    places = remote.state.locate([blob.hash for blob in plan.blobs], PENDING, BLOBS)
    nodes = remote.state.locate([node.hash for node in plan.nodes], PENDING, NODES)
    counts = Counter(location.pack for location in nodes.values())
    for name, count in counts.items():
        pack = remote.state.pack(name)
        if PackIndex(name, pack.data or b"", pack.offset).members == count + 1:  # the random one
            places |= {hash: location for hash, location in nodes.items() if location.pack == name}
    places = {hash: location for hash, location in places.items() if location.pack not in doomed}
    plan.reused = _sound(remote, plan.live, {location.pack for location in places.values()})
    places = {hash: where for hash, where in places.items() if where.pack in plan.reused}
    plan.nodes = [node for node in plan.nodes if node.hash not in places]
    plan.blobs = [blob for blob in plan.blobs if blob.hash not in places]


def _sound(remote: Remote, live: set[str], names: set[str]) -> set[str]:
    """Returns those packs whose frames refer to packs that are live, or among them."""
    packs = [remote.state.pack(name) for name in names]
    referred = {
        pack.name: PackIndex(pack.name, pack.data or b"", pack.offset).referred_packs()
        for pack in packs
    }
    while unsound := {name for name in names if not referred[name] <= live | names}:
        names = names - unsound
    return names


def drop_lost_packs(remote: Remote) -> None:
    """Forgets packs of an interrupted push that did not arrive, or may be deleted soon."""
    for name, since in remote.state.since_when(PENDING).items():
        metadata = remote.storage.head(pack_key(name))
        is_there = metadata is not None and metadata.size == remote.state.pack(name).size
        if since < time.time() - PENDING_S or not is_there:
            remote.state.drop_pending(name)
