"""The settings."""

from __future__ import annotations

import os
from pathlib import Path

import click

from casfs import config as settings
from casfs.cli.common import echo, echo_json, json_option


@click.command()
@json_option
@click.pass_context
def config(ctx: click.Context, as_json: bool) -> None:
    """Print each setting, its value and its origin."""
    root = settings.store_root(ctx.find_root().obj, os.environ)
    values = [root, *settings.load(root.value, os.environ)]
    if as_json:
        echo_json([_json(value) for value in values])
        return
    for value in values:
        echo(f"{value.setting.name} = {value.value}  ({value.origin}; {value.setting.help})")


def _json(value: settings.Value) -> dict[str, object]:
    shown = str(value.value) if isinstance(value.value, Path) else value.value
    return {"name": value.setting.name, "value": shown, "from": value.origin}
