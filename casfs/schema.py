"""JSON Schema 2020-12 with references: what a payload must look like, and where its refs are.

Two keywords beyond the standard. `"format": "cas_ref"` marks a string as the hash of
something in the store and asserts its 64 hex characters; `"cas_type": "content"` beside
it names the type that the target must have. References are derived from the schema and
the payload together, never from a position, and are followed through every keyword that
can apply a subschema; of `anyOf`, `oneOf`, `if` and `contains` only what validates
counts. A keyword that this module does not know could hide a reference from gc, so a
schema that has one is refused.

jsonschema checks that a document is a schema at all, once, when it is registered;
jsonschema-rs validates payloads (some hundred times faster, and the two are compared in
the tests). Compiled schemas are immutable and may be shared between threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jsonschema_rs

from .canonical import member
from .digest import HEX
from .errors import Invalid

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
ROOT = "casfs:///root"
CUT = 200  # characters of a validator's message: it may quote the whole payload

ONE = {"additionalProperties", "items", "contains", "if", "then", "else", "not", "propertyNames"}
LIST = {"allOf", "anyOf", "oneOf", "prefixItems"}
MAP = {"properties", "patternProperties", "$defs", "dependentSchemas"}
PLAIN = set(
    "$schema $comment title description default examples deprecated readOnly writeOnly "
    "contentEncoding contentMediaType type enum const multipleOf maximum exclusiveMaximum "
    "minimum exclusiveMinimum maxLength minLength pattern maxItems minItems uniqueItems "
    "maxContains minContains maxProperties minProperties required dependentRequired "
    "format cas_type $ref".split()
)

Document = Any  # a schema: an object or a boolean
Collect = Callable[[Any, "list[Ref]"], None]


class Ref(NamedTuple):
    """A reference found in a payload; `cas_type` is the type its target must have, or None."""

    hash: str
    cas_type: str | None


class Schema:
    """A compiled schema document. Raises Invalid when the document is not acceptable."""

    def __init__(self, document: Document, *, extra: frozenset[str] = frozenset({"$id"})) -> None:
        """`extra`: root keywords that are no assertion (a role-schema has `name`)."""
        if not isinstance(document, dict):
            raise Invalid("a schema must be an object")
        root = {key: value for key, value in document.items() if key not in extra}
        _refuse_unknown(root, "$")
        try:
            asserted = _assert_refs(root)
            self._registry = jsonschema_rs.Registry([(ROOT, asserted)])
            self._validator = self._compile("")
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise Invalid(f"not a usable schema: {_line(str(error))}") from None
        self._memo: dict[str, Collect | None] = {}
        self._root = root
        self._collect = self._collector(root, "")

    def check(self, payload: Any) -> None:
        """Raise Invalid with the JSON path of the first fault and its reason."""
        if not self._validator.is_valid(payload):
            error = min(self._validator.iter_errors(payload), key=lambda e: len(e.instance_path))
            raise Invalid(f"{_path(error.instance_path)}: {_line(error.message)}")

    def refs(self, payload: Any) -> list[Ref]:
        """The references of a valid payload, in its order, each as often as it stands there."""
        found: list[Ref] = []
        if self._collect is not None:
            self._collect(payload, found)
        return found

    # -- compiling --------------------------------------------------------------------

    def _compile(self, pointer: str) -> jsonschema_rs.Validator:
        return jsonschema_rs.validator_for(
            {"$schema": DIALECT, "$ref": f"{ROOT}#{pointer}"}, registry=self._registry
        )

    def _collector(self, schema: Document, pointer: str) -> Collect | None:
        """A function that adds the refs of a value under `schema`; None when it has none."""
        if not isinstance(schema, dict) or not _has_refs(schema, self._root):
            return None
        parts: list[Collect] = []
        if schema.get("format") == "cas_ref":
            parts.append(_collect_ref(schema.get("cas_type")))
        if "$ref" in schema:
            parts.append(self._follow(schema["$ref"]))
        parts += self._everywhere(schema, pointer)
        parts += self._where_valid(schema, pointer)
        parts += self._in_object(schema, pointer)
        parts += self._in_array(schema, pointer)
        return _in_turn(parts)

    def _follow(self, target: str) -> Collect:
        pointer = target[1:]

        def follow(value: Any, found: list[Ref]) -> None:
            if pointer not in self._memo:
                self._memo[pointer] = self._collector(_resolve(self._root, target), pointer)
            if collect := self._memo[pointer]:
                collect(value, found)

        return follow

    def _everywhere(self, schema: Document, pointer: str) -> list[Collect]:
        branches = schema.get("allOf", [])
        return _some(self._collector(s, f"{pointer}/allOf/{i}") for i, s in enumerate(branches))

    def _where_valid(self, schema: Document, pointer: str) -> list[Collect]:
        parts = []
        for keyword in ("anyOf", "oneOf"):
            for index, branch in enumerate(schema.get(keyword, [])):
                at = f"{pointer}/{keyword}/{index}"
                if collect := self._collector(branch, at):
                    parts.append(_if_valid(self._compile(at), collect, None))
        if "if" in schema:
            then = _in_turn(
                _some(self._collector(schema.get(k), f"{pointer}/{k}") for k in ("if", "then"))
            )
            other = self._collector(schema.get("else", True), f"{pointer}/else")
            if then or other:
                parts.append(_if_valid(self._compile(f"{pointer}/if"), then, other))
        return parts

    def _in_object(self, schema: Document, pointer: str) -> list[Collect]:
        parts = []
        named = {
            name: self._collector(sub, f"{pointer}/properties/{_escape(name)}")
            for name, sub in schema.get("properties", {}).items()
        }
        patterns = [
            (_regex(text), self._collector(sub, f"{pointer}/patternProperties/{_escape(text)}"))
            for text, sub in schema.get("patternProperties", {}).items()
        ]
        rest = self._collector(
            schema.get("additionalProperties"), f"{pointer}/additionalProperties"
        )
        if any(named.values()) or any(collect for _, collect in patterns) or rest:
            parts.append(_collect_object(named, patterns, rest))
        for name, sub in schema.get("dependentSchemas", {}).items():
            if collect := self._collector(sub, f"{pointer}/dependentSchemas/{_escape(name)}"):
                parts.append(_if_present(name, collect))
        return parts

    def _in_array(self, schema: Document, pointer: str) -> list[Collect]:
        parts = []
        first = [
            self._collector(sub, f"{pointer}/prefixItems/{index}")
            for index, sub in enumerate(schema.get("prefixItems", []))
        ]
        rest = self._collector(schema.get("items"), f"{pointer}/items")
        if any(first) or rest:
            parts.append(_collect_array(first, rest))
        if collect := self._collector(schema.get("contains"), f"{pointer}/contains"):
            match = _if_valid(self._compile(f"{pointer}/contains"), collect, None)
            parts.append(_collect_array([], match))
        return parts


def check_document(document: Document) -> str:
    """The name (`$id`) of a schema document that may be registered. Raises Invalid."""
    import jsonschema  # the judge of documents; payloads never wait for its import

    if not isinstance(document, dict):
        raise Invalid("a schema must be an object")
    name = document.get("$id")
    if not isinstance(name, str) or not NAME.match(name):
        raise Invalid('a schema needs "$id": a name of letters, digits, ".", "_", "-"')
    if document.get("$schema", DIALECT) != DIALECT:
        raise Invalid(f'$["$schema"]: only {DIALECT} is understood')
    try:
        jsonschema.Draft202012Validator.check_schema(document)
    except jsonschema.SchemaError as error:
        raise Invalid(f"not a schema: {error.json_path}: {_line(error.message)}") from None
    Schema(document)
    return name


# -- walking schemas --------------------------------------------------------------------


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Document]]:
    """The direct subschemas, each with its path below `schema`."""
    for key, value in schema.items():
        if key in ONE:
            yield member("", key), value
        elif key in LIST:
            yield from ((f"{member('', key)}[{index}]", sub) for index, sub in enumerate(value))
        elif key in MAP:
            yield from ((member(member("", key), name), sub) for name, sub in value.items())


def _refuse_unknown(schema: Document, path: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise Invalid(f"{path}: a schema must be an object or a boolean")
    for key, value in schema.items():
        boolean = key in ("unevaluatedItems", "unevaluatedProperties") and isinstance(value, bool)
        if not (boolean or key in PLAIN or key in ONE or key in LIST or key in MAP):
            raise Invalid(
                f"{path}: the keyword {key!r} is not understood, it could hide a reference"
            )
    target = schema.get("$ref", "#")
    if not isinstance(target, str) or not re.match(r"#(/|\Z)", target):
        raise Invalid(f"{path}: $ref {target!r} leads out of the schema")
    for key in ("not", "propertyNames"):
        if isinstance(schema.get(key), dict) and _has_refs(schema[key], {}):
            raise Invalid(f"{path}.{key}: a cas_ref there could never be followed")
    try:
        below = list(_subschemas(schema))
    except (TypeError, AttributeError):
        raise Invalid(f"{path}: a keyword's value is not a schema") from None
    for step, sub in below:
        _refuse_unknown(sub, path + step)


def _has_refs(schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """False only when no value can have a ref under `schema` (a `$ref` counts as one)."""
    if schema.get("format") == "cas_ref":
        return True
    if "$ref" in schema and root is not schema:
        return True
    return any(isinstance(sub, dict) and _has_refs(sub, root) for _, sub in _subschemas(schema))


def _assert_refs(schema: Document) -> Document:
    """The schema with each cas_ref's 64 hex characters as an assertion."""
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ONE:
            copy[key] = _assert_refs(value)
        elif key in LIST:
            copy[key] = [_assert_refs(sub) for sub in value]
        elif key in MAP:
            copy[key] = {name: _assert_refs(sub) for name, sub in value.items()}
        else:
            copy[key] = value
    if copy.get("format") == "cas_ref":
        hex64 = {"pattern": "^[0-9a-f]{64}$"}
        if "pattern" in copy:
            copy["allOf"] = [*copy.get("allOf", []), hex64]
        else:
            copy |= hex64
    return copy


