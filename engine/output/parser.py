"""Extracts the meta, the facts that the workflow routes on, from an agent's output (seed 000).

The meta is the last fenced JSON block of the output that fits the role-schema, else the
YAML front matter, else the `default` of the role-schema. The whole output stays the step's content.
A digest that the role-schema marks as `cas_ref` becomes an artifact and must be in the store; an
invented one is corrected by the agent, not by the extractor model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from casfs.errors import Invalid
from casfs.store.nodes.schema import Schema
from casfs.store.store import Store
from engine.output import reader
from engine.output.blocks import LEADING_BLANKS, RULE, parse_json
from engine.output.reader import ROLE_KEYWORDS, references

MAX_INLINE_CHARS = 64 << 10  # of an output that is parsed here; others in a subprocess
MAX_QUICK_CHARS = 8 << 10


@dataclass(frozen=True)
class Extracted:
    """`refs`: the digests in `meta`, each once."""

    meta: Mapping[str, Any]
    refs: tuple[str, ...]


class DanglingRef(Invalid):
    """The meta fits, but refers to a blob that is missing, or of another type."""


def role_schema(document: Mapping[str, Any]) -> Schema:
    """Compiles the payload of a role-schema node."""
    return Schema(dict(document), extra=ROLE_KEYWORDS)


def is_quick(output: str, schema: Schema) -> bool:
    """Returns whether `extract` takes well under a millisecond and needs no store, so that the
    daemon's loop may call it. Front matter is excluded: YAML is slow."""
    if len(output) > MAX_QUICK_CHARS or schema.backtracks or schema.has_refs:
        return False
    return not output.lstrip(LEADING_BLANKS).startswith(RULE)


def extract(output: str, schema: Schema, store: Store) -> Extracted:
    """Returns the meta of an output. Raises Invalid with the fault of the first candidate, the
    likeliest one; DanglingRef where the fault is only a ref."""
    if len(output) <= MAX_INLINE_CHARS and not schema.backtracks:
        readings = reader.read(output, schema)
    else:
        readings = reader.read_apart(output, schema)
    first: Invalid | None = None
    for source, meta, refs, fault in readings:
        try:
            if meta is None:
                raise Invalid(fault)
            return Extracted(meta, _stored(refs, store))
        except DanglingRef as error:
            first = first or DanglingRef(f"the {source} does not fit: {error}")
        except Invalid as error:
            first = first or error
    if "default" in schema.document and not isinstance(first, DanglingRef):
        with suppress(Invalid):  # a default that does not fit is only a remark
            meta = schema.document["default"]
            return Extracted(meta, _stored(references(meta, schema), store))
    raise first or Invalid("it has no fenced JSON block and no front matter")


def parse_exact(text: str, schema: Schema, store: Store) -> Extracted:
    """Returns the meta of a text that is a JSON object and nothing else. Raises Invalid."""
    value = parse_json(text)
    if isinstance(value, Invalid):
        raise value
    return Extracted(value, _stored(references(value, schema), store))


def _stored(refs: Sequence[tuple[str, str | None]], store: Store) -> tuple[str, ...]:
    """Returns the digests, each once. Raises DanglingRef."""
    if not refs:
        return ()
    infos = store.shown().blobs.info({hash for hash, _ in refs})  # nothing local is work by this
    for hash, cas_type in refs:
        if hash not in infos:
            raise DanglingRef(f"{hash} is not in the store")
        if cas_type is not None:
            type_hash = infos[hash].type
            name = "blob" if type_hash is None else store.registry.compiled(type_hash)[0]
            if name != cas_type:
                raise DanglingRef(f"{hash} is a {name}, and must be a {cas_type}")
    return tuple(dict.fromkeys(hash for hash, _ in refs))
