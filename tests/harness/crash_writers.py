"""The processes that `crash` kills. Each writes to one store without end and, after a call has
returned, appends what was acknowledged as durable to a file, a JSON object per line:

    {"blob": hash}                 put, and no head leads to it
    {"head": name, "hash": hash}   a head that stays until
    {"drop": name}                 said before the head is dropped, so either is right then
    {"step": hash, "thread": id}   a step (or the start, or the end) of a thread
    {"batch": name, "hashes": [hash]}  said before a batch of these and a head is committed
    {"purged": [hash], "text": text}   contents that were purged; the text is in no file after a gc
    {"error": text}                what may never happen

`Conflict` is right wherever two writers meet. `NotFound` is right only beside a gc with a
grace shorter than the writer needs (`Plan.loses`): what a writer found in the store, and
what an earlier part of its batch brought, may be gone before its head is.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.backend import disk_gc, hot_packs, tiers, wal_checkpoints
from casfs.backend.block_maps import MIN_BYTES
from casfs.backend.disk import DiskBackend
from casfs.backend.protocols import Head, HeadName, Swap
from casfs.checkpoints import checkpoint, create
from casfs.digest import NodeHash, hash_bytes
from casfs.errors import Conflict, Invalid, NotFound
from casfs.maintenance import cold, gc, grep, purge
from casfs.maintenance.needle import Needle
from casfs.maintenance.redact import redact
from casfs.packs.layout import BLOCK_BYTES
from casfs.store import tombstones, write_batch
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.system.clock import now_ms
from casfs.threads import threads
from casfs.threads.threads import Thread
from casfs.trees.snapshot import read_queue
from engine.moderator.decision import End, Next
from engine.threads import lifecycle, transitions
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows

SHARED_SECRETS = 8  # contents that all writers put, and one purges
SHARED = 40  # contents that all writers put again and again
ROUNDS = 10_000
GROUP_THREADS = 6
GONE = (NotFound, Invalid)  # Invalid: a node that would refer to what is not there
ROLE = {
    "name": "a",
    "description": "The only one.",
    "systemPrompt": "Work.",
    "extractPrompt": "Say how it went.",
    "schema": {"name": "open", "type": "object"},
}
RULES = [
    {"from": "__start__", "to": "a", "when": None},
    {"from": "a", "to": "__end__", "when": "$count($steps) > 9999"},
    {"from": "a", "to": "a", "when": None},
]
WORKFLOW = {"name": "crash", "description": "Long.", "roles": {"a": ROLE}, "moderator": RULES}


@dataclass(frozen=True)
class Setup:
    """`work`: host directories of the writers. `grace`: seconds that gc may choose from."""

    root: Path
    work: Path
    acks: Path
    grace: tuple[int, ...] = ()

    @property
    def loses(self) -> bool:
        return bool(self.grace) and min(self.grace) < 60


class Writer:
    def __init__(self, setup: Setup, slot: int, seed: int) -> None:
        self.setup = setup
        self.slot = slot
        self.random = random.Random(seed)
        self._acks = os.open(setup.acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def ack(self, **what: str | list[str]) -> None:
        os.write(self._acks, json.dumps(what).encode() + b"\n")

    def run(self, kind: str) -> None:
        """For ever, or until something happens that may not. Transactions are kept small: so
        there are more instants between them."""
        rows, blobs = self.random.choice(((3, 4), (500, 4096)))
        disk_gc.BATCH_ROWS, write_batch.PUBLISH_BATCH_BLOBS = rows, blobs
        tiers.PACK_BYTES, tiers.MAX_SMALL = self.random.choice(((100_000, 3), (64 << 20, 16)))
        tiers.FREED_MIN_BYTES, hot_packs.MIN_BLOBS = 0, self.random.choice((3, 64))
        wal_checkpoints.CHECKPOINT_PAGES = self.random.choice((30, 4000))
        # With processes that read, directories are stored while others are read.
        pool = self.random.choice(((0, 3), (1000, 64)))
        read_queue.POOL_MIN_FILES, read_queue.READ_BATCH_FILES = pool
        try:
            with Store.open(self.setup.root) as store:
                for action in KINDS[kind](self, store):
                    try:
                        action()
                    except Conflict:
                        continue
                    except NotFound:
                        if not self.setup.loses:
                            raise
        except BaseException:
            self.ack(error=f"{kind}: {traceback.format_exc()}")
            raise

    def content(self) -> bytes:
        """Small and large, new and put before, by this writer or by others; some were purged."""
        if self.random.random() < 0.05:
            return shared_secret(self.random.randrange(SHARED_SECRETS))
        if self.random.random() < 0.4:
            number = self.random.randrange(SHARED)
            return (b"shared %d " % number) * (1 + number % 4 * 300)
        size = self.random.choice((0, 10, 300, 1024, 1025, 5000, 70_000, 300_000, 1_100_000))
        return self.random.randbytes(size)


def shared_secret(number: int) -> bytes:
    return (b"shared secret %d " % number) * (1, 100, 6000, 90_000)[number % 4]


# -- blobs, and heads that come and go ------------------------------------------------------


def put(writer: Writer, store: Store) -> Iterator[Callable[[], None]]:
    dropped: list[str] = []
    while True:
        yield lambda: writer.ack(blob=store.put(writer.content()).hash)
        yield lambda: _hold(writer, store)
        yield lambda: _drop(writer, store, dropped)
        yield lambda: _revive(writer, store, dropped)


def _hold(writer: Writer, store: Store) -> None:
    """Blobs, a tree of them and a head, at once; sometimes in parts."""
    name = _fresh(writer)
    with store.batch() as new:
        blobs = [new.put(writer.content()) for _ in range(writer.random.randrange(1, 20))]
        for _ in range(2):
            files = [File(b"%d" % n, digest) for n, digest in enumerate(blobs)]
            inner = new.put_node("directory", directory.encode(files))
            if writer.random.random() < 0.3:
                new.commit()
            blobs = [*blobs[:3], inner]
        head = new.put_node("content", {"text": name, "artifacts": [b.hash for b in blobs]})
        new.swap(name, None, Head(head.hash, {"mentions": [blobs[0].hash]}))
    writer.ack(head=name, hash=head.hash)


def _fresh(writer: Writer) -> str:
    return f"held/{writer.slot}-{writer.random.getrandbits(64):016x}"


def _drop(writer: Writer, store: Store, dropped: list[str]) -> None:
    """Make garbage for gc."""
    held = [*store.heads.list(f"held/{writer.slot}-")]
    if len(held) > 8:
        name, head = writer.random.choice(held)
        writer.ack(drop=name)
        store.backend.publish([], [Swap(name, head, None)])
        dropped.append(head.hash)


def _revive(writer: Writer, store: Store, dropped: list[str]) -> None:
    """Move a head to what may be garbage, and half collected."""
    if not dropped:
        return
    hash, name = writer.random.choice(dropped), _fresh(writer)
    try:
        with store.batch() as new:
            if writer.random.random() < 0.5:
                hash = new.put_node("content", {"text": name, "artifacts": [hash]}).hash
            new.swap(name, None, Head(hash))
    except GONE:
        return  # collected by now, and said so
    writer.ack(head=name, hash=hash)


# -- versions of a large file -----------------------------------------------------------------


def versions(writer: Writer, store: Store) -> Iterator[Callable[[], None]]:
    """Stores each as its differences from one before; drops some, and purges some."""
    first = random.Random(writer.slot).randbytes(MIN_BYTES + BLOCK_BYTES)
    kept: list[tuple[str, bytes]] = [("", first)]
    while True:
        yield lambda: _hold_version(writer, store, kept)
        yield lambda: _hold_version(writer, store, kept)
        yield lambda: _drop_version(writer, store, kept)
        yield lambda: writer.ack(blob=store.put(writer.content()).hash)


def _hold_version(writer: Writer, store: Store, kept: list[tuple[str, bytes]]) -> None:
    _, before = writer.random.choice(kept)
    data = bytearray(before)
    for _ in range(writer.random.randrange(4)):
        start = writer.random.randrange(len(data) - 100)
        data[start : start + 100] = writer.random.randbytes(100)
    name = _fresh(writer)
    assert isinstance(store.backend, DiskBackend)
    blobs = store.backend.blobs
    base = hash_bytes(before)
    staged = blobs.stage_change(io.BytesIO(data), len(data), base) or blobs.stage(io.BytesIO(data))
    with store.batch() as new:
        blob = new.put_staged(staged)
        head = new.put_node("content", {"text": name, "artifacts": [blob.hash]})
        new.swap(name, None, Head(head.hash))
    writer.ack(head=name, hash=head.hash)
    kept.append((name, bytes(data)))


def _drop_version(writer: Writer, store: Store, kept: list[tuple[str, bytes]]) -> None:
    if len(kept) < 6:
        return
    name, data = kept.pop(writer.random.randrange(1, len(kept)))
    if writer.random.random() < 0.3:
        hash = hash_bytes(data)
        purge.purge(store, hash)
        writer.ack(purged=[hash], text="")
        kept[:] = [version for version in kept if version[1] != data]
    else:
        head = store.heads.get(HeadName(name))
        writer.ack(drop=name)
        store.backend.publish([], [Swap(HeadName(name), head, None)])


# -- checkpoints of a directory that keeps changing -------------------------------------------


def check(writer: Writer, store: Store) -> Iterator[Callable[[], None]]:
    folder = writer.setup.work / f"tree-{writer.slot}"
    folder.mkdir(exist_ok=True)
    changing = threading.Thread(target=_change, args=(writer, folder), daemon=True)
    changing.start()
    while True:
        yield lambda: _checkpoint(writer, store, folder)


def _checkpoint(writer: Writer, store: Store, folder: Path) -> None:
    made = create.create(store, f"tree-{writer.slot}", folder).checkpoint
    writer.ack(head=f"{checkpoint.HEADS}{made.name}/{made.id}", hash=made.hash)


def _change(writer: Writer, folder: Path) -> None:
    chance = random.Random(writer.random.random())
    while True:
        below = folder / f"d{chance.randrange(3)}" / f"e{chance.randrange(3)}"
        with suppress(OSError):
            if chance.random() < 0.05:
                shutil.rmtree(below)
            below.mkdir(parents=True, exist_ok=True)
            (below / f"{chance.randrange(20)}").write_bytes(writer.content())
            (below / ".env").write_bytes(b"PASSWORD=" + writer.content()[:40].hex().encode())
            (below / f"{chance.randrange(20)}").unlink()


# -- threads ----------------------------------------------------------------------------------


def work(writer: Writer, store: Store) -> Iterator[Callable[[], None]]:
    while True:
        yield lambda: _start(writer, store)
        for _ in range(20):
            yield lambda: _step(writer, store)


def _start(writer: Writer, store: Store) -> None:
    hash, _ = workflows.add(store, WORKFLOW)
    agent = {"a": Binding("command", {"argv": ["true"]})}
    thread = lifecycle.create(store, ThreadRequest(hash, writer.random.randbytes(4).hex(), agent))
    writer.ack(step=thread.hash, thread=thread.id)


def _step(writer: Writer, store: Store) -> None:
    """One move of some thread, which others may be moving as well."""
    running = [one for one in threads.list_threads(store) if one.status == threads.RUNNING]
    if not running:
        return
    thread = writer.random.choice(running[-4:])
    last = threads.last_step(store, thread)
    index = store.node(last).payload["index"] if last else 0
    if thread.record["intent"] is None or writer.random.random() < 0.1:
        thread = transitions.begin(store, thread, Next("a"), index, ROUNDS, 1)
    if writer.random.random() < 0.1:
        detail = store.put_node("content", {"text": "no", "artifacts": []})
        thread = transitions.correct(store, thread, detail.hash, "no block")
    if writer.random.random() < 0.05:
        thread = transitions.cancel(store, thread)
    else:
        thread = _commit(writer, store, thread, last, index)
    writer.ack(step=thread.hash, thread=thread.id)


def _commit(writer: Writer, store: Store, thread: Thread, last: str | None, index: int) -> Thread:
    start = threads.start(store, thread).payload
    before = [ref.hash for ref in threads.steps(store, thread)]
    decision = End(0, "done") if writer.random.random() < 0.05 else Next("a")
    with store.batch() as new:
        output = new.put(writer.content())
        text = {"text": f"{writer.random.random()}", "artifacts": [output.hash]}
        content = new.put_node("content", text).hash
        payload: dict[str, Any] = {
            "index": index + 1,
            "role": "a",
            "meta": {},
            "content": content,
            "detail": content,
            "agent": start["agents"]["a"],
            "start": thread.record["start"],
            **threads.links(before),
            "compact": None,
            "childThreads": [],
            "attempts": [],
            "extraction": "block",
            "workspace": None,
            "changes": None,
            "startedAt": now_ms(),
            "completedAt": now_ms(),
        }
        return transitions.finish_step(new, thread, payload, decision, ROUNDS)


# -- batches of several threads, whose commits share transactions ----------------------------


def group(writer: Writer, store: Store) -> Iterator[Callable[[], None]]:
    write_batch.PUBLISH_BATCH_BLOBS = 4096  # no batch in parts
    for _ in range(GROUP_THREADS - 1):
        threading.Thread(target=_group_thread, args=(writer, store), daemon=True).start()
    while True:
        yield lambda: _batch(writer, store)


def _group_thread(writer: Writer, store: Store) -> None:
    try:
        while True:
            _batch(writer, store)
    except BaseException:
        writer.ack(error=f"group: {traceback.format_exc()}")
        raise


def _batch(writer: Writer, store: Store) -> None:
    """A batch that nothing else refers to: all of it or nothing. One of five is refused at its
    commit, where others share the transaction."""
    name = f"group/{writer.slot}-{writer.random.getrandbits(64):016x}"
    fails = writer.random.random() < 0.2
    try:
        with store.batch() as new:
            blob = new.put(name.encode() * writer.random.choice((1, 60))).hash
            hashes = [blob]
            for number in range(writer.random.randrange(1, 6)):
                text = {"text": f"{name} {number}", "artifacts": hashes[-1:]}
                hashes.append(new.put_node("content", text).hash)
            new.swap(name, None, Head(NodeHash(hashes[-1])))
            if fails:
                new.swap(HeadName("group/none"), Head(NodeHash(blob)), None)
            writer.ack(batch=name, hashes=hashes)
    except Conflict:
        assert fails, "no other writer has this head"
    else:
        writer.ack(head=name, hash=hashes[-1])


# -- gc ---------------------------------------------------------------------------------------


def collect(writer: Writer, store: Store) -> Iterator[Callable[[], None]]:
    while True:
        yield lambda: _collect(store, writer.random.choice(writer.setup.grace))


def _collect(store: Store, grace: int) -> None:
    gc.collect(store, grace=grace)


# -- tiers ------------------------------------------------------------------------------------


def tier(writer: Writer, store: Store) -> Iterator[Callable[[], None]]:
    """Packs what all writers put, and warms some of it; each run leaves garbage in packs."""
    while True:
        yield lambda: _pack(store)
        yield lambda: _warm(writer, store)
        yield lambda: writer.ack(blob=store.put(writer.content()).hash)


def _pack(store: Store) -> None:
    cold.pack(store, older_than=-10)  # also what was put just now


def _warm(writer: Writer, store: Store) -> None:
    assert isinstance(store.backend, DiskBackend)
    plain = [hash for _, hash, info in store.blobs.iterate() if info.type is None]
    store.backend.tiers.warm(writer.random.sample(plain, len(plain) // 2))


# -- purges -----------------------------------------------------------------------------------


def purge_all(writer: Writer, store: Store) -> Iterator[Callable[[], None]]:
    """Purges what it has just put, and what all writers put; puts some of it again."""
    while True:
        yield lambda: _purge_content(writer, store)
        yield lambda: _purge_text(writer, store)
        yield lambda: _purge_shared(writer, store)
        yield lambda: writer.ack(blob=store.put(writer.content()).hash)


def _put_secret(writer: Writer, store: Store) -> tuple[str, str]:
    """Puts a text in a file, a node and a record; returns it and the hash of the file."""
    text, name = f"secret-{writer.random.getrandbits(64):016x}", _fresh(writer)
    size = writer.random.choice((0, 1000, 5000, 1_100_000))
    with store.batch() as new:
        many = [new.put(b"%d" % number + writer.random.randbytes(3000)) for number in range(4)]
        blob = new.put(text.encode() + writer.random.randbytes(size))
        files = [File(b"%d" % number, one) for number, one in enumerate([*many, blob])]
        tree = new.put_node("directory", directory.encode(files))
        payload = {"text": f"said {text}", "artifacts": [blob.hash, tree.hash]}
        head = new.put_node("content", payload)
        new.swap(name, None, Head(head.hash, {"message": text}))
    writer.ack(head=name, hash=head.hash)
    return text, blob.hash


def _purge_content(writer: Writer, store: Store) -> None:
    _, hash = _put_secret(writer, store)
    purge.purge(store, hash)
    writer.ack(purged=[hash], text="")


def _purge_text(writer: Writer, store: Store) -> None:
    text, hash = _put_secret(writer, store)
    needle = Needle(text)
    done = redact(store, needle, grep.search(store, needle), "")
    hashes = [one.hash for one in done.purged]
    assert hash in hashes
    writer.ack(purged=hashes, text=text)


def _purge_shared(writer: Writer, store: Store) -> None:
    data = shared_secret(writer.random.randrange(SHARED_SECRETS))
    hash = hash_bytes(data)
    tombstones.add(store, [Tombstone(hash, len(data), now_ms())])
    writer.ack(purged=[hash], text="")


KINDS = {
    "purge": purge_all,
    "tier": tier,
    "put": put,
    "versions": versions,
    "checkpoint": check,
    "thread": work,
    "group": group,
    "gc": collect,
}
