"""Writes hot packs: many new blobs in one private file, each at a multiple of 4 KiB.

A few blobs become files of their own; whether they are few shows at the end of a group, so its
first blobs are held in memory. A pack may be published once its group is complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from casfs.backend.objects import Objects
from casfs.backend.pack_files import SUFFIX
from casfs.backend.protocols import Staged
from casfs.digest import Digest
from casfs.packs.reader import open_pack
from casfs.packs.writer import PackWriter
from casfs.system.files import fsync, os_errors

MIN_BLOBS = 64  # fewer are files
HELD_MAX_BYTES = 16 << 20  # until they are that many; more are a pack in any case
MAX_BYTES = 64 << 20  # of a pack
BUFFER_BYTES = 1 << 20


class Group(NamedTuple):
    """Blobs that are published together: in one pack, or in a file each. `size`: how many."""

    number: int
    size: int
    paths: list[str]

    def staged(self, digest: Digest, member: int) -> Staged:
        if self.paths[0].endswith(SUFFIX):
            return Staged(digest, data=None, temp=self.paths[0], member=member)
        return Staged(digest, data=None, temp=self.paths[member])

    def discard(self) -> None:
        for path in self.paths:
            with suppress(OSError):
                os.unlink(path)


class HotPacks:
    """Not thread-safe. `groups`: those that are complete; the caller removes them."""

    def __init__(self, objects: Objects, held_max_bytes: int = HELD_MAX_BYTES) -> None:
        self._held_max_bytes = held_max_bytes
        self._objects = objects
        self._held: list[tuple[Digest, bytes]] = []
        self._held_bytes = 0
        self._file: BinaryIO | None = None
        self._temp = ""
        self._number = 0
        self.groups: list[Group] = []

    def add(self, digest: Digest, data: bytes) -> tuple[int, int]:
        """Appends a blob; returns the number of its group, and its own in that."""
        if self._file is None:
            self._held.append((digest, data))
            self._held_bytes += len(data)
            location = self._number, len(self._held) - 1
            if len(self._held) >= MIN_BLOBS or self._held_bytes >= self._held_max_bytes:
                self._open()
            return location
        with os_errors(f"cannot write {self._temp}"):
            location = self._number, self._writer.add(digest.hash, data)
        if self._writer.size >= MAX_BYTES:
            self.complete()
        return location

    def _open(self) -> None:
        self._temp = self._objects.staging.new_name()
        with os_errors(f"cannot write {self._temp}"):
            self._file = open(self._temp, "xb", buffering=BUFFER_BYTES)  # noqa: SIM115 - kept open
            self._writer = PackWriter(self._file, aligned=True)
            for digest, data in self._held:
                self._writer.add(digest.hash, data)
        self._held = []
        self._held_bytes = 0

    def complete(self) -> None:
        """Completes the current group, if it has any blob."""
        if self._file is not None:
            count = self._writer.members
            with os_errors(f"cannot write {self._temp}"), self._file:
                name = self._writer.finish()
            paths = [f"{self._temp}.{name}{SUFFIX}"]
            with os_errors(f"cannot write {paths[0]}"):
                os.rename(self._temp, paths[0])
            self._file = None
        else:
            count = len(self._held)
            paths = []
            try:
                for digest, data in self._held:
                    paths.append(str(self._objects.stage_bytes(digest, data).temp))
            except BaseException:
                Group(0, 0, paths).discard()
                raise
            self._held = []
            self._held_bytes = 0
        if count:
            self.groups.append(Group(self._number, count, paths))
            self._number += 1

    def close(self) -> None:
        """Drops what is not complete."""
        if self._file is not None:
            self._file.close()
            with suppress(OSError):
                os.unlink(self._temp)


def blank(path: str, member: int) -> None:
    """Overwrites a member of a private hot pack by zeros, durably."""
    index = open_pack(Path(path)).index
    frame = index.frame(index.member(member).frame)
    with os_errors(f"cannot write {path}"), open(path, "r+b") as pack:
        pack.seek(frame.offset)
        pack.write(bytes(frame.stored))
    fsync(path)


def spill(objects: Objects, staged: Sequence[Staged], spilled: list[Staged]) -> list[Staged]:
    """Returns what is staged, with longer plain bytes in files or packs instead of memory; these
    are added to `spilled`."""
    packs = HotPacks(objects, sys.maxsize)  # they are in memory anyway
    blobs = list(staged)
    places = {}
    try:
        for number, blob in enumerate(staged):
            if blob.data is not None and not blob.is_row:
                places[number] = packs.add(blob.digest, blob.data)
        packs.complete()
    finally:
        packs.close()
        for number, (group, member) in places.items():
            if group < len(packs.groups):
                blobs[number] = packs.groups[group].staged(staged[number].digest, member)
                spilled.append(blobs[number])
    return blobs
