"""Sizes and ages on the command line."""

from __future__ import annotations

from typing import Any

import click

from casfs.errors import Invalid
from casfs.system.sizes import UNITS

AGES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class SizeOption(click.ParamType[int]):
    """A number of bytes; with K, M, G, T in units of 1024, 1024² and so on."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        number = value.rstrip("KMGT")
        unit = value[len(value.rstrip("KMGT")) :]
        if not (number.isascii() and number.isdigit()) or unit not in UNITS:
            self.fail(f"invalid size {value!r}: give bytes, or a number with K, M, G or T")
        return int(number) * UNITS[unit]


class AgeOption(click.ParamType[int]):
    """A number of seconds; with m, h, d in minutes, hours, days."""

    name = "age"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return value if isinstance(value, int) else parse_age(value)
        except Invalid as error:
            self.fail(str(error))


def parse_age(text: str) -> int:
    """Returns an age in seconds. Raises Invalid."""
    number = text[: len(text.rstrip("smhd"))]
    unit = text[len(text.rstrip("smhd")) :]
    if not (number.isascii() and number.isdigit()) or unit not in AGES:
        raise Invalid(f"invalid age {text!r}: give seconds, or a number with m, h or d, like 30d")
    return int(number) * AGES[unit]
