"""Sizes on the command line."""

from __future__ import annotations

from typing import Any

import click

from casfs.system.sizes import UNITS


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
