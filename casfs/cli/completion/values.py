"""The values that an argument may take, read from the store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from casfs import config
from casfs.backend.derived import find_prefix
from casfs.backend.protocols import HeadName
from casfs.checkpoints import checkpoint
from casfs.cli.completion import command_tree as kinds
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.threads import lookup, threads
from casfs.threads.threads import Thread

MAX_VALUES = 100
MIN_HASH_CHARS = 2


def of_kind(kind: str, text: str, words: Sequence[str], store: str | None) -> list[str]:
    """Returns the values of a kind that `text` may become; `words`: the arguments before it."""
    root = config.store_root(store, os.environ).value
    if kind == kinds.AGENT or (kind == kinds.ROLE_AGENT and "=" in text):
        role, equals, name = text.rpartition("=")
        return [f"{role}{equals}{agent}" for agent in _agents(root) if agent.startswith(name)]
    if kind == kinds.PLAYER:
        both = (kinds.WORKFLOW, kinds.AGENT)
        return [
            value
            for player_kind in both
            for value in of_kind(player_kind, text, words=words, store=store)
        ]
    find = FINDERS.get(kind)
    if find is None:
        return []
    with Store.open(root) as opened:
        return list(dict.fromkeys(islice(find(opened, text, words), MAX_VALUES)))


def _revisions(store: Store, text: str, words: Sequence[str]) -> Iterator[str]:
    name, separator, part = text.partition("@")
    if separator and name:
        for candidate in reversed(checkpoint.listing(store, name)):
            if candidate.id.startswith(part) or (
                part and part in candidate.id[checkpoint.ID_RANDOM :]
            ):
                yield f"{name}@{candidate.id}"
        return
    yield from _beginning(checkpoint.names(store), text)
    yield from _threads(store, text, words)
    yield from _hashes(store, text, words)


def _threads(store: Store, text: str, _: Sequence[str]) -> Iterator[str]:
    """Names, then ids, the newest first."""
    all_threads = threads.list_threads(store)[::-1]
    yield from _beginning(
        (str(named.fields["name"]) for named in all_threads if _is_word(named)), text
    )
    yield from _beginning([lookup.LAST] if all_threads else [], text)
    part = text.upper()
    for thread in all_threads:
        if thread.id.startswith(part) or part in thread.id[lookup.TIME_CHARS :]:
            yield thread.id


def _hashes(store: Store, text: str, _: Sequence[str]) -> Iterator[str]:
    if len(text) >= MIN_HASH_CHARS and set(text) <= set("0123456789abcdef"):
        yield from find_prefix(store.blobs, text, MAX_VALUES)


def _names_below(prefix: str) -> Callable[[Store, str, Sequence[str]], Iterator[str]]:
    """The names of heads, up to the next slash."""

    def find(store: Store, text: str, _: Sequence[str]) -> Iterator[str]:
        for name, _head in store.heads.list(prefix + text):
            yield name[len(prefix) :].partition("/")[0]

    return find


def _plugin_versions(store: Store, text: str, words: Sequence[str]) -> Iterator[str]:
    yield from _names_below(f"plugins/{words[-1] if words else ''}/")(store, text, words)


def _roles(store: Store, text: str, words: Sequence[str]) -> Iterator[str]:
    """Of the workflow, or of the thread, that is named before."""
    if words:
        head = store.heads.get(HeadName(f"workflows/{words[0]}"))
        hash = head.hash if head else threads.workflow(store, lookup.find(store, words[0]))
        yield from _beginning(store.node(hash, "workflow").payload["roles"], text)


def _bindings(store: Store, text: str, words: Sequence[str]) -> Iterator[str]:
    return (f"{role}=" for role in _roles(store, text, words))


def _agents(root: Path) -> list[str]:
    """Profiles and installed agents."""
    from importlib.metadata import entry_points

    installed = {entry_point.name for entry_point in entry_points(group="casfs.agents")}
    return sorted({*installed, *config.agents(root, os.environ)})


def _beginning(values: Iterable[str], text: str) -> Iterator[str]:
    return (value for value in values if value.startswith(text))


FINDERS: dict[str, Callable[[Store, str, Sequence[str]], Iterator[str]]] = {
    kinds.REVISION: _revisions,
    kinds.REVISION_OR_DIRECTORY: _revisions,
    kinds.THREAD: _threads,
    kinds.HASH: _hashes,
    kinds.NAME: _names_below(checkpoint.HEADS),
    kinds.WORKFLOW: _names_below("workflows/"),
    kinds.TYPE: _names_below("schemas/"),
    kinds.PLUGIN: _names_below("plugins/"),
    kinds.VERSION_OF_PLUGIN: _plugin_versions,
    kinds.ROLE: _roles,
    kinds.ROLE_AGENT: _bindings,
}


def _is_word(thread: Thread) -> bool:
    """Whether the name of a thread is one word of a shell."""
    return re.fullmatch(head_kinds.NAME, thread.fields.get("name") or "") is not None
