"""Values that must not be recorded: what an agent's config takes from the environment.

A config never holds a key, it names a variable; a config schema says so with `"format":
"env"` at that property. From there on the variable's value is a secret of the whole thread,
whichever role it belongs to, and of the threads that it calls. It is replaced by `$NAME` in
every blob, node and record that the thread's run or its agents put (`guard`: a store that
hides before anything is hashed), in prompts and tool results (`hide`), and in the log. So a
program that prints its key, a model that repeats it and a user who pasted it into the task
are one case.

Not here: files of the workspace. They are the work, and are recorded as they are; a file
that has a secret in it is named in the log (`leaks`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from casfs.backend import Backend, Head
from casfs.batch import Batch
from casfs.digest import Digest
from casfs.log import Log
from casfs.nodes.directory import File
from casfs.nodes.registry import Registry
from casfs.store import Store
from casfs.trees import tree
from engine.marks import ENV, marked

SHORTEST = 6  # characters; what is shorter stands in innocent text, too
PIECE = 1 << 20  # bytes of a file that are searched at once


class Secrets:
    """Variables by name. `hide` has no effect on a text without any of their values."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        found = {value: name for name, value in values.items() if len(value) >= SHORTEST}
        forms = {form: name for value, name in found.items() for form in _forms(value)}
        self._forms = sorted(forms.items(), key=lambda pair: -len(pair[0]))

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __or__(self, other: Secrets) -> Secrets:
        return Secrets({**self._values, **other._values})

    def hide(self, text: str) -> str:
        for value, name in self._forms:
            text = text.replace(value, f"${name}")
        return text

    def hide_bytes(self, data: bytes) -> bytes:
        for value, name in self._forms:
            data = data.replace(_bytes(value), f"${name}".encode())
        return data

    def hide_all(self, value: Any) -> Any:
        """A JSON value with every string in it hidden, keys too."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide_all(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_all(one) for one in value]
        return value

    def names_in(self, data: bytes) -> list[str]:
        """The variables whose values stand in `data`."""
        return sorted({name for value, name in self._forms if _bytes(value) in data})

    def names_in_file(self, file: BinaryIO) -> list[str]:
        """The same for a file of any size."""
        longest = max((len(_bytes(value)) for value, _ in self._forms), default=0)
        found: set[str] = set()
        data = b""
        while piece := file.read(PIECE):
            data = data[-longest:] + piece  # a value may begin in one and end in the next
            found.update(self.names_in(data))
        return sorted(found)

    def guard(self, store: Store) -> Store:
        """The same store; what is put through it is hidden first, with what it hides already."""
        return Guarded(store, self) if self else store

    def log(self, log: Log) -> Log:
        def hidden(event: str, **fields: Any) -> None:
            texts = {
                key: one if one is None or isinstance(one, bool | int) else self.hide(str(one))
                for key, one in fields.items()
            }
            log(event, **texts)

        return hidden if self else log


NONE = Secrets({})


def of(names: Iterable[str], env: Mapping[str, str]) -> Secrets:
    return Secrets({name: env[name] for name in names if env.get(name)})


def named(schema: Any, config: Any) -> set[str]:
    """The variables that a config names, by its schema."""
    return {one for one in marked(schema, config, ENV) if isinstance(one, str)}


class Guarded(Store):
    """A store for a thread with secrets: what is read is what is there."""

    def __init__(self, store: Store, secrets: Secrets) -> None:
        super().__init__(store.backend, store.root)
        self.registry, self.memo = store.registry, store.memo
        self.secrets = behind(store) | secrets

    def batch(self) -> Batch:
        return _GuardedBatch(self.backend, self.registry, self.secrets)


def behind(store: Store) -> Secrets:
    """What a store hides."""
    return store.secrets if isinstance(store, Guarded) else NONE


class _GuardedBatch(Batch):
    def __init__(self, backend: Backend, registry: Registry, secrets: Secrets) -> None:
        super().__init__(backend, registry)
        self._secrets = secrets

    def put_stream(self, source: BinaryIO) -> Digest:
        """Unlike with other batches, the whole of it has to be in memory."""
        return super().put_stream(io.BytesIO(self._secrets.hide_bytes(source.read())))

    def put_node(self, type: str, payload: Any) -> Digest:
        return super().put_node(type, self._secrets.hide_all(payload))

    def move(self, name: str, old: Head, hash: str, record: Mapping[str, Any]) -> Head:
        return super().move(name, old, hash, self._secrets.hide_all(record))


def leaks(
    store: Store, secrets: Secrets, before: str | None, after: str
) -> Iterator[tuple[str, list[str]]]:
    """(path, names of variables) of each file that changed between two trees and now has a
    secret in it."""
    if not secrets:
        return
    for change in tree.diff(store, before, after):
        new = change.new
        if isinstance(new, File):
            if isinstance(change.old, File) and change.old.digest == new.digest:
                continue
            with store.blobs.open(new.digest.hash) as file:
                found = secrets.names_in_file(file)
            if found:
                yield change.path.decode("utf-8", "replace"), found


def _forms(value: str) -> set[str]:
    """How a value may stand in a text: as it is, inside a JSON string, and where it has several
    lines, in a diff."""
    in_json = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return {value, *in_json, *(value.replace("\n", f"\n{mark}") for mark in "+- ")}


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
