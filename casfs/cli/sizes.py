"""Sizes on the command line: as an option's value, and for a person to read."""

from __future__ import annotations

from typing import Any

import click

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class SizeOption(click.ParamType[int]):
    """A number of bytes; with K, M, G, T in units of 1024, 1024² and so on."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        number, unit = value.rstrip("KMGT"), value[len(value.rstrip("KMGT")) :]
        if not (number.isascii() and number.isdigit()) or unit not in UNITS:
            self.fail(f"invalid size {value!r}: give bytes, or a number with K, M, G or T")
        return int(number) * UNITS[unit]


def readable(size: int) -> str:
    """Returns a number of bytes in the largest unit of 1024 that fits: 870, 1.2K, 34M."""
    for unit, bytes in reversed(UNITS.items()):
        if size >= bytes > 1:
            number = size / bytes
            return f"{number:.1f}{unit}" if number < 10 else f"{number:.0f}{unit}"
    return str(size)
