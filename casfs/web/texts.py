"""Texts of the store, of bounded length, as pages show them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.threads.summary import content_text

MAX_CHARS = 16_384  # that a page shows of one text


@dataclass(frozen=True)
class Text:
    """`text`: its beginning, or its end, of at most MAX_CHARS; `hash`: of the blob or node that has
    all of it; `cut`: whether more is there."""

    text: str
    hash: str | None = None
    cut: bool = False


def bounded(text: str, hash: str | None = None, limit: int = MAX_CHARS) -> Text:
    return Text(text[:limit], hash, len(text) > limit)


def content(store: Store, hash: str, limit: int = MAX_CHARS) -> Text:
    """Returns the text of a content node; of a damaged one, its fault."""
    try:
        return bounded(content_text(store, hash), hash, limit)
    except CasfsError as error:
        return Text(f"[{error}]", hash)


def blob(store: Store, hash: str, limit: int = MAX_CHARS, *, end: bool = False) -> Text:
    """Returns the first bytes of a blob, or the last ones, as text; of a damaged one, its fault."""
    try:
        with store.blobs.open(hash) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit) if end else 0)
            return Text(file.read(limit).decode("utf-8", "replace"), hash, size > limit)
    except CasfsError as error:
        return Text(f"[{error}]", hash)


def as_json(value: Any, hash: str | None = None, limit: int = MAX_CHARS) -> Text:
    return bounded(json.dumps(value, ensure_ascii=False, indent=2), hash, limit)
