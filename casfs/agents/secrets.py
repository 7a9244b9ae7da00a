"""Secrets: values of environment variables that an agent's config names, and their redaction.

The engine gives an agent the secrets of its thread (`AgentContext.secrets`). All that the agent
puts through `AgentContext.store` is redacted by the store; text that it sends elsewhere, such as
to a model, it redacts with `Secrets.redact`. A redacted value reads `$NAME`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, BinaryIO

from casfs.backend.protocols import Backend, Head, HeadName
from casfs.digest import Digest, NodeDigest, NodeHash
from casfs.nodes.registry import Registry
from casfs.store import Store
from casfs.system.log import Log
from casfs.write_batch import Batch

SECRETS_VARIABLE = "CASFS_SECRETS"  # names of variables, for what a step's program puts itself
MIN_SECRET_CHARS = 6  # shorter values occur in ordinary text and are not redacted
SEARCH_CHUNK_BYTES = 1 << 20


class Secrets:
    """`values`: variable name to value. False where none is long enough to be redacted."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        found = {value: name for name, value in values.items() if len(value) >= MIN_SECRET_CHARS}
        forms = {form: name for value, name in found.items() for form in _forms(value)}
        self._forms = sorted(forms.items(), key=lambda pair: -len(pair[0]))

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __or__(self, other: Secrets) -> Secrets:
        return Secrets({**self.values, **other.values})

    @property
    def names(self) -> list[str]:
        return sorted(self.values)

    def redact(self, text: str) -> str:
        """Replaces every value by `$NAME`, also where it is escaped in JSON."""
        for value, name in self._forms:
            text = text.replace(value, f"${name}")
        return text

    def redact_bytes(self, data: bytes) -> bytes:
        for value, name in self._forms:
            data = data.replace(_bytes(value), f"${name}".encode())
        return data

    def begins_at_end(self, data: bytes) -> int:
        """Returns how many bytes at the end of `data` may be the beginning of a secret."""
        forms = [_bytes(value) for value, _ in self._forms]
        longest = max(map(len, forms), default=1) - 1
        ends = (data[-count:] for count in range(min(longest, len(data)), 0, -1))
        return next((len(end) for end in ends if any(one.startswith(end) for one in forms)), 0)

    def redact_json(self, value: Any) -> Any:
        """Returns a JSON value with every string in it redacted, keys included."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return {self.redact(key): self.redact_json(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.redact_json(one) for one in value]
        return value

    def names_in(self, data: bytes) -> list[str]:
        """Returns the variables whose values occur in `data`, sorted."""
        return sorted({name for value, name in self._forms if _bytes(value) in data})

    def names_in_file(self, file: BinaryIO) -> list[str]:
        """Returns the variables whose values occur in a file, read in chunks."""
        longest = max((len(_bytes(value)) for value, _ in self._forms), default=0)
        found: set[str] = set()
        data = b""
        while piece := file.read(SEARCH_CHUNK_BYTES):
            data = data[-longest:] + piece  # a value may cross a chunk border
            found.update(self.names_in(data))
        return sorted(found)

    def redacting_log(self, log: Log) -> Log:
        """Returns a log that redacts the texts of every event."""

        def redacted(event: str, **fields: Any) -> None:
            texts = {
                key: one if one is None or isinstance(one, bool | int) else self.redact(str(one))
                for key, one in fields.items()
            }
            log(event, **texts)

        return redacted if self else log


NO_SECRETS = Secrets({})


def of_step(env: Mapping[str, str]) -> Secrets:
    """Returns the secrets of the step in whose program `env` is the environment."""
    names = filter(None, env.get(SECRETS_VARIABLE, "").split(","))
    return Secrets({name: env[name] for name in names if env.get(name)})


def _forms(value: str) -> set[str]:
    """Returns the forms in which a value occurs in text: plain, inside a JSON string, and for a
    value of several lines, in a diff."""
    in_json = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return {value, *in_json, *(value.replace("\n", f"\n{mark}") for mark in "+- ")}


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def redacting_store(store: Store, secrets: Secrets) -> Store:
    """Returns a view of `store` that redacts, also what `store` redacts already."""
    return RedactingStore(store, secrets) if secrets else store


class RedactingStore(Store):
    """A store whose writes are redacted; reads are not."""

    def __init__(self, store: Store, secrets: Secrets) -> None:
        super().__init__(store.backend, store.root)
        self.registry, self.cache = store.registry, store.cache
        self.secrets = secrets_of(store) | secrets

    def batch(self) -> Batch:
        return _RedactingBatch(self.backend, self.registry, self.secrets)


def secrets_of(store: Store) -> Secrets:
    """Returns the secrets that a store redacts."""
    return store.secrets if isinstance(store, RedactingStore) else NO_SECRETS


class _RedactingBatch(Batch):
    def __init__(self, backend: Backend, registry: Registry, secrets: Secrets) -> None:
        super().__init__(backend, registry)
        self._secrets = secrets

    def put_stream(self, source: BinaryIO) -> Digest:
        """Unlike other batches, this one reads the whole stream into memory."""
        return super().put_stream(io.BytesIO(self._secrets.redact_bytes(source.read())))

    def put_node(self, type: str, payload: Any) -> NodeDigest:
        return super().put_node(type, self._secrets.redact_json(payload))

    def move(self, name: HeadName, old: Head, hash: NodeHash, record: Mapping[str, Any]) -> Head:
        return super().move(name, old, hash, self._secrets.redact_json(record))
