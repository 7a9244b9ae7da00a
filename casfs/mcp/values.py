"""Results of tools: parts of lists and texts, of bounded size."""

from __future__ import annotations

import base64
import codecs
import io
import json
from collections.abc import Iterable
from itertools import islice
from typing import Any, BinaryIO, TypeAlias

from casfs.system import interruption

SIZE = 64 << 10  # bytes of one result, unless more is asked for
MAX_ROW_CHARS = 1000  # of a text in a list
Value: TypeAlias = dict[str, Any]


def rows(name: str, found: Iterable[Value], first: int, limit: int) -> Value:
    """Returns a window of a list."""
    kept: list[Value] = []
    size, more = 0, False
    for row in map(_short, islice(found, first, None)):
        interruption.check()
        size += len(json.dumps(row))
        if more := len(kept) == limit or (bool(kept) and size > SIZE):
            break
        kept.append(row)
    return {name: kept, **({"nextOffset": first + len(kept)} if more else {})}


def _short(value: Any) -> Any:
    """Returns a JSON value with its texts cut."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    is_long = isinstance(value, str) and len(value) > MAX_ROW_CHARS
    return f"{value[:MAX_ROW_CHARS]}…" if is_long else value


def window(text: str, first: int, count: int) -> Value:
    """Returns a part of a text, as `part`."""
    return part(io.BytesIO(text.encode()), first, count)


def part(source: BinaryIO, first: int, count: int, *, as_base64: bool = False) -> Value:
    """Returns `count` bytes of a file from `first` on: its `text`, or `base64`."""
    size = source.seek(0, io.SEEK_END)
    first = source.seek(min(first, size))
    data = source.read(count)
    end = first + len(data)
    value: Value = {"sizeBytes": size}
    if as_base64:
        value["base64"] = base64.b64encode(data).decode()
    else:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            text = decoder.decode(data, end == size)
            end -= len(decoder.getstate()[0])  # a character that was cut
            value |= {"isBinary": True} if "\0" in text else {"text": text}
        except UnicodeDecodeError:
            value["isBinary"] = True
    return value if end == size else {**value, "nextOffset": end}
