"""The schema registry: heads `schemas/<name>` → schema nodes.

A schema node is immutable, and so is its compiled form, which is cached by hash for the life
of the process. A name may move to a newer version; nodes of the older one keep their type.
The built-in names are moved only by `casfs init` of a newer casfs; a running process of the
older one goes on with the types that it has cached.

The size of a blob never changes, nor does the type of a node, which is part of its bytes: both
are cached, for what is often referred to. Plain bytes may become a node, and whether a blob is
still stored must be checked each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from casfs.backend.protocols import META, Backend, BlobInfo, Head, HeadName
from casfs.errors import Corrupt, NotFound
from casfs.store.nodes import head_kinds, node

if TYPE_CHECKING:
    from casfs.store.nodes.schema import Schema
    from casfs.store.nodes.schema_dialect import Document

HEADS = "schemas/"
CACHED_BLOBS = 1 << 16
MAX_COMPILED = 1000
_compiled_schemas: dict[str, Schema] = {}


def head_name(type_name: str) -> HeadName:
    return HeadName(HEADS + type_name)


class Registry:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._compiled: dict[str, tuple[str, Schema]] = {}
        self._current: dict[str, str] = {}
        self._names: dict[str, str] = {META: META}
        self._infos: dict[str, BlobInfo] = {}

    def head(self, name: str) -> Head:
        """Returns the head of a type. Raises NotFound (no schema of that name), Corrupt."""
        head = head_kinds.get(self._backend.heads, head_name(name))
        if head is None:
            raise NotFound(f"no type {name!r}; see `casfs schema list`")
        return head

    def current(self, name: str) -> str:
        """Returns the type that new nodes get. Raises NotFound."""
        type_hash = self._current.get(name)
        if type_hash is None:
            head = self.head(name)
            type_hash = head.hash
            if head.record.get("builtin"):
                self._current[name] = type_hash
        return type_hash

    def cache(self, infos: Mapping[str, BlobInfo]) -> None:
        """Caches sizes and types of stored blobs."""
        if len(self._infos) > CACHED_BLOBS:
            self._infos.clear()
        self._infos.update(infos)

    def forget_plain(self) -> None:
        """Forgets plain bytes, of which some were found to be gone. Of a node that is gone each put
        of a reference says so: its type is known."""
        self._infos = {hash: info for hash, info in self._infos.items() if info.type is not None}

    def cached(self, hashes: Iterable[str]) -> dict[str, BlobInfo]:
        """Returns size and type of those that are cached; a type of None may be one by now."""
        infos = self._infos
        return {hash: infos[hash] for hash in hashes if hash in infos}

    def compiled(self, type_hash: str) -> tuple[str, Schema]:
        """Returns (type name, compiled schema) of a schema node. Raises NotFound, Corrupt."""
        compiled = self._compiled.get(type_hash)
        if compiled is None:
            document = self.document(type_hash)
            name = self._names[type_hash] = document["$id"]
            # META names another node in a store of another version.
            key = self.head(META).hash if type_hash == META else type_hash
            compiled = self._compiled[type_hash] = name, compile_schema(key, document)
        return compiled

    def document(self, type_hash: str) -> dict[str, Any]:
        """Returns the schema document of a type. Raises NotFound, Corrupt."""
        if type_hash == META:
            type_hash = self.head(META).hash
        _, document = node.decode(type_hash, self._backend.blobs.get(type_hash).data)
        if not isinstance(document, dict) or "$id" not in document:
            raise Corrupt(f"node {type_hash}: not a schema, though nodes have it as their type")
        return document

    def name(self, type_hash: str) -> str:
        """Returns the name of a type. Raises NotFound, Corrupt."""
        name = self._names.get(type_hash)
        if name is None:
            name = self._names[type_hash] = self.document(type_hash)["$id"]
        return name

    def names(self) -> list[str]:
        return [name[len(HEADS) :] for name, _ in head_kinds.sound(self._backend.heads, HEADS)]


def compile_schema(type_hash: str, document: Document) -> Schema:
    """Returns the compiled form of a schema node, made once for all stores of the process: it is
    named by the hash of its document. Raises Invalid."""
    from casfs.store.nodes.schema import Schema

    schema = _compiled_schemas.get(type_hash)
    if schema is None:
        if len(_compiled_schemas) >= MAX_COMPILED:
            _compiled_schemas.clear()
        schema = _compiled_schemas[type_hash] = Schema(document)
    return schema


def builtin() -> dict[str, dict[str, Any]]:
    """Returns the built-in schema documents by name, the meta-schema first."""
    import json
    from importlib import resources

    documents = {}
    for file in resources.files("schemas").iterdir():
        if file.name.endswith(".json"):
            document = json.loads(file.read_text(encoding="utf-8"))
            documents[document["$id"]] = document
    return {META: documents.pop(META)} | dict(sorted(documents.items()))
