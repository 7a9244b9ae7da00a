"""Secrets in a stream of any length, found while it is read."""

from __future__ import annotations

import io
from typing import BinaryIO

from casfs.scanner.findings import MAX_SECRET_BYTES, Finding, Scanner, is_binary

PIECE_BYTES = 1 << 20
NAME_BYTES = 4 << 10  # before a secret: the name beside it


class ScanningReader(io.RawIOBase):
    """Reads `source`, and scans what passes in pieces; memory is bounded. `findings`: of all that
    was read, complete once the end was."""

    def __init__(self, source: BinaryIO, scanner: Scanner) -> None:
        self.findings: list[Finding] = []
        self._source = source
        self._scanner = scanner
        self._held = bytearray()
        self._held_at = 0  # where in the stream
        self._line = 1  # of the first byte held
        self._decided = 0  # all before it is in `findings`
        self._is_binary: bool | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]  # writable bytes, as of all readers
        data = self._source.read(len(view))
        view[: len(data)] = data
        if self._is_binary:
            return len(data)
        self._held += data
        at_end = not data and len(view) > 0
        if at_end or len(self._held) >= PIECE_BYTES:
            self._scan(at_end)
        return len(data)

    def _scan(self, at_end: bool) -> None:
        data = bytes(self._held)
        if self._is_binary is None:
            self._is_binary = is_binary(data)
        if self._is_binary:
            self._held.clear()
            return
        complete = len(data) if at_end else len(data) - MAX_SECRET_BYTES
        for finding in self._scanner.scan(data):
            if finding.start < complete and self._held_at + finding.start >= self._decided:
                self.findings.append(self._in_stream(finding))
                self._decided = self.findings[-1].end
        self._decided = max(self._decided, self._held_at + complete)
        passed = max(0, complete - NAME_BYTES)
        self._line += data.count(b"\n", 0, passed)
        self._held_at += passed
        del self._held[:passed]

    def _in_stream(self, finding: Finding) -> Finding:
        return finding._replace(
            line=self._line + finding.line - 1,
            start=self._held_at + finding.start,
            end=self._held_at + finding.end,
        )
