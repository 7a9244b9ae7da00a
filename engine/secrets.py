"""Values that must not be recorded: what an agent's config takes from the environment.

A config never holds a key, it names a variable; a config schema says so with `"format":
"env"` at that property. From there on the variable's value is a secret of the whole thread,
whichever role it belongs to. It is replaced by `$NAME` in every blob, node and record that
the thread's run or its agents put (`guard`: a store that hides before anything is hashed),
in prompts and tool results (`hide`), and in the log. So a program that prints its key, a
model that repeats it and a user who pasted it into the task are one case.

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

FORMAT = "env"  # of a property in a config schema: its value names a variable
SHORTEST = 6  # characters; what is shorter stands in innocent text, too
LARGEST = 16 << 20  # bytes of a file that is searched


class Secrets:
    """Variables by name. `hide` has no effect on a text without any of their values."""

    def __init__(self, values: Mapping[str, str]) -> None:
        found = {value: name for name, value in values.items() if len(value) >= SHORTEST}
        forms = {form: name for value, name in found.items() for form in _forms(value)}
        self._forms = sorted(forms.items(), key=lambda pair: -len(pair[0]))

    def __bool__(self) -> bool:
        return bool(self._forms)

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

    def guard(self, store: Store) -> Store:
        """The same store; what is put through it is hidden first."""
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


def named(schema: Any, config: Any) -> Iterator[str]:
    """The variables that a config names, by its schema; a property that the config leaves out
    counts with its default."""
    if not isinstance(schema, Mapping):
        return
    if isinstance(config, str) and schema.get("format") == FORMAT:
        yield config
    if isinstance(config, Mapping):
        for key, below in schema.get("properties", {}).items():
            if isinstance(below, Mapping):
                yield from named(below, config.get(key, below.get("default")))
    if isinstance(config, list):
        for one in config:
            yield from named(schema.get("items"), one)


class Guarded(Store):
    """A store for a thread with secrets: what is read is what is there."""

    def __init__(self, store: Store, secrets: Secrets) -> None:
        super().__init__(store.backend, store.root)
        self.registry, self.memo = store.registry, store.memo
        self._secrets = secrets

    def batch(self) -> Batch:
        return _GuardedBatch(self.backend, self.registry, self._secrets)


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
        if isinstance(new, File) and new.digest.size_bytes <= LARGEST:
            if isinstance(change.old, File) and change.old.digest == new.digest:
                continue
            if found := secrets.names_in(store.get(new.digest.hash)):
                yield change.path.decode("utf-8", "replace"), found


def _forms(value: str) -> set[str]:
    """How a value may stand in a text: as it is, and inside a JSON string."""
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
