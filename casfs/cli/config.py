"""The settings."""

from __future__ import annotations

import os
from pathlib import Path

import click

from casfs import config as settings
from casfs.cli.common import json_option
from casfs.cli.output import echo_lines


@click.command()
@json_option
@click.pass_context
def config(ctx: click.Context, as_json: bool) -> None:
    """Print each setting, its value and its origin."""
    root = settings.store_root(ctx.find_root().obj, os.environ)
    values = [root, *settings.load(root.value, os.environ)]
    lines = (
        f"{one.setting.name} = {one.value}  ({one.origin}; {one.setting.help})" for one in values
    )
    echo_lines(as_json, [_json(value) for value in values], lines)


def _json(value: settings.Value) -> dict[str, object]:
    shown = str(value.value) if isinstance(value.value, Path) else value.value
    return {"name": value.setting.name, "value": shown, "from": value.origin}
