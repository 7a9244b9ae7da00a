"""The interface of object storage: what a remote needs of an S3 bucket or of a directory.

Keys are relative to the URL. Contents are hostile: callers verify them against their hashes. Every
method is synchronous and may be called in any thread. Raises, beside what a method names:
Unreachable where the server does not answer in time, AccessDenied where it refuses the credentials
or has no such bucket, Failed for other answers.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from casfs.errors import Corrupt, Invalid

MAX_OBJECT_BYTES = 256 << 20  # that `get` takes into memory
KEY = re.compile(r"(?!\.)[A-Za-z0-9._-]+(/(?!\.)[A-Za-z0-9._-]+)*")


class Found(NamedTuple):
    """Metadata of an object. `modified`: the server's time of the last put."""

    size: int
    modified: datetime


class ObjectStorage(ABC):
    """Objects under keys. `url` holds no secret."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def get(self, key: str, max_size: int = MAX_OBJECT_BYTES) -> bytes:
        """Raises NotFound; Corrupt where the object is larger."""

    @abstractmethod
    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """Returns exactly these bytes. Raises NotFound; Corrupt where the object ends before."""

    @abstractmethod
    def get_tail(self, key: str, size: int) -> tuple[bytes, int]:
        """Returns the last bytes, as many as there are, and the object's size. Raises NotFound."""

    @abstractmethod
    def put(self, key: str, data: bytes | Path) -> None:
        """Writes an object, over one of that key; it may be repeated after a lost answer."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Returns False where the key exists with another content. With equal content it is True:
        after a lost answer that is the caller's own put. So each content must be unique, by a
        random id in it."""

    @abstractmethod
    def head(self, key: str) -> Found | None: ...

    @abstractmethod
    def delete(self, key: str) -> None:
        """Deletes an object, if there is one."""

    def unfinished(self, *, delete: bool) -> dict[str, int]:
        """Returns the files that killed uploads have left, with their sizes; `delete`: deletes
        them. A server of S3 shows none: it drops them by a rule of its own."""
        return {}

    @abstractmethod
    def list(self, prefix: str) -> Iterator[tuple[str, Found]]:
        """Yields what is below a prefix like "packs/". It may lag: decide nothing by it."""

    @abstractmethod
    def now(self) -> datetime:
        """Returns the time by the server's clock."""

    @abstractmethod
    def server(self) -> str:
        """Returns what serves the URL, by the name that it gives itself."""

    def place(self, key: str) -> str:
        """Returns where an object is, for messages. Raises Invalid for an invalid key."""
        if not KEY.fullmatch(key):
            raise Invalid(f"{self.url}: {key[:80]!r} is not the key of an object")
        return f"{self.url}/{key}"

    def exactly(self, key: str, data: bytes, size: int) -> bytes:
        """Returns `data`. Raises Corrupt where it is not of this size."""
        if len(data) != size:
            raise Corrupt(f"{self.place(key)} ends early: the object is damaged")
        return data

    def bounded(self, key: str, size: int, max_size: int) -> None:
        """Raises Corrupt for an object that is larger than expected."""
        if size > max_size:
            raise Corrupt(f"{self.place(key)} has {size} bytes, more than {max_size}: not read")
