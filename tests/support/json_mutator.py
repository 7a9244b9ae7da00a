"""JSON of a program that is not ours, as no version of it writes it: for whatever reads such."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

DEEP = 900  # of which Python's parser of JSON reads some, and others not
# Written as they stand, since no value of Python becomes them.
RAW = {
    "@number without an end@": b"1e400",
    "@no number@": b"NaN",
    "@an integer of many digits@": b"9" * 400,
    "@half a character@": rb'"\ud800"',
    "@a byte that is no text@": b'"\xff\xfe"',
    "@many lists@": b"[" * DEEP + b"]" * DEEP,
}
TEXTS = (
    "", "\0", "\x1b]0;title\x07\x1b[31m", "\u202egnp.exe", "../../../../etc/passwd", "/dev/zero",
    "a\nb\r\nc", "x" * 70_000, "%s%n{0}", "-", "--help", "~root", "null", "9" * 30, "\ud83d\ude00",
    "/proc/self/mem", "/nowhere/at/all", "1970-01-01T00:00:00Z", "9999-99-99T99:99:99Z",
)  # fmt: skip
NUMBERS = (0, -1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, -(10**30), 1.5, -0.0, 1e308)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"b": [{}]}})
MAX_CHANGES = 3


class JsonMutator:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def mutated(self, data: bytes) -> bytes:
        """Returns a text of JSON that is changed in a few places, and now and then is none."""
        if self._chance.random() < 0.15:
            return self._damaged(data)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):  # it was mutated before
            return self._damaged(data)
        for _ in range(self._chance.randint(1, MAX_CHANGES)):
            value = self._changed(value)
        text = json.dumps(value, ensure_ascii=self._chance.random() < 0.5)
        encoded = text.encode("utf-8", "surrogatepass")
        for name, raw in RAW.items():
            encoded = encoded.replace(json.dumps(name).encode(), raw)
        return encoded

    def value(self) -> Any:
        """Returns a value that nobody expects."""
        kinds = (TEXTS, NUMBERS, OTHERS, tuple(RAW))
        return copy.deepcopy(self._chance.choice(self._chance.choice(kinds)))

    def _changed(self, value: Any) -> Any:
        try:
            places = list(_places(value))
        except RecursionError:  # it was mutated before
            places = []
        if not places:
            return self.value()
        holder, key = self._chance.choice(places)
        match self._chance.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[self._chance.choice(TEXTS)[:200]] = holder.pop(key)
            case 2:
                other, name = self._chance.choice(places)
                if not _holds(holder[key], other):
                    holder[key] = copy.deepcopy(other[name])
            case 3:
                holder[key] = [holder[key]] * self._chance.choice((1, 2, 300))
            case 4:
                holder[key] = {"value": holder[key]}
            case _:
                holder[key] = self.value()
        return value

    def _damaged(self, data: bytes) -> bytes:
        place = self._chance.randrange(len(data) + 1)
        match self._chance.randrange(7):
            case 0:
                return data[:place]
            case 1:
                return data[:place] + bytes([self._chance.randrange(256)]) + data[place + 1 :]
            case 2:
                return data[:place] + b"\0" + data[place:]
            case 3:
                return b"\xef\xbb\xbf" + data
            case 4:
                return data[place:] + data[:place]
            case 5:
                return b"[" * (4 * DEEP) + data + b"]" * (4 * DEEP)
            case _:
                return data.decode("utf-8", "replace").encode("utf-16")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each member of a value: what holds it, and its key there."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _holds(value: Any, other: Any) -> bool:
    return value is other or any(_holds(holder[key], other) for holder, key in _places(value))
