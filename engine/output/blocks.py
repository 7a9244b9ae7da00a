"""Finds the values in an output that may be its meta: fenced JSON blocks and YAML front matter.

Linear in the output, whatever is in it, and bounded: the last MAX_OUTPUT_CHARS are read, the last
MAX_BLOCKS blocks parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from casfs import canonical
from casfs.errors import Invalid

MAX_OUTPUT_CHARS = 4 << 20
MAX_BLOCKS = 64
LEADING_BLANKS = "\ufeff \t\r\n"  # byte order mark and blanks
FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>\w*)")
RULE = "---"


def candidates(output: str) -> Iterator[tuple[str, Any]]:
    """Yields (source, value): JSON blocks from the last to the first, then front matter; the
    value is an Invalid where it does not parse."""
    whole = len(output) <= MAX_OUTPUT_CHARS
    text = output[-MAX_OUTPUT_CHARS:].lstrip(LEADING_BLANKS).replace("\r\n", "\n")
    lines = text.split("\n")
    for language, first, last in reversed(_blocks(lines)[-MAX_BLOCKS:]):
        value = parse_json("\n".join(lines[first:last]))
        if language or isinstance(value, dict):
            yield "JSON block", value
    front = _front_matter(lines) if whole else None
    if front is not None:
        yield "front matter", _yaml(front)


def map_json_blocks(
    output: str, change_text: Callable[[str], str], change_value: Callable[[Any], Any]
) -> str:
    """Returns the output with the values of its JSON blocks replaced by `change_value`, and the
    text around the blocks by `change_text`."""
    lines = output.replace("\r\n", "\n").split("\n")
    pieces = []
    begin = 0
    for _, first, last in _blocks(lines):
        value = parse_json("\n".join(lines[first:last]))
        if isinstance(value, dict):
            changed = change_value(value)
            block = lines[first:last] if changed == value else [_json(changed)]
            pieces += [change_text("\n".join(lines[begin:first])), *block]
            begin = last
    return "\n".join([*pieces, change_text("\n".join(lines[begin:]))])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def parse_json(text: str) -> Any:
    """Returns the JSON value of a text, an Invalid where it has none."""
    try:
        return canonical.parse(text)
    except Invalid as error:
        return error


def _blocks(lines: list[str]) -> list[tuple[str, int, int]]:
    """Returns (language, first line, line after the last) of each block that may be JSON. A fence
    that nothing closes is text."""
    fences = [_fence(line) for line in lines]
    longest = {"`": [0], "~": [0]}  # closing fence from the line on, to the end; last line first
    for fence in reversed(fences):
        for kind, lengths in longest.items():
            closes = fence is not None and fence[0] == kind and fence[3]
            lengths.append(max(lengths[-1], fence[1] if fence is not None and closes else 0))
    blocks = []
    index = 0
    while index < len(lines):
        opening = fences[index]
        index = index + 1
        if opening is None or not opening[4]:
            continue
        kind, length, language = opening[:3]
        if longest[kind][len(lines) - index] < length:
            continue
        first = index
        while not _closes(fences[index], kind, length):
            index += 1
        if language.lower() in ("json", ""):
            blocks.append((language, first, index))
        index += 1
    return blocks


def _fence(line: str) -> tuple[str, int, str, bool, bool] | None:
    """Returns (character, length, language, may close, may open) of a fence."""
    match = FENCE.match(line)
    if match is None:
        return None
    fence = match["fence"]
    end = match.end("fence")
    return (
        fence[0],
        len(fence),
        match["language"],
        not line[end:].strip(" \t"),
        "`" not in line[end:],
    )


def _closes(fence: tuple[str, int, str, bool, bool] | None, kind: str, length: int) -> bool:
    return fence is not None and fence[3] and fence[0] == kind and fence[1] >= length


def _front_matter(lines: list[str]) -> str | None:
    if lines[0].rstrip(" \t") != RULE:
        return None
    for index, line in enumerate(lines[1:], 1):
        if line.rstrip(" \t") == RULE:
            return "\n".join(lines[1:index])
    return None


def _yaml(text: str) -> Any:
    try:
        from engine import yaml_values  # most outputs have none

        return yaml_values.front_matter(text)
    except Invalid as error:
        return error
