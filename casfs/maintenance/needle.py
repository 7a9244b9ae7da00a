"""A text to be found and replaced, in the spellings that it has in files and in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from casfs.digest import CHUNK, is_hash
from casfs.errors import Invalid
from casfs.maintenance import text_patterns
from casfs.scanner.findings import is_binary, texts_in
from casfs.store.tombstones import MARK

FRAGMENT_BYTES = 12  # of a text: as much of it counts as a part
MIN_CHARS = 4  # of a text to be purged: a shorter one is everywhere
Spans = list[tuple[int, int]]


class Needle:
    """Finds `text` in each spelling that `text_patterns` knows."""

    def __init__(self, text: str) -> None:
        """Raises Invalid for an empty text."""
        if not text:
            raise Invalid("the text to look for is empty")
        self._spellings = text_patterns.spellings_of(text)
        self._held_bytes = text_patterns.longest(text)  # may begin a match that goes on
        self._fragments = _fragments(text)

    def lines(self, data: bytes) -> list[int]:
        """Returns the numbers of the lines in which it begins, from 1."""
        line_numbers = []
        line = 1
        end = 0
        for spans in self._matches(data):
            start = spans[0][0]
            line += data.count(b"\n", end, start)
            end = start
            line_numbers.append(line)
        return sorted(set(line_numbers))

    def is_in(self, data: bytes) -> bool:
        is_plain = any(spelling.search(data) for spelling in self._spellings)
        return is_plain or next(self._wrapped_matches(data), None) is not None

    def shares(self, data: bytes) -> bool:
        """Returns whether bytes have a part of the text, as a dictionary of a compression may."""
        return any(
            data[offset : offset + size] in windows
            for size, windows in self._fragments.items()
            for offset in range(len(data) - size + 1)
        )

    def is_in_stream(self, source: BinaryIO) -> bool:
        held = b""
        while piece := source.read(CHUNK):
            if self.is_in(held + piece):
                return True
            held = (held + piece)[-self._held_bytes :]
        return False

    def redacted(self, source: BinaryIO) -> Iterator[bytes]:
        """Yields a stream's bytes with MARK in place of the text, in constant memory."""
        held = b""
        while piece := source.read(CHUNK):
            data = held + piece
            end = max(len(data) - self._held_bytes, 0)
            for spans in self._matches(data):
                if spans[0][0] < end:
                    end = max(end, spans[-1][1])
            yield self._marked(data[:end])
            held = data[end:]
        yield self._marked(held)

    def blanked(self, data: bytes) -> bytes:
        """Returns bytes of the same length, in which something else stands for the text."""
        blank = bytearray(data)
        for start, end in self._spans(data):
            mark = MARK.encode()
            size = end - start
            blank[start:end] = mark.ljust(size) if len(mark) <= size else b"*" * size
        return bytes(blank)

    def strings_in(self, value: Any) -> Iterator[str]:
        """Yields the strings of a JSON value that have it, keys too; hashes are none."""
        if isinstance(value, str):
            if not is_hash(value) and self.is_in(_bytes(value)):
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
            return value if is_hash(value) else _text(self._marked(_bytes(value)))
        if isinstance(value, list):
            return [self.redacted_value(item) for item in value]
        if isinstance(value, dict):
            return {
                self.redacted_value(key): self.redacted_value(item) for key, item in value.items()
            }
        return value

    def _matches(self, data: bytes) -> list[Spans]:
        """Returns where it is, in order, and of each match where its lines are."""
        matches = [
            [match.span(group) for group, line in enumerate(match.groups(), 1) if line is not None]
            for spelling in self._spellings
            for match in spelling.matches(data)
        ]
        apart = _without_overlaps(matches)
        wrapped = [
            spans for spans in self._wrapped_matches(data) if not _overlaps_any(spans, apart)
        ]
        return _without_overlaps([*apart, *wrapped])

    def _wrapped_matches(self, data: bytes) -> Iterator[Spans]:
        """Yields where the text is in one spelling within another, such as base64 of base64. The
        patterns know those that JSON makes of all others, and name the very bytes."""
        # Binary data has signs of spellings by chance: all of it would be decoded, for nothing.
        for text in texts_in(data) if not is_binary(data) else ():
            for spelling in self._spellings if text.readings else ():
                for match in spelling.matches(text.data):
                    yield [text.span(*match.span())]

    def _spans(self, data: bytes) -> Spans:
        return [span for spans in self._matches(data) for span in spans]

    def _marked(self, data: bytes) -> bytes:
        pieces = []
        end = 0
        for start, stop in self._spans(data):
            pieces += [data[end:start], MARK.encode()]
            end = stop
        return b"".join([*pieces, data[end:]]) if pieces else data


def _without_overlaps(matches: list[Spans]) -> list[Spans]:
    apart: list[Spans] = []
    for spans in sorted(matches):
        if not apart or spans[0][0] >= apart[-1][-1][1]:
            apart.append(spans)
    return apart


def _overlaps_any(spans: Spans, known_matches: list[Spans]) -> bool:
    start, end = spans[0][0], spans[-1][1]
    return any(start < known[-1][1] and known[0][0] < end for known in known_matches)


def _fragments(text: str) -> dict[int, set[bytes]]:
    """Returns by size the parts of a text in the forms that most often are in a dictionary."""
    forms = {
        _bytes(form) for form in (text, *text_patterns.split_lines(text)) if len(form) >= MIN_CHARS
    }
    for ascii_only in (False, True):
        once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        twice = json.dumps(once, ensure_ascii=ascii_only)[1:-1]
        forms |= {_bytes(once), _bytes(twice)}
    forms |= set(text_patterns.base64_forms(text))
    fragments: dict[int, set[bytes]] = {}
    for form in filter(None, forms):
        size = min(FRAGMENT_BYTES, len(form))
        fragments.setdefault(size, set()).update(
            form[offset : offset + size] for offset in range(len(form) - size + 1)
        )
    return fragments


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
