"""The trees of tool calls in the sessions of outside agents, of which a store keeps the newest.

A session records its directory before and after each call that may write. A turn's references to
these are weak: beyond a limit for each directory gc deletes the oldest. The directory at each
prompt and after each step is kept as long as its thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from casfs.checkpoints import revisions
from casfs.digest import NodeHash
from casfs.errors import CasfsError
from casfs.store import local_trees
from casfs.store.store import Store
from casfs.threads import sessions, threads
from casfs.threads.threads import Thread


class Call(NamedTuple):
    """A tool call of a committed step: its turn, and that turn as it stood when the call began."""

    reported_ms: int
    turns: tuple[NodeHash, ...]

    def roots(self, store: Store) -> Iterator[str]:
        """Yields the roots of its trees, whether they are stored or not. Not of their times: what
        is counted is directories."""
        for hash in self.turns:
            payload = store.node(hash, revisions.TURN).payload
            yield from (payload[name] for name in ("workspace", "before") if name in payload)
            if (local := local_trees.get(store, hash)) is not None:
                yield local.root


def by_directory(store: Store) -> list[list[Call]]:
    """Returns the calls in each directory with sessions, newest first."""
    calls: Mapping[str, dict[NodeHash, Call]] = defaultdict(dict)
    for thread, described in sessions.readable(store):
        try:
            # By its turn, since sessions that go on from a point of another one share those.
            calls[described["directory"]].update(
                (call.turns[0], call) for call in _of(store, thread)
            )
        except CasfsError:  # fsck's business: its trees are kept
            continue
    return [sorted(named.values(), reverse=True) for named in calls.values()]


def _of(store: Store, thread: Thread) -> list[Call]:
    calls = []
    for step in threads.last_steps(store, thread, None):
        for hash in revisions.turns(store, step.payload["detail"]):
            turn: Mapping[str, Any] = store.node(hash, revisions.TURN).payload
            begun = [turn["begun"]] if "begun" in turn else []
            calls.append(Call(turn.get("reportedAt", 0), (hash, *begun)))
    return calls
