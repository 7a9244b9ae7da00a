"""JSON Schema 2020-12 with references: validates payloads and collects their refs.

Four keywords extend the standard. `"format": "cas_ref"` marks a string as the hash of a
stored blob and asserts its 64 hex characters; `"cas_type": "content"` beside it names the
type that the target must have; `"cas_local": true` makes it a local ref, which only the
store that recorded it follows; `"cas_weak": true` one that does not keep its target: gc may
delete that, if a setting says so, before the node. References are derived from the schema
and the payload together, never from a position, through every keyword that can apply a
subschema; of `anyOf`, `oneOf`, `if` and `contains` only branches that validate count. An
unknown keyword could hide a reference from gc, so a schema that has one is refused.

jsonschema checks once, at registration, that a document is a schema; jsonschema-rs validates
payloads (some hundred times faster; the tests compare the two). Compiled schemas are
immutable and thread-safe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from casfs import canonical
from casfs.errors import Invalid
from casfs.store.nodes.ref_collectors import (
    Collect,
    Ref,
    collect_array,
    collect_if,
    collect_object,
    collect_ref,
    has_key,
    in_turn,
    only_set,
)
from casfs.store.nodes.schema_cost import Cost
from casfs.store.nodes.schema_dialect import (
    DIALECT,
    Document,
    assert_refs,
    has_refs,
    line,
    ref_target,
    walk,
)

# `\Z`, since `$` also matches before a newline at the end.
NAME = re.compile(r"[a-z][a-z0-9-]{0,63}\Z")
ROOT = "casfs:///root"
BACKTRACK_LIMIT = 10_000  # from each character


@contextmanager
def _refusing_deep_nesting() -> Iterator[None]:
    """Turns the RecursionError of a parser into Invalid. A pattern within a string, or combinators
    within combinators, need more levels of a library than their JSON has."""
    try:
        yield
    except RecursionError:
        raise Invalid("not a usable schema: its patterns or subschemas nest too deep") from None


class Schema:
    """A compiled schema document. Raises Invalid when the document is not acceptable."""

    @_refusing_deep_nesting()
    def __init__(
        self, document: Document, *, extra: frozenset[str] = frozenset({"$id"}), new: bool = False
    ) -> None:
        """`extra`: root keywords that assert nothing (a role-schema has `name`). `new`: refuse a
        pattern of which matching may take quadratic time; stored schemas may have some."""
        import jsonschema_rs  # it takes time, and many a process needs no schema

        if not isinstance(document, dict):
            raise Invalid("a schema must be an object")
        canonical.encode(document)  # valid JSON of bounded depth, or Invalid
        self.document = document
        # First, since `walk` refuses every keyword that it does not know.
        root = {key: value for key, value in document.items() if key not in extra}
        self._places = dict(walk(root, ()))
        self.has_refs = has_refs(root)
        # Before the library sees it: a `$ref` to nothing or in a circle, and a schema that would
        # cost too much, are refused here, in our words.
        self._cost = Cost(self._places)
        try:
            self._library = jsonschema_rs
            # The library knows no `cas_ref`: to it the 64 characters are a pattern.
            self._registry = jsonschema_rs.Registry([(ROOT, assert_refs(root))])
            self._validator, self._patterns = self._compile_linear(new)
        except ValueError as error:
            message = line(str(error))
            raise Invalid(f"not a usable schema: {message}") from None
        # Matching may take long: outputs are then matched in a process that can be killed.
        self.backtracks = isinstance(self._patterns, jsonschema_rs.FancyRegexOptions)
        self._collectors: dict[str, Collect | None] = {}
        self._collect = self._collector(root, "")

    def check(self, payload: Any) -> None:
        """Raises Invalid with the JSON path of the first fault and its reason."""
        # Counted first, since a validation cannot be interrupted. Only a payload that does not fit
        # is explained: the library takes 100 µs for each error, and much less to say yes or no.
        self._cost.limit(payload)
        try:
            if not self._validator.is_valid(payload):
                raise Invalid(self._cost.explain(self._validator, payload))
        except ValueError as error:  # no JSON to the library: nested too deep, lone surrogates
            raise Invalid(f"$: {line(str(error))}") from None

    def refs(self, payload: Any) -> list[Ref]:
        """Returns the references of a valid payload in its order, local ones too, with repetitions.
        Raises Invalid where it is nested too deep to follow them."""
        refs: list[Ref] = []
        if self._collect is not None:
            # A payload has a bounded depth, but each level may take several calls of collectors.
            try:
                self._collect((payload,), refs)
            except RecursionError:
                raise Invalid("$: nested too deep to follow its references") from None
        return refs

    # -- compiling --------------------------------------------------------------------

    def _compile_linear(self, new: bool) -> tuple[Any, Any]:
        """Returns the validator, and the engine that its patterns need. Raises ValueError: patterns
        of `new` schemas must match in linear time."""
        linear = self._library.RegexOptions()
        with suppress(ValueError):
            return self._compile("", linear), linear
        # A stored schema may be older than this rule, and its nodes must stay readable. A new one
        # is compiled as well: a pattern that neither engine takes gets the library's message.
        backtracking = self._library.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
        validator = self._compile("", backtracking)
        if new:
            raise ValueError("a pattern has look-around, back-references or too many repetitions")
        return validator, backtracking

    def _compile(self, pointer: str, patterns: Any) -> Any:
        # By reference, not the subschema itself: `$ref`s inside it lead from the document's root.
        reference = {"$schema": DIALECT, "$ref": f"{ROOT}#{pointer}"}
        return self._library.validator_for(
            reference, registry=self._registry, pattern_options=patterns
        )

    def _matcher(self, text: str) -> Callable[[str], bool]:
        """Matches a pattern as the validator does: Python's `re` differs, in `$` for one."""
        document = {"$schema": DIALECT, "pattern": text}
        return self._library.validator_for(document, pattern_options=self._patterns).is_valid

    def _collector(self, schema: Document, pointer: str) -> Collect | None:
        """Returns a function that appends the refs in values under `schema`; None without refs."""
        if not isinstance(schema, dict) or not has_refs(schema):
            return None
        parts: list[Collect] = []
        if schema.get("format") == "cas_ref":
            parts.append(collect_ref(schema))
        if "$ref" in schema:
            parts.append(self._follow(schema["$ref"]))
        parts += self._everywhere(schema, pointer)
        parts += self._where_valid(schema, pointer)
        parts += self._in_object(schema, pointer)
        parts += self._in_array(schema, pointer)
        return in_turn(parts)

    def _follow(self, target: str) -> Collect:
        pointer = target[1:]
        location = ref_target(target)

        # When a value is first met, not now: of a schema that refers to itself the collectors would
        # have no end. Two threads may both make one; they are equal.
        def follow(values: Iterable[Any], refs: list[Ref]) -> None:
            if pointer not in self._collectors:
                self._collectors[pointer] = self._collector(self._places[location], pointer)
            if collect := self._collectors[pointer]:
                collect(values, refs)

        return follow

    def _everywhere(self, schema: Document, pointer: str) -> list[Collect]:
        return only_set(self._in_list(schema, pointer, keyword="allOf"))

    def _in_list(self, schema: Document, pointer: str, keyword: str) -> list[Collect | None]:
        """Returns the collectors of each subschema in a list."""
        branches = schema.get(keyword, [])
        return [
            self._collector(branch, f"{pointer}/{keyword}/{index}")
            for index, branch in enumerate(branches)
        ]

    def _where_valid(self, schema: Document, pointer: str) -> list[Collect]:
        parts = []
        for keyword in ("anyOf", "oneOf"):
            for index, branch in enumerate(schema.get(keyword, [])):
                branch_pointer = f"{pointer}/{keyword}/{index}"
                if collect := self._collector(branch, branch_pointer):
                    is_valid = self._compile(branch_pointer, self._patterns).is_valid
                    parts.append(collect_if(is_valid, collect))
        if "if" in schema:
            # Refs of the condition itself count where it holds, as those of `then` do.
            condition = self._collector(schema["if"], f"{pointer}/if")
            consequence = self._collector(schema.get("then"), f"{pointer}/then")
            then = in_turn(only_set([condition, consequence]))
            other = self._collector(schema.get("else"), f"{pointer}/else")
            if then or other:
                is_valid = self._compile(f"{pointer}/if", self._patterns).is_valid
                parts.append(collect_if(is_valid, then, other))
        return parts

    def _in_object(self, schema: Document, pointer: str) -> list[Collect]:
        parts = []
        # Also names and patterns without refs: they say which members are additional.
        named: dict[str, Collect | None] = {}
        for name, sub in schema.get("properties", {}).items():
            named[name] = self._collector(sub, f"{pointer}/properties/{_escape(name)}")
        patterns: list[tuple[Callable[[str], bool], Collect | None]] = []
        for text, sub in schema.get("patternProperties", {}).items():
            matches = self._matcher(text)
            matched = self._collector(sub, f"{pointer}/patternProperties/{_escape(text)}")
            patterns.append((matches, matched))
        additional = self._collector(
            schema.get("additionalProperties"), f"{pointer}/additionalProperties"
        )
        if additional or any([*named.values(), *(matched for _, matched in patterns)]):
            parts.append(collect_object(named, patterns, additional))
        for name, sub in schema.get("dependentSchemas", {}).items():
            if collect := self._collector(sub, f"{pointer}/dependentSchemas/{_escape(name)}"):
                has_name = partial(has_key, name)
                parts.append(collect_if(has_name, collect))
        return parts

    def _in_array(self, schema: Document, pointer: str) -> list[Collect]:
        parts = []
        first = self._in_list(schema, pointer, keyword="prefixItems")
        remaining = self._collector(schema.get("items"), f"{pointer}/items")
        if any(first) or remaining:
            parts.append(collect_array(first, remaining))
        if collect := self._collector(schema.get("contains"), f"{pointer}/contains"):
            # `contains` applies to each item, and holds of some: refs of those count.
            is_valid = self._compile(f"{pointer}/contains", self._patterns).is_valid
            match = collect_if(is_valid, collect)
            parts.append(collect_array([], match))
        return parts


