"""Typed JSON nodes."""

from __future__ import annotations

import click

from casfs.cli.common import answer, json_option, opened, read_json, say_json, source
from casfs.errors import Invalid


@click.group()
def node() -> None:
    """Typed JSON nodes: checked against their schema, immutable, content-addressed.

    \b
    casfs node put content hello.json
    casfs node get 5b73ca66
    """


@node.command()
@click.argument("type")
@click.argument("file")
@json_option
@click.pass_context
def put(ctx: click.Context, type: str, file: str, as_json: bool) -> None:
    """Store the payload in FILE (- for stdin) as a node of TYPE and print its hash.

    \b
    echo '{"text": "hello", "artifacts": []}' | casfs node put content -
    """
    payload = read_json(file)
    with opened(ctx) as store:
        try:
            digest = store.put_node(type, payload)
        except Invalid as error:
            raise Invalid(f"{source(file)}: {type}: {error}") from None
    answer(as_json, {"hash": digest.hash, "size_bytes": digest.size_bytes}, digest.hash)


@node.command()
@click.argument("hash")
@json_option
@click.pass_context
def get(ctx: click.Context, hash: str, as_json: bool) -> None:
    """Print a node: its hash, the name of its type, its payload.

    \b
    casfs node get 5b73ca66
    """
    with opened(ctx) as store:
        found = store.node(store.expand(hash))
    say_json({"hash": found.hash, "type": found.type, "payload": found.payload}, pretty=not as_json)
