"""Redaction of a transcript: each secret that the scanner finds is replaced by a mark.

A mark reads `‹secret:KIND:n›`; `n` tells the secrets of one run apart, and is the same for the same
secret. The scanner finds nothing in a mark, so redacting twice changes nothing more.
"""

from __future__ import annotations

import re
import string
import threading
from collections.abc import Mapping
from typing import Any

from casfs.digest import is_hash
from casfs.scanner import MAX_SECRET_BYTES, Finding, Scanner

ENCODING = "utf-8"
ERRORS = "surrogatepass"  # a JSON text may hold half a character
MARK = "‹secret:{kind}:{number}›"
MARKS = re.compile("‹secret:[a-z-]+:([0-9]{1,9})›")
MARK_START = "‹secret:"
MIN_TEXT_CHARS = 12  # shorter texts hold no secret that the scanner knows
MAX_LINE_BYTES = 1 << 10
TOKEN_BYTES = string.ascii_letters.encode() + b"0123456789_+/=.~:@-"
HAS_DIGIT = re.compile(rb"\d")
NAMED_AT_END = re.compile(
    rb"(?i)(?:pass|pwd|secret|token|credential|key)[\w.\"'\]-]*\s*(?:[:=]\s*\S*)?\Z"
)
KEY_BEGIN = b"-----BEGIN"
KEY_END = b"-----END"
TELLING_NAME = re.compile("(?i)pass|pwd|secret|token|credential|key")
CLEAN_TEXTS = 8  # the texts of a step: an output is scanned as such, and again in its node
MIN_CLEAN_CHARS = 200  # scanning a shorter one takes as long as knowing it


class SecretMarks:
    """The marks of one run: of one thread, or of one command. `scanner`: None where what it finds
    may be recorded; `highest`: the number that earlier runs came to; `numbers`: of secrets."""

    def __init__(
        self,
        scanner: Scanner | None,
        highest: int = 0,
        numbers: Mapping[bytes, int] | None = None,
    ) -> None:
        self.scanner = scanner
        self.highest = highest
        self.numbers = dict(numbers or {})
        self._lock = threading.Lock()  # steps are built in threads of their own
        self._clean: tuple[str, ...] = ()  # the last texts without secrets and marks

    def mark(self, kind: str, secret: bytes) -> str:
        with self._lock:
            number = self.numbers.get(secret)
            if number is None:
                self.highest += 1
                number = self.numbers[secret] = self.highest
        return MARK.format(kind=kind, number=number)

    def in_bytes(self, data: bytes) -> bytes:
        """Returns a text with its secrets replaced, whatever else it holds. It is scanned again
        then: what a secret touched may be one, too."""
        if MARK_START.encode() in data:
            self._count_above(data.decode(ENCODING, "replace"))
        while findings := self._findings(data):
            pieces: list[bytes] = []
            end = 0
            for finding in findings:
                mark = self.mark(finding.kind, finding.secret)
                pieces += [data[end : finding.start], mark.encode()]
                end = finding.end
            data = b"".join([*pieces, data[end:]])
        return data

    def in_text(self, text: str) -> str:
        if len(text) < MIN_TEXT_CHARS or text in self._clean:
            return text
        data = text.encode(ENCODING, ERRORS)
        marked = self.in_bytes(data)
        if marked is not data:
            return marked.decode(ENCODING, ERRORS)
        self._note_clean(text)
        return text

    def in_json(self, value: Any) -> Any:
        """Returns a JSON value with the secrets in its strings replaced. One pass over all of them
        tells that there is none, which is the rule."""
        texts = self._texts_to_scan(value)
        if not texts:
            return value
        text = "\n".join(texts)
        if MARK_START in text:
            self._count_above(text)
        if self._findings(text.encode(ENCODING, ERRORS)):
            return self._in_json(value)
        for text in texts:
            self._note_clean(text)
        return value

    def _texts_to_scan(self, value: Any) -> list[str]:
        """Returns the strings in a JSON value that may hold secrets, with the names that tell so,
        but for those that are known to hold none."""
        texts: list[str] = []
        parts = [value]
        for part in parts:  # grows: a call for each part takes longer
            if isinstance(part, str):
                if len(part) >= MIN_TEXT_CHARS and part not in self._clean and not is_hash(part):
                    texts.append(part)
            elif isinstance(part, list | tuple):
                parts += part
            elif part is None or isinstance(part, int | float):
                continue  # asked here, since whether it is a Mapping takes ABCMeta longer
            elif isinstance(part, dict | Mapping):
                for name, member in part.items():
                    if len(name) >= MIN_TEXT_CHARS:
                        texts.append(name)
                    if isinstance(member, str) and _is_telling(name, member):
                        texts.append(_member(name, member))
                    else:
                        parts.append(member)
        return texts

    def _in_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.in_text(value)
        if isinstance(value, Mapping):
            return {
                self.in_text(key): self._in_member(key, member) for key, member in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._in_json(item) for item in value]
        return value

    def _in_member(self, name: str, value: Any) -> Any:
        marked = self._in_json(value)
        if marked is not value or not _is_telling(name, value):
            return marked
        member = _member(name, value)
        for finding in self._findings(member.encode(ENCODING, ERRORS)):
            return self.mark(finding.kind, value.encode(ENCODING, ERRORS))
        return value

    def begin_at_end(self, data: bytes) -> int:
        """Returns how many bytes at the end of a text may be the beginning of a secret."""
        if self.scanner is None:
            return 0
        tail = data[-MAX_LINE_BYTES:]
        count = _token_at_end(tail)
        if named := NAMED_AT_END.search(tail):
            count = max(count, len(tail) - named.start())
        key = data.rfind(KEY_BEGIN, max(0, len(data) - MAX_SECRET_BYTES))
        if key >= 0 and data.find(KEY_END, key) < 0:
            return max(count, len(data) - key)
        return count

    def _findings(self, data: bytes) -> tuple[Finding, ...]:
        return () if self.scanner is None else self.scanner.scan(data, binary=True)

    def _note_clean(self, text: str) -> None:
        if len(text) >= MIN_CLEAN_CHARS and MARK_START not in text:
            self._clean = (*self._clean[1 - CLEAN_TEXTS :], text)

    def _count_above(self, text: str) -> None:
        """Keeps the numbers of a later run apart from those that an earlier one gave."""
        numbers = [int(number) for number in MARKS.findall(text)]
        with self._lock:
            self.highest = max([self.highest, *numbers])


def _token_at_end(data: bytes) -> int:
    """Returns the length of the token at the end of a text; 0 for the last word of a sentence. The
    event loop calls it with what a program prints, so it takes linear time."""
    token = data[len(data.rstrip(TOKEN_BYTES)) :]
    is_word = token.endswith(b".") and not HAS_DIGIT.search(token)
    return 0 if is_word else len(token)


def _is_telling(name: str, value: Any) -> bool:
    return isinstance(value, str) and bool(TELLING_NAME.search(name)) and not is_hash(value)


def _member(name: str, value: str) -> str:
    return f'{name}="{value}"'
