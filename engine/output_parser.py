"""Extracts the meta, the facts that the workflow routes on, from an agent's output (seed 000).

The meta is the last fenced JSON block of the output that fits the role-schema, else the
YAML front matter. The whole output stays the step's content. A digest that the role-schema
marks as `cas_ref` becomes an artifact and must be in the store; an invented one is corrected by
the agent, not by the extractor model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from casfs import canonical
from casfs.errors import Invalid
from casfs.nodes.schema import Schema
from casfs.store import Store

FENCE = re.compile(
    r"^ {0,3}(`{3,}|~{3,})[ \t]*(\w*)[^\n`]*\n(.*?)^ {0,3}\1[`~]*[ \t]*$", re.M | re.S
)
FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*$", re.M | re.S)
LEADING_BLANKS = "\ufeff \t\r\n"  # byte order mark and blanks
TIMESTAMP = "tag:yaml.org,2002:timestamp"


class Loader(yaml.SafeLoader):
    """YAML as far as it has a JSON form: a date is a string, and an alias, by which a few
    lines could expand to gigabytes, is refused."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias is not accepted")
        return super().compose_node(parent, index)


Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != TIMESTAMP]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Extracted:
    """`refs`: the digests in `meta`, each once."""

    meta: Mapping[str, Any]
    refs: tuple[str, ...]


class DanglingRef(Invalid):
    """The meta fits, but refers to a blob that is missing, or of another type."""


def role_schema(document: Mapping[str, Any]) -> Schema:
    """Compiles the payload of a role-schema node."""
    return Schema(dict(document), extra=frozenset({"name", "$id"}))


def extract(output: str, schema: Schema, store: Store) -> Extracted:
    """Returns the meta of an output. Raises Invalid with the fault of the first candidate, the
    likeliest one; DanglingRef where the fault is only a ref."""
    faults: list[Invalid] = []
    for source, candidate in _candidates(output.lstrip(LEADING_BLANKS).replace("\r\n", "\n")):
        if isinstance(candidate, Invalid):
            faults.append(Invalid(f"the {source} is {candidate}"))
            continue
        try:
            return _validated(candidate, schema, store)
        except Invalid as error:
            kind = DanglingRef if isinstance(error, DanglingRef) else Invalid
            faults.append(kind(f"the {source} does not fit: {error}"))
    raise faults[0] if faults else Invalid("it has no fenced JSON block and no front matter")


def parse_exact(text: str, schema: Schema, store: Store) -> Extracted:
    """Returns the meta of a text that is a JSON object and nothing else. Raises Invalid."""
    candidate = _parsed(text)
    if isinstance(candidate, Invalid):
        raise candidate
    return _validated(candidate, schema, store)


def _validated(candidate: Any, schema: Schema, store: Store) -> Extracted:
    canonical.encode(candidate)  # first: validators disagree on what JSON cannot hold
    if not isinstance(candidate, dict):
        raise Invalid("$: must be an object")
    schema.check(candidate)
    return Extracted(candidate, _refs(candidate, schema, store))


def _refs(meta: Any, schema: Schema, store: Store) -> tuple[str, ...]:
    refs = schema.refs(meta)
    if not refs:
        return ()
    found = store.blobs.info({ref.hash for ref in refs})
    for ref in refs:
        if ref.hash not in found:
            raise DanglingRef(f"{ref.hash} is not in the store")
        if ref.cas_type is not None:
            type_hash = found[ref.hash].type
            name = "blob" if type_hash is None else store.registry.compiled(type_hash)[0]
            if name != ref.cas_type:
                raise DanglingRef(f"{ref.hash} is a {name}, and must be a {ref.cas_type}")
    return tuple(dict.fromkeys(ref.hash for ref in refs))


def _candidates(output: str) -> Iterator[tuple[str, Any]]:
    """Yields (source, value): JSON blocks from the last to the first, then front matter; the
    value is an Invalid where it does not parse."""
    blocks = [match for match in FENCE.finditer(output) if match[2].lower() in ("json", "")]
    for match in reversed(blocks):
        candidate = _parsed(match[3])
        if match[2] or isinstance(candidate, dict):
            yield "JSON block", candidate
    front = FRONT_MATTER.match(output.lstrip())
    if front:
        yield "front matter", _yaml(front[1])


def _parsed(text: str) -> Any:
    try:
        return canonical.parse(text)
    except Invalid as error:
        return error


def _yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return Invalid("not YAML: " + " ".join(str(error).split()))
