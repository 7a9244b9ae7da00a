"""What of a payload is structure, and so is never redacted: names of members of which its schema
says something, values that it lists, references, and the ids, kinds and paths that casfs compares.

An `.env` often has a word of these as a value (`SORT_KEY=name`). A payload in which it was replaced
would mean something else, or be no payload of its type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
Path = tuple[str, ...]  # the members that lead to a value; those of a list have none
Redact = Callable[[Any], Any]

IN_PLACE = ("allOf", "anyOf", "oneOf")  # lists of schemas of the same value
CONDITIONS = ("if", "then", "else")
MAX_DEPTH = 32  # of schemas that lead to one another
# The fields of our own types that are texts by their schema, and no text that anybody wrote.
COMPARED: Mapping[str, frozenset[Path]] = {
    "react-session": frozenset([("role",), ("sessionId",), ("stopReason",)]),
    "react-tool-call": frozenset(
        [
            *[("name",), ("kind",), ("status",), ("locations", "path"), ("diffs", "path")],
            *[("terminals", "id"), ("terminals", "cwd")],
        ]
    ),
    "react-turn": frozenset([("callId",), ("plan", "priority"), ("plan", "status")]),
    "thread-start": frozenset(
        [("session", name) for name in ("agent", "id", "directory", "transcript")]
    ),
    "thread-step": frozenset([("role",), ("session", "id")]),
}
NOTHING: frozenset[Path] = frozenset()


def redact_texts(
    document: Callable[[], Document], payload: Any, redact: Redact, type_name: str = ""
) -> Any:
    """Returns a payload with its texts redacted by `redact`, and its structure as it was.
    `document`: returns its schema, where it is needed; `type_name`: of the built-in type whose
    schema that is."""
    redacted = redact(payload)
    if redacted == payload:  # as nearly always
        return payload
    schema = document()
    walk = _Walk(schema, COMPARED.get(type_name, NOTHING), redact)
    return walk.value([schema], payload, redacted, path=())


class _Walk:
    def __init__(self, document: Document, compared: frozenset[Path], redact: Redact) -> None:
        self._document = document
        self._compared = compared
        self._redact = redact

    def value(self, schemas: Sequence[Any], old: Any, new: Any, path: Path) -> Any:
        """`schemas`: that are of this value, as they stand in the document."""
        if old == new:
            return new
        applying = [schema for part in schemas for schema in self._expanded(part)]
        if isinstance(old, str):
            is_structure = path in self._compared or any(_lists(part, old) for part in applying)
            return old if is_structure else new
        if isinstance(old, Mapping):
            return self._object(applying, old, new, path)
        if isinstance(old, list | tuple):
            return [
                self.value(_of_item(applying, index), item, new_item, path)
                for index, (item, new_item) in enumerate(zip(old, new, strict=True))
            ]
        return new

    def _object(
        self, schemas: Sequence[Document], old: Mapping[str, Any], new: Any, path: Path
    ) -> dict[str, Any]:
        result = {}
        for key, item in old.items():
            below, is_declared = _of_member(schemas, key)
            # By itself: two names may have become the same.
            [(new_key, new_item)] = (
                [(key, new[key])] if key in new else self._redact({key: item}).items()
            )
            name = key if is_declared else new_key
            result[name] = self.value(below, item, new_item, (*path, key))
        return result

    def _expanded(self, schema: Any, depth: int = 0) -> Iterator[Document]:
        """Yields a schema and those of the same value to which it leads."""
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return
        yield schema
        for keyword in IN_PLACE:
            for part in schema.get(keyword, ()):
                yield from self._expanded(part, depth + 1)
        for keyword in CONDITIONS:
            yield from self._expanded(schema.get(keyword), depth + 1)
        for part in schema.get("dependentSchemas", {}).values():
            yield from self._expanded(part, depth + 1)
        if isinstance(target := schema.get("$ref"), str):
            yield from self._expanded(self._target(target), depth + 1)

    def _target(self, pointer: str) -> Any:
        """Returns what `#/...` leads to: a schema has no references to others."""
        value: Any = self._document
        for part in pointer.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list):
                value = value[int(name)]
            else:
                value = value.get(name) if isinstance(value, Mapping) else None
        return value


def _lists(schema: Document, text: str) -> bool:
    is_reference = schema.get("format") == "cas_ref"
    return is_reference or text in schema.get("enum", ()) or schema.get("const") == text


def _of_member(schemas: Sequence[Document], key: str) -> tuple[list[Any], bool]:
    """Returns the schemas of a member, and whether one of them is of its name."""
    below: list[Any] = []
    for schema in schemas:
        named = schema.get("properties", {})
        matching = [
            part
            for pattern, part in schema.get("patternProperties", {}).items()
            if _matches(pattern, key)
        ]
        if key in named:
            below.append(named[key])
        below += matching
        additional = schema.get("additionalProperties")
        if key not in named and not matching and isinstance(additional, Mapping):
            below.append(additional)
    # What nothing is said of is what an agent has put together.
    return below, bool(below)


def _matches(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:  # of another dialect: to have it apply redacts no less
        return True


def _of_item(schemas: Sequence[Document], index: int) -> list[Any]:
    below = []
    for schema in schemas:
        first = schema.get("prefixItems", ())
        below.append(first[index] if index < len(first) else schema.get("items"))
    return below
