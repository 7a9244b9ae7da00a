"""The schemas that a store knows: heads `schemas/<name>` → schema nodes.

A schema node is immutable, and so is its compiled form: it is kept for the life of the
process, by hash. A name may move to a newer version; nodes of the older one keep their
type. The built-in names can only be moved by `casfs init` of a newer casfs, and a process of
the older one goes on with the types that it knows.

What type a node has is part of its bytes, so that is remembered too, for nodes that are often
referred to. That it is still stored has to be asked each time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from importlib import resources
from typing import Any

from casfs.backend.protocols import META, Backend, Head
from casfs.errors import Corrupt, NotFound
from casfs.nodes import node
from casfs.nodes.schema import Schema

HEADS = "schemas/"
REMEMBERED = 20_000  # nodes whose type is known


class Registry:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._compiled: dict[str, tuple[str, Schema]] = {}
        self._current: dict[str, str] = {}
        self._types: dict[str, str] = {}

    def head(self, name: str) -> Head:
        """Raises NotFound when no schema of that name is registered."""
        head = self._backend.heads.get(HEADS + name)
        if head is None:
            raise NotFound(f"no type {name!r}; see `casfs schema list`")
        return head

    def current(self, name: str) -> str:
        """The type that new nodes get. Raises NotFound."""
        found = self._current.get(name)
        if found is None:
            head = self.head(name)
            found = head.hash
            if head.record.get("builtin"):
                self._current[name] = found
        return found

    def remember(self, types: Mapping[str, str | None]) -> None:
        """The types of stored blobs, None for those that are no nodes (so far)."""
        if len(self._types) > REMEMBERED:
            self._types.clear()
        self._types.update((hash, type) for hash, type in types.items() if type is not None)

    def types_of(self, hashes: Collection[str]) -> dict[str, str | None]:
        """The types of those that are remembered."""
        found = map(self._types.get, hashes)
        return {hash: type for hash, type in zip(hashes, found, strict=True) if type is not None}

    def compiled(self, type_hash: str) -> tuple[str, Schema]:
        """(type name, compiled schema) of a schema node. Raises NotFound, Corrupt."""
        found = self._compiled.get(type_hash)
        if found is None:
            document = self.document(type_hash)
            found = self._compiled[type_hash] = document["$id"], Schema(document)
        return found

    def document(self, type_hash: str) -> dict[str, Any]:
        """The schema document of a type. Raises NotFound, Corrupt."""
        if type_hash == META:
            type_hash = self.head(META).hash
        _, document = node.decode(type_hash, self._backend.blobs.get(type_hash).data)
        if not isinstance(document, dict) or "$id" not in document:
            raise Corrupt(f"node {type_hash}: no schema, though nodes have it as their type")
        return document

    def name(self, type_hash: str) -> str:
        """The name of a type. Raises NotFound, Corrupt."""
        return META if type_hash == META else self.compiled(type_hash)[0]

    def names(self) -> list[str]:
        return [name[len(HEADS) :] for name, _ in self._backend.heads.list(HEADS)]


def builtin() -> dict[str, dict[str, Any]]:
    """The schema documents that come with casfs, by name; the meta-schema first."""
    documents = {}
    for file in resources.files("schemas").iterdir():
        if file.name.endswith(".json"):
            document = json.loads(file.read_text(encoding="utf-8"))
            documents[document["$id"]] = document
    return {META: documents.pop(META)} | dict(sorted(documents.items()))
