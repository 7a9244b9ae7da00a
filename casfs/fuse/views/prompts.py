"""The prompts of steps in the mount: `steps/N/prompt.md` and `running/prompt.md`.

They are rebuilt when they are read (`casfs.threads.prompts`), never for a listing: the length of a
recorded one is in its step. One that cannot be proved says so in its first line; its length stays
that of the step, so its end may be cut.
"""

from __future__ import annotations

from casfs.errors import CasfsError
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import READ_FILE, Attr, File
from casfs.threads.threads import ThreadId


class PromptFile(File):
    """The prompt of a recorded step."""

    __slots__ = ("_hash", "_id", "_mtime_ns", "_reader")

    def __init__(
        self, key: bytes, reader: StoreReader, id: ThreadId, hash: str, mtime_ns: int
    ) -> None:
        super().__init__(key)
        self._reader = reader
        self._id = id
        self._hash = hash
        self._mtime_ns = mtime_ns

    def attr(self) -> Attr:
        return Attr(READ_FILE, self._size(), self._mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        return self._reader.prompt(self._id, self._hash).ljust(self._size())[offset : offset + size]

    def _size(self) -> int:
        size: int = self._reader.node(self._hash, "thread-step").payload["prompt"]["size"]
        return size


def running(reader: StoreReader, id: ThreadId) -> tuple[bytes, int]:
    """Returns the prompt of the pending step, empty where there is none, and its mtime (ns)."""
    thread, mtime_ns = reader.thread(id)
    try:
        return reader.pending_prompt(thread), mtime_ns
    except CasfsError as error:  # damage; the other files of the step are shown all the same
        return f"[casfs: this prompt cannot be rebuilt: {error}]\n".encode(), mtime_ns
