"""A text to be found byte for byte, in the forms that it has in files and in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from casfs.digest import CHUNK, is_hash
from casfs.errors import Invalid
from casfs.tombstones import MARK

FRAGMENT_BYTES = 12  # of a text: as much of it counts as a part
MIN_CHARS = 4  # of a text to be purged: a shorter one is everywhere


class Needle:
    """`text` as it is, and escaped for JSON: once as in a log, twice as in JSON within JSON."""

    def __init__(self, text: str) -> None:
        """Raises Invalid for an empty text."""
        if not text:
            raise Invalid("the text to look for is empty")
        forms = {text}
        for ascii_only in (False, True):
            escaped = _escaped(text, ascii_only)
            forms |= {escaped, _escaped(escaped, ascii_only)}
        ordered = sorted(forms, key=len, reverse=True)  # the longest form first
        self._text = re.compile("|".join(map(re.escape, ordered)))
        encoded = [form.encode("utf-8", "surrogateescape") for form in ordered]
        self._bytes = re.compile(b"|".join(map(re.escape, encoded)))
        self._encoded = encoded
        self._held_bytes = max(map(len, encoded)) - 1  # may begin a match that goes on

    def lines(self, data: bytes) -> list[int]:
        """Returns the numbers of the lines in which it begins, from 1."""
        found, line, end = [], 1, 0
        for match in self._bytes.finditer(data):
            line += data.count(b"\n", end, match.start())
            end = match.start()
            found.append(line)
        return sorted(set(found))

    def is_in(self, data: bytes) -> bool:
        return self._bytes.search(data) is not None

    def shares(self, data: bytes) -> bool:
        """Returns whether bytes have a part of the text, as a dictionary of a compression may."""
        for form in self._encoded:
            size = min(FRAGMENT_BYTES, len(form))
            windows = {form[at : at + size] for at in range(len(form) - size + 1)}
            if any(data[at : at + size] in windows for at in range(len(data) - size + 1)):
                return True
        return False

    def is_in_stream(self, source: BinaryIO) -> bool:
        held = b""
        while piece := source.read(CHUNK):
            if self.is_in(held + piece):
                return True
            held = (held + piece)[-self._held_bytes :] if self._held_bytes else b""
        return False

    def redacted(self, source: BinaryIO) -> Iterator[bytes]:
        """Yields a stream's bytes with MARK in place of the text, in constant memory."""
        held = b""
        while piece := source.read(CHUNK):
            data = held + piece
            end = max(len(data) - self._held_bytes, 0)
            for match in self._bytes.finditer(data):
                if match.start() < end:
                    end = max(end, match.end())
            yield self._bytes.sub(MARK.encode(), data[:end])
            held = data[end:]
        yield self._bytes.sub(MARK.encode(), held)

    def blanked(self, data: bytes) -> bytes:
        """Returns bytes of the same length, in which something else stands for the text."""

        def blank(match: re.Match[bytes]) -> bytes:
            size = len(match[0])
            mark = MARK.encode()
            return mark.ljust(size) if len(mark) <= size else b"*" * size

        return self._bytes.sub(blank, data)

    def strings_in(self, value: Any) -> Iterator[str]:
        """Yields the strings of a JSON value that have it, keys too; hashes are none."""
        if isinstance(value, str):
            if not is_hash(value) and self._text.search(value):
                yield value
        elif isinstance(value, list):
            for item in value:
                yield from self.strings_in(item)
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from self.strings_in(key)
                yield from self.strings_in(item)

    def redacted_value(self, value: Any) -> Any:
        """Returns a JSON value with MARK in place of the text in its strings."""
        if isinstance(value, str):
            return value if is_hash(value) else self._text.sub(MARK, value)
        if isinstance(value, list):
            return [self.redacted_value(item) for item in value]
        if isinstance(value, dict):
            return {
                self.redacted_value(key): self.redacted_value(item) for key, item in value.items()
            }
        return value


def _escaped(text: str, ascii_only: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]
