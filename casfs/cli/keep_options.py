"""The options of a policy: which checkpoints to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from casfs.checkpoints import forget
from casfs.cli.common import Count

F = TypeVar("F", bound=Callable[..., Any])


def keep_options(verb: F) -> F:
    """Adds an option for each period of a policy of `checkpoint forget`."""
    for period in reversed(forget.PERIODS):
        unit = {"daily": "day"}.get(period, period.removesuffix("ly"))
        text = "Keep the newest N." if period == "last" else f"… of the last N {unit}s."
        verb = click.option(f"--keep-{period}", type=Count(1), metavar="N", help=text)(verb)
    return verb


def kept(policy: Mapping[str, int | None]) -> dict[str, int]:
    """Returns the policy that the options give."""
    return {key.removeprefix("keep_"): count for key, count in policy.items() if count}
