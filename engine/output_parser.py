"""From what an agent said to the facts that the workflow routes on (seed 000): {meta, content,
refs[]}, where the content is all that was said.

The meta is the last fenced JSON block of the output that fits the role-schema, else the
YAML front matter. What stands around it is left alone: the whole output stays the step's
content. A digest that the role-schema marks as `cas_ref` becomes an artifact, and has to
be in the store; an agent that made one up is told so, and no model is asked to do better.
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
LEADING_BLANKS = "\ufeff \t\r\n"  # a byte order mark, and blanks around it
TIMESTAMP = "tag:yaml.org,2002:timestamp"


class Loader(yaml.SafeLoader):
    """YAML as far as it has a JSON form: a date is a string, and an alias, by which a few
    lines can stand for gigabytes, is refused."""

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
    """The meta fits, and names what is not in the store, or is of another type."""


def role_schema(document: Mapping[str, Any]) -> Schema:
    """The compiled form of a role-schema node's payload."""
    return Schema(dict(document), extra=frozenset({"name", "$id"}))


def extract(output: str, schema: Schema, store: Store) -> Extracted:
    """Raises Invalid with what is wrong with the first candidate, the likeliest one; Dangling
    where that is only what it refers to."""
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
    """The meta that a text is, alone. Raises Invalid."""
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
    """JSON blocks from the last to the first, then front matter; Invalid for what is none."""
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
