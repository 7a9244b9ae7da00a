"""The types of nodes."""

from __future__ import annotations

import click

from casfs.cli.common import answer, json_option, opened, read_json, say, say_json, source
from casfs.errors import Conflict, Invalid


@click.group()
def schema() -> None:
    """The types of nodes: JSON Schema 2020-12 with "format": "cas_ref" for references.

    \b
    casfs schema add note.json
    casfs schema show content
    """


@schema.command()
@click.argument("file")
@json_option
@click.pass_context
def add(ctx: click.Context, file: str, as_json: bool) -> None:
    """Register the schema in FILE (- for stdin) under its "$id".

    \b
    casfs schema add note.json
    """
    document = read_json(file)
    with opened(ctx) as store, store.batch() as batch:
        try:
            digest = batch.put_schema(document)
        except (Conflict, Invalid) as error:
            raise type(error)(f"{source(file)}: {error}") from None
    name = document["$id"]
    answer(as_json, {"hash": digest.hash, "name": name}, f"{digest.hash} {name}")


@schema.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """Print every registered type and the hash of its schema node.

    \b
    casfs schema list
    """
    with opened(ctx) as store:
        found = [(name, store.registry.head(name).hash) for name in store.registry.names()]
    if as_json:
        say_json([{"name": name, "hash": hash} for name, hash in found])
    else:
        for name, hash in found:
            say(f"{name} {hash}")


@schema.command()
@click.argument("type")
@json_option
@click.pass_context
def show(ctx: click.Context, type: str, as_json: bool) -> None:
    """Print the schema of a type.

    \b
    casfs schema show content
    """
    del as_json  # it is JSON either way
    with opened(ctx) as store:
        say_json(store.registry.document(store.registry.head(type).hash))
