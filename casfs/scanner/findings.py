"""Secrets in a text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from casfs.digest import hash_bytes
from casfs.scanner.hit_finder import Hit, hits
from casfs.scanner.rules import RULES
from casfs.scanner.spellings import Reading, is_utf16, without_spellings
from casfs.version import VERSION

BINARY_PROBE_BYTES = 8 << 10
MAX_SECRET_BYTES = 16 << 10  # the private key of RSA-16384 in PEM has 13 KB
MAX_WRAPPED = 3  # spellings one within the other, as JSON in JSON in base64
GENERAL_KIND = RULES[-1].kind  # any other rule says more about the same bytes


class Finding(NamedTuple):
    """A secret in a text. `line`: from 1. `start`, `end`: the bytes that spell it; `secret`: as it
    reads without what a program wrapped it in (`casfs.scanner.spellings`)."""

    kind: str
    line: int
    start: int
    end: int
    secret: bytes


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
        return tuple(finding for finding in findings if not self.allows(finding.secret))

    def allows(self, secret: bytes) -> bool:
        return fingerprint(secret) in self.allowed


def scan(data: bytes, binary: bool = False) -> tuple[Finding, ...]:
    """As `Scanner.scan`, where nothing is allowed."""
    if not binary and is_binary(data):
        return ()
    spans = _all_spans(data)
    return _with_lines(data, _without_overlaps(spans)) if spans else ()


def is_binary(data: bytes) -> bool:
    """Returns whether data is binary; UTF-16 counts as text."""
    return data.find(b"\0", 0, BINARY_PROBE_BYTES) >= 0 and not is_utf16(data)


Span = tuple[int, int, str, bytes]  # start, end, kind, secret


class WrappedText(NamedTuple):
    """`data`: what is in a text, with its hits and signs of spellings; `readings`: what was taken
    off, the outermost first; none of the text as it stands."""

    data: bytes
    hits: Sequence[Hit]
    signs: Sequence[str]
    readings: tuple[Reading, ...] = ()

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Returns where in the text as it stands a span of `data` is."""
        for reading in reversed(self.readings):
            start, end = reading.span(start, end)
        return start, end


def texts_in(data: bytes) -> Iterator[WrappedText]:
    """Yields a text as it stands, and as it reads without its spellings, one within the other up to
    MAX_WRAPPED."""
    return _with_inner(WrappedText(data, *hits(data)))


def _with_inner(text: WrappedText) -> Iterator[WrappedText]:
    yield text
    if len(text.readings) < MAX_WRAPPED:
        for reading in without_spellings(text.data, text.signs):
            readings = (*text.readings, reading)
            yield from _with_inner(WrappedText(reading.data, *hits(reading.data), readings))


def _all_spans(data: bytes) -> list[Span]:
    outermost = WrappedText(data, *hits(data))
    if not outermost.hits and not outermost.signs:
        return []
    return [
        (*text.span(start, end), kind, secret)
        for text in _with_inner(outermost)
        if text.hits
        for start, end, kind, secret in _spans(text.data, text.hits)
    ]


def _spans(data: bytes, rule_hits: Sequence[Hit]) -> Iterator[Span]:
    tried = [0] * len(RULES)  # by rule: the end of what was looked at
    for end, index in rule_hits:
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
            if stop - start > MAX_SECRET_BYTES or not rule.begins_at(data, match.start()):
                continue
            if rule.check(match):
                yield start, stop, rule.kind, data[start:stop]
        tried[index] = max(tried[index], position)


def _without_overlaps(spans: Iterable[Span]) -> list[Span]:
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
    for start, end, kind, secret in spans:
        line += data.count(b"\n", counted, start)
        counted = start
        findings.append(Finding(kind, line, start=start, end=end, secret=secret))
    return tuple(findings)
