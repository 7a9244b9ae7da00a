"""From what an agent said to the facts that the workflow routes on (seed 000).

The meta is the last fenced JSON block of the output that fits the role-schema, else the
YAML front matter. What stands around it is left alone: the whole output stays the step's
content. A digest that the role-schema marks as `cas_ref` becomes an artifact, and has to
be in the store; an agent that made one up is told so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from casfs import canonical
from casfs.errors import Invalid
from casfs.schema import Schema
from casfs.store import Store

FENCE = re.compile(r"^(`{3,}|~{3,})[ \t]*(\w*)[^\n`]*\n(.*?)^\1[ \t]*$", re.M | re.S)
FRONT = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*$", re.M | re.S)
BOM = "\ufeff"


@dataclass(frozen=True)
class Extracted:
    """`refs`: the digests in `meta`, each once."""

    meta: Mapping[str, Any]
    refs: tuple[str, ...]


def role_schema(document: Mapping[str, Any]) -> Schema:
    """The compiled form of a role-schema node's payload."""
    return Schema(dict(document), extra=frozenset({"name", "$id"}))


def extract(output: str, schema: Schema, store: Store) -> Extracted:
    """Raises Invalid with what is wrong with the best candidate."""
    fault = "it has no fenced JSON block and no front matter"
    for source, candidate in _candidates(output.lstrip(BOM).replace("\r\n", "\n")):
        if isinstance(candidate, Invalid):
            fault = f"the {source} is {candidate}"
            continue
        try:
            schema.check(candidate)
            canonical.encode(candidate)
            return Extracted(candidate, _refs(candidate, schema, store))
        except Invalid as error:
            fault = f"the {source} does not fit: {error}"
    raise Invalid(fault)


def _refs(meta: Any, schema: Schema, store: Store) -> tuple[str, ...]:
    refs = schema.refs(meta)
    found = store.blobs.info({ref.hash for ref in refs})
    for ref in refs:
        if ref.hash not in found:
            raise Invalid(f"{ref.hash} is not in the store")
        if ref.cas_type is not None:
            type_hash = found[ref.hash].type
            name = "blob" if type_hash is None else store.registry.compiled(type_hash)[0]
            if name != ref.cas_type:
                raise Invalid(f"{ref.hash} is a {name}, and must be a {ref.cas_type}")
    return tuple(dict.fromkeys(ref.hash for ref in refs))


def _candidates(output: str) -> Iterator[tuple[str, Any]]:
    """JSON blocks from the last to the first, then front matter; Invalid for what is none."""
    blocks = [match for match in FENCE.finditer(output) if match[2].lower() in ("json", "")]
    for match in reversed(blocks):
        candidate = _parsed(match[3])
        if match[2] or isinstance(candidate, dict):
            yield "JSON block", candidate
    front = FRONT.match(output.lstrip())
    if front:
        yield "front matter", _yaml(front[1])


def _parsed(text: str) -> Any:
    try:
        return canonical.parse(text)
    except Invalid as error:
        return error


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        return Invalid("not YAML: " + " ".join(str(error).split()))