def _resolve(root: Document, target: str) -> Document:
    found = root
    for part in target[2:].split("/") if target != "#" else []:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


def _escape(name: str) -> str:
    """A key as part of a JSON pointer inside a URI fragment."""
    from urllib.parse import quote

    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~")


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise Invalid(f"patternProperties: {text!r} is no usable pattern: {error}") from None


# -- collectors --------------------------------------------------------------------------


def _some(parts: Iterable[Collect | None]) -> list[Collect]:
    return [collect for collect in parts if collect]


def _in_turn(parts: list[Collect]) -> Collect | None:
    if len(parts) <= 1:
        return parts[0] if parts else None

    def collect(value: Any, found: list[Ref]) -> None:
        for part in parts:
            part(value, found)

    return collect


def _collect_ref(cas_type: str | None) -> Collect:
    def collect(value: Any, found: list[Ref]) -> None:
        if isinstance(value, str) and HEX.match(value):
            found.append(Ref(value, cas_type))

    return collect


def _if_valid(
    validator: jsonschema_rs.Validator, then: Collect | None, other: Collect | None
) -> Collect:
    def collect(value: Any, found: list[Ref]) -> None:
        chosen = then if validator.is_valid(value) else other
        if chosen:
            chosen(value, found)

    return collect


def _if_present(name: str, then: Collect) -> Collect:
    def collect(value: Any, found: list[Ref]) -> None:
        if isinstance(value, dict) and name in value:
            then(value, found)

    return collect


def _collect_object(
    named: dict[str, Collect | None],
    patterns: list[tuple[re.Pattern[str], Collect | None]],
    rest: Collect | None,
) -> Collect:
    def collect(value: Any, found: list[Ref]) -> None:
        if not isinstance(value, dict):
            return
        for key, item in value.items():
            known = key in named
            if known and (part := named[key]):
                part(item, found)
            for pattern, matched in patterns:
                if pattern.search(key):
                    known = True
                    if matched:
                        matched(item, found)
            if rest and not known:
                rest(item, found)

    return collect


def _collect_array(first: list[Collect | None], rest: Collect | None) -> Collect:
    def collect(value: Any, found: list[Ref]) -> None:
        if not isinstance(value, list):
            return
        for part, item in zip(first, value, strict=False):
            if part:
                part(item, found)
        if rest:
            for item in value[len(first) :]:
                rest(item, found)

    return collect


def _path(parts: list[str | int]) -> str:
    path = "$"
    for part in parts:
        path = f"{path}[{part}]" if isinstance(part, int) else member(path, part)
    return path


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= CUT else text[: CUT - 1] + "…"
