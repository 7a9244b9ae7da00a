"""Secrets in a text."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from casfs.digest import hash_bytes
from casfs.scanner.hit_finder import Hit, hits
from casfs.scanner.rules import RULES
from casfs.version import VERSION

BINARY_PROBE_BYTES = 8 << 10
MAX_SECRET_BYTES = 16 << 10  # the private key of RSA-16384 in PEM has 13 KB
GENERAL_KIND = RULES[-1].kind  # any other rule says more about the same bytes


class Finding(NamedTuple):
    """A secret in a text. `line`: from 1. `start`, `end`: bytes of the secret itself."""

    kind: str
    line: int
    start: int
    end: int


def fingerprint(secret: bytes) -> str:
    """Returns what a list of allowed secrets holds for this one, or for a file of this content."""
    return hash_bytes(secret)


class Scanner:
    """`allowed`: fingerprints of secrets that are none, and of contents that hold none."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self.allowed = frozenset(allowed)

    @property
    def version(self) -> str:
        """Equal for scanners that find the same: the checks of the rules change with a release."""
        rules = [f"{rule.kind} {rule.pattern}" for rule in RULES]
        return fingerprint("\n".join([VERSION, *rules, *sorted(self.allowed)]).encode())[:16]

    def scan(self, data: bytes, binary: bool = False) -> tuple[Finding, ...]:
        """Returns the secrets in a text, in order; none overlap. Binary data has none, unless it is
        to be scanned, too."""
        findings = scan(data, binary)
        if not findings or not self.allowed:
            return findings
        if fingerprint(data) in self.allowed:
            return ()
        return tuple(found for found in findings if not self.allows(data[found.start : found.end]))

    def allows(self, secret: bytes) -> bool:
        return fingerprint(secret) in self.allowed


def scan(data: bytes, binary: bool = False) -> tuple[Finding, ...]:
    """As `Scanner.scan`, where nothing is allowed."""
    if not binary and is_binary(data):
        return ()
    found = hits(data)
    if not found:
        return ()
    return _with_lines(data, _without_overlaps(_spans(data, found)))


def is_binary(data: bytes) -> bool:
    return data.find(b"\0", 0, BINARY_PROBE_BYTES) >= 0


Span = tuple[int, int, str]  # start, end, kind


def _spans(data: bytes, found: list[Hit]) -> Iterator[Span]:
    tried = [0] * len(RULES)  # by rule: the end of what was looked at
    for end, index in found:
        if end <= tried[index]:
            continue
        rule = RULES[index]
        position = max(tried[index], end - rule.reach)
        while front := rule.front_regex.search(data, position, end):
            position = front.start() + 1
            match = rule.regex.match(data, front.start(), end + MAX_SECRET_BYTES)
            if match is None:
                continue
            position = match.end()
            start, stop = match.span(rule.secret_group)
            if stop - start <= MAX_SECRET_BYTES and rule.check(match):
                yield start, stop, rule.kind
        tried[index] = max(tried[index], position)


def _without_overlaps(spans: Iterator[Span]) -> list[Span]:
    """Returns the spans in order; of two that overlap, the one that says more."""
    chosen: list[Span] = []
    for span in sorted(spans, key=lambda span: (span[2] == GENERAL_KIND, span[0], -span[1])):
        if all(span[1] <= other[0] or span[0] >= other[1] for other in chosen):
            chosen.append(span)
    return sorted(chosen)


def _with_lines(data: bytes, spans: list[Span]) -> tuple[Finding, ...]:
    findings = []
    line = 1
    counted = 0
    for start, end, kind in spans:
        line += data.count(b"\n", counted, start)
        counted = start
        findings.append(Finding(kind=kind, line=line, start=start, end=end))
    return tuple(findings)
