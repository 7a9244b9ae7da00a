"""Redaction of secrets: values of environment variables that an agent's config names.

A config never holds a key, it names a variable; a config schema marks such a property with
`"format": "env"`. The variable's value is then a secret of the whole thread, whichever role it
belongs to, and of the thread's children. It is replaced by `$NAME` in every blob, node and record
that the thread's run or its agents put (`RedactingStore`, before anything is hashed), in prompts
and tool results (`Secrets.redact`), and in the log. So a program that prints its key, a model that
repeats it and a user who pasted it into the task are one case.

Files of the workspace are not redacted: they are the work, and are recorded unchanged; a file
that contains a secret is named in the log (`files_with_secrets`).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from casfs.agents.secrets import NO_SECRETS, Secrets
from casfs.backend.protocols import Backend, Head, HeadName
from casfs.digest import Digest, NodeDigest, NodeHash, TreeHash
from casfs.nodes.directory import File
from casfs.nodes.registry import Registry
from casfs.store import Store
from casfs.system.paths import printable
from casfs.trees import tree
from casfs.write_batch import Batch
from engine.secrets.config_marks import ENV, marked_values


def from_env(names: Iterable[str], env: Mapping[str, str]) -> Secrets:
    """Returns the secrets of the variables that are set."""
    return Secrets({name: env[name] for name in names if env.get(name)})


def secret_variables(schema: Any, config: Any) -> set[str]:
    """Returns the variables that a config names as secrets, by its schema."""
    return {one for one in marked_values(schema, config, ENV) if isinstance(one, str)}


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


def files_with_secrets(
    store: Store, secrets: Secrets, before: TreeHash | None, after: TreeHash
) -> Iterator[tuple[str, list[str]]]:
    """Yields (path, names of variables) of each file that changed between two trees and contains
    a secret."""
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
                yield printable(change.path), found
