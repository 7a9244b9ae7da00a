"""YAML as far as it has a JSON form. The only importer of PyYAML.

`front_matter` reads what models write: booleans as in YAML 1.1, no aliases. `document` reads what
people write in files: scalars as in the core schema of YAML 1.2, so `on`, `no` and `010` are a
text, a text and ten; keys are strings, each once; aliases count as what they stand for.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, ClassVar

import yaml

from casfs.canonical import MAX_DEPTH, member
from casfs.errors import Invalid

MAX_FRONT_MATTER_CHARS = 64 << 10  # the YAML parser takes 50 µs for a token
MAX_DOCUMENT_CHARS = 1 << 20
MAX_VALUES = 100_000  # of a document, aliases expanded
TAG = "tag:yaml.org,2002:"
CORE = (  # tag, pattern of plain scalars, their first characters
    ("bool", "true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
)


class _BoundedLoader(yaml.SafeLoader):
    """Refuses deep nesting before it is parsed: the time of the scanner is quadratic in it."""

    def fetch_more_tokens(self) -> None:
        if self.flow_level > MAX_DEPTH or len(self.indents) > MAX_DEPTH:
            raise yaml.scanner.ScannerError(
                None, None, f"nested deeper than {MAX_DEPTH}", self.get_mark()
            )
        super().fetch_more_tokens()


class _FrontMatterLoader(_BoundedLoader):
    """A date is a string; an alias, by which a few lines could expand to gigabytes, is refused."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias is not accepted")
        return super().compose_node(parent, index)


_FrontMatterLoader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != f"{TAG}timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _DocumentLoader(_BoundedLoader):
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  (as PyYAML declares it)
    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (None, *(TAG + name for name in ("str", "seq", "map", "null")))
    }

    def get_single_node(self) -> yaml.Node | None:
        root = super().get_single_node()
        if root is not None:
            _count(root, {})
        return root

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != f"{TAG}str":
                raise _fault("a key must be a string; put it in quotes", key)
            if key.value in seen:
                raise _fault(f"duplicate key {key.value!r}", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _scalar(tag: str, loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    text = str(loader.construct_scalar(node))
    if tag == "bool":
        return text.lower() == "true"
    return float(text) if tag == "float" else int(text, 0 if text[1:2] in ("o", "x") else 10)


for _tag, _pattern, _first in CORE:
    _resolved = re.compile(f"(?:{_pattern})\\Z")
    _DocumentLoader.add_implicit_resolver(TAG + _tag, _resolved, _first)
    if _tag != "null":
        _DocumentLoader.add_constructor(TAG + _tag, partial(_scalar, _tag))


def front_matter(text: str) -> Any:
    """Returns the value of a text. Raises Invalid."""
    return _load(text, _FrontMatterLoader, MAX_FRONT_MATTER_CHARS)


def document(text: str) -> Any:
    """Returns the value of a file's text. Raises Invalid with line and column."""
    return _load(text, _DocumentLoader, MAX_DOCUMENT_CHARS)


def lines(text: str) -> dict[str, int]:
    """Returns the line of each value of a text that `document` has read, by its JSON path; the
    whole, `$`, is left out."""
    line_numbers: dict[str, int] = {}

    def note_parts(node: yaml.Node | None, path: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                note(value, member(path, key.value), key.start_mark)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                note(value, f"{path}[{index}]", value.start_mark)

    def note(node: yaml.Node, path: str, mark: yaml.Mark) -> None:
        line_numbers[path] = mark.line + 1
        note_parts(node, path)

    note_parts(yaml.compose(text, _DocumentLoader), "$")
    return line_numbers


def _load(text: str, loader: type[yaml.SafeLoader], limit: int) -> Any:
    if len(text) > limit:
        raise Invalid(f"longer than {limit >> 10} KiB")
    try:
        return yaml.load(text, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise Invalid(f"not YAML: {where}{error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise Invalid("not YAML: " + " ".join(str(error).split())) from None
    except Exception as error:  # a tag whose value is of another kind: whatever Python says then
        raise Invalid(f"not YAML: a tag does not fit its value ({error!r})") from None


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Returns how many values a node stands for, its aliases expanded."""
    if id(node) in known:
        if not known[id(node)]:
            raise _fault("an anchor contains its own alias", node)
        return known[id(node)]
    known[id(node)] = 0
    parts = node.value if isinstance(node, yaml.CollectionNode) else ()
    flat = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
    known[id(node)] = count = 1 + sum(_count(child, known) for child in flat)
    if count > MAX_VALUES:
        raise _fault(f"more than {MAX_VALUES} values", node)
    return count


def _fault(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
