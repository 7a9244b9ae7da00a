"""Adds and removes members in the text of a JSON file; every other byte stays as it is.

`append` and `remove` are inverse: what was appended and is removed leaves the text as it was, also
where other members were added, changed or removed in between. A container that becomes empty gets
the white space that it had before as `inside`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from casfs.errors import Invalid

SPACE = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()


class Member(NamedTuple):
    """`key`: None in an array; `start`: of the key, or of the element; `end`: after the value."""

    key: str | None
    start: int
    value_start: int
    end: int


class Container(NamedTuple):
    """An object or an array: `start` is that of its bracket, `end` after the other one."""

    start: int
    end: int
    members: list[Member]

    def member(self, key: str) -> Member | None:
        """Returns the member with a key. Raises Invalid where there are two: readers differ."""
        named = [member for member in self.members if member.key == key]
        if len(named) > 1:
            raise Invalid(f"has {key!r} twice")
        return named[0] if named else None


def container(text: str, start: int) -> Container:
    """Returns the object or array that begins at `start`, or after white space there. Raises
    Invalid."""
    start = _skip(text, start)
    bracket = text[start : start + 1]
    if bracket not in ("{", "["):
        raise Invalid("has another value where an object or a list is expected")
    try:
        _, end = DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"is not JSON: {error}") from None
    return Container(start, end, list(_members(text, start + 1, bracket)))


def whole(text: str) -> Container:
    """Returns the object or array that a text is. Raises Invalid."""
    top = container(text, 0)
    if text[top.end :].strip():
        raise Invalid("is not JSON: something stands behind its end")
    return top


def _members(text: str, position: int, bracket: str) -> Iterator[Member]:
    closing = {"{": "}", "[": "]"}[bracket]
    position = _skip(text, position)
    while text[position] != closing:
        start = position
        key = None
        if bracket == "{":
            key, position = DECODER.raw_decode(text, position)
            position = _skip(text, _skip(text, position) + 1)
        value_start = position
        _, end = DECODER.raw_decode(text, position)
        yield Member(key, start, value_start, end)
        position = _skip(text, end)
        if text[position] == ",":
            position = _skip(text, position + 1)


def append(text: str, parent: Container, value: Any, key: str | None = None) -> str:
    """Returns the text with one more member at the end of a container, laid out as those before
    it. Of an empty container the white space inside goes: `inside` returns it before."""
    head, tail = text[: parent.start + 1], text[parent.end - 1 :]
    if parent.members:
        last = parent.members[-1]
        before = text[_gap_start(text, parent, last) : last.start]
        added = "," + before + _laid_out(value, key, before, _unit(text))
        return text[: last.end] + added + text[last.end :]
    if "\n" not in text.strip() and text.strip() not in ("{}", "[]"):
        return head + _laid_out(value, key, "", "") + tail
    outer = _indent_at(text, parent.start)
    unit = _unit(text)
    before = "\n" + outer + unit
    return head + before + _laid_out(value, key, before, unit) + "\n" + outer + tail


def remove(text: str, parent: Container, member: Member, inside: str = "") -> str:
    """Returns the text without a member of a container."""
    index = parent.members.index(member)
    if len(parent.members) == 1:
        return text[: parent.start + 1] + inside + text[parent.end - 1 :]
    if index == len(parent.members) - 1:
        return text[: parent.members[index - 1].end] + text[member.end :]
    return text[: member.start] + text[parent.members[index + 1].start :]


def inside(text: str, parent: Container) -> str:
    """Returns what stands between the brackets of a container."""
    return text[parent.start + 1 : parent.end - 1]


def _laid_out(value: Any, key: str | None, before: str, unit: str) -> str:
    """Returns a member as text. `before`: the white space in front of it; without a line break all
    is in one line."""
    if "\n" in before:
        indent = before.rpartition("\n")[2]
        written = json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", "\n" + indent)
    else:
        written = json.dumps(value, ensure_ascii=False)
    return written if key is None else f"{json.dumps(key, ensure_ascii=False)}: {written}"


def _gap_start(text: str, parent: Container, member: Member) -> int:
    """Returns where the white space before a member begins."""
    index = parent.members.index(member)
    if index == 0:
        return parent.start + 1
    return text.index(",", parent.members[index - 1].end) + 1


def _unit(text: str) -> str:
    """Returns the indentation of the text's first indented line."""
    indented = re.search(r"\n([ \t]+)\S", text)
    return indented[1] if indented else "  "


def _indent_at(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 : position]
    leading = SPACE.match(line)
    assert leading is not None
    return leading[0]


def _skip(text: str, position: int) -> int:
    space = SPACE.match(text, position)
    assert space is not None
    return space.end()
