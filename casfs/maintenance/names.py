"""Resolves the names that people type: roots of an export, types of nodes."""

from __future__ import annotations

from collections.abc import Iterator

from casfs.backend.derived import count_by_type, of_types
from casfs.backend.protocols import BlobInfo, Head, HeadName
from casfs.checkpoints import checkpoint
from casfs.checkpoints.revisions import resolve_tree
from casfs.digest import is_hash
from casfs.errors import Conflict, Invalid, NotFound, Refused
from casfs.exchange.arrivals import WORKFLOWS
from casfs.exchange.portable_heads import is_portable
from casfs.store.nodes import head_kinds
from casfs.store.nodes.registry import HEADS as SCHEMAS
from casfs.store.store import Store
from casfs.threads import lookup, threads


def roots(
    store: Store, texts: list[str], *, running: bool = False
) -> tuple[list[str], list[tuple[HeadName, Head]]]:
    """Resolves export roots to (hashes, heads); the heads include all non-builtin schemas.

    A root is a thread, a workflow's name, a checkpoint, a head's full name, a hash or any other
    revision: that tree. A name wins over a part of an id. Raises NotFound, Conflict for an
    ambiguous name, Refused for a running thread unless `running` ones may leave.
    """
    hashes: list[str] = []
    heads: list[tuple[HeadName, Head]] = []
    for text in texts:
        matches = [] if is_hash(text) else list(_matching_heads(store, text))
        if len(matches) > 1:
            both = ", ".join(name for name, _ in matches)
            raise Conflict(f"{text} is ambiguous: {both}; give the whole name")
        if matches:
            heads += [*matches, *_called_threads(store, matches[0][0])]
        else:
            hashes.append(_hash(store, text))
    for name, head in heads:
        is_running = head.record.get("status") == threads.RUNNING
        if is_running and not running and name.startswith(threads.HEADS):
            raise Refused(f"{name} is running; wait until it ends or is suspended, or cancel it")
        if not is_portable(name):
            raise Refused(f"{name} cannot be exported; give its hash {head.hash}")
        head_kinds.check(name, head)
    return hashes, list(dict([*heads, *_user_schemas(store)]).items())


def of_type(store: Store, name: str) -> Iterator[tuple[str, BlobInfo]]:
    """Yields the nodes of a named type, of every version of its schema."""
    hashes: set[str] = {store.registry.head(name).hash}
    hashes |= {hash for hash in count_by_type(store.blobs) if store.registry.name(hash) == name}
    return of_types(store.blobs, hashes)


def _matching_heads(store: Store, text: str) -> Iterator[tuple[HeadName, Head]]:
    """Yields the heads that a text may name."""
    names = [HeadName(text if "/" in text else WORKFLOWS + text)]
    named = checkpoint.find_if_named(store, text)
    if named is not None:
        names.append(checkpoint.head_name(named.name, named.id))
    elif "/" not in text and store.heads.get(names[0]) is None:
        for find in (_thread_head, _checkpoint_head):
            try:
                names.append(find(store, text))
            except (NotFound, Invalid):
                continue
            if text == lookup.LAST:
                break
    for name in names:
        head = store.heads.get(name)
        if head is not None:
            yield name, head


def _thread_head(store: Store, text: str) -> HeadName:
    return lookup.find(store, text).name


def _checkpoint_head(store: Store, text: str) -> HeadName:
    named_checkpoint = checkpoint.find(store, text)
    return checkpoint.head_name(named_checkpoint.name, named_checkpoint.id)


def _hash(store: Store, text: str) -> str:
    try:
        return store.expand(text)
    except (NotFound, Invalid):
        pass
    try:
        return resolve_tree(store, text)
    except NotFound as error:
        raise NotFound(f"no thread, checkpoint, workflow or hash {text!r}: {error}") from None


def _called_threads(store: Store, name: HeadName) -> Iterator[tuple[HeadName, Head]]:
    """Yields the heads of the threads that a thread called, and of those that these called."""
    below: dict[str, list[threads.Thread]] = {}
    if name.startswith(threads.HEADS):
        for thread in threads.with_caller(store):
            below.setdefault(thread.fields["parent"], []).append(thread)
    waiting = [name[len(threads.HEADS) :]]
    while waiting:
        for thread in below.pop(waiting.pop(), ()):
            yield thread.name, thread.head
            waiting.append(thread.id)


def _user_schemas(store: Store) -> list[tuple[HeadName, Head]]:
    """Returns the heads of schemas that users or agents registered."""
    schema_heads = head_kinds.sound(store.heads, SCHEMAS)
    return [(name, head) for name, head in schema_heads if not head.record.get("builtin")]