@_refusing_deep_nesting()
def check_document(document: Document) -> str:
    """Returns the name (`$id`) of a schema document that may be registered. Raises Invalid."""
    import jsonschema_rs

    if not isinstance(document, dict):
        raise Invalid("a schema must be an object")
    canonical.encode(document)  # valid JSON of bounded depth, or Invalid
    name = document.get("$id")
    if not isinstance(name, str) or not NAME.match(name):
        raise Invalid('a schema needs "$id": a name of a-z, 0-9, "-", a letter first')
    # As 2020-12, whatever it names as its `$schema`: `walk` refuses another one, and says why.
    if not jsonschema_rs.meta.is_valid({**document, "$schema": DIALECT}):
        raise Invalid(f"not a schema: {_schema_fault(document)}")
    # For what it raises: our keywords, its cost, patterns that are not linear.
    Schema(document, new=True)
    return name


def _schema_fault(document: Document) -> str:
    """Returns the best message for a document that is not a schema."""
    # jsonschema names place and fault best, but takes 30 ms for a document, and time to import.
    import jsonschema

    try:
        jsonschema.Draft202012Validator.check_schema(document)
    except jsonschema.SchemaError as error:
        return f"{error.json_path}: {line(error.message)}"
    return "it does not fit the meta-schema"


def _escape(name: str) -> str:
    """Returns a key as part of a JSON pointer inside a URI fragment."""
    # `~` first, or it would escape what stands for `/` again.
    escaped = name.replace("~", "~0").replace("/", "~1")
    return quote(escaped, safe="~")
