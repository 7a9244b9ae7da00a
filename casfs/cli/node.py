"""Typed JSON nodes: put, get, and list by type."""

from __future__ import annotations

from itertools import islice

import click

from casfs.cli.common import (
    Count,
    input_name,
    open_store,
    read_json,
    step_secrets,
    with_local_option,
)
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_json, echo_lines, echo_result, json_option, wants_json
from casfs.errors import Invalid


@click.group(cls=LazyGroup)
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
def put(type: str, file: str) -> None:
    """Store the payload in FILE (- for stdin) as a node of TYPE and print its hash.

    \b
    echo '{"text": "hello", "artifacts": []}' | casfs node put content -
    """
    payload = step_secrets().redact_values_in_json(read_json(file))
    with open_store() as store:
        try:
            digest = store.put_node(type, payload)
        except Invalid as error:
            raise Invalid(f"{input_name(file)}: {type}: {error}") from None
    echo_result({"hash": digest.hash, "sizeBytes": digest.size_bytes}, digest.hash)


@node.command()
@click.argument("hash")
@with_local_option
@json_option
def get(hash: str, with_local: bool) -> None:
    """Print a node: hash, name of its type, payload.

    \b
    casfs node get 5b73ca66
    """
    with open_store(with_local) as store:
        node = store.node(store.expand(hash))
    echo_json(
        {"hash": node.hash, "type": node.type, "payload": node.payload}, pretty=not wants_json()
    )


@click.command("list")
@click.argument("type")
@click.option("--limit", type=Count(0), help="Maximum number of hashes.")
@click.option("--offset", type=Count(0), default=0, help="Number of hashes to skip.")
@with_local_option
@json_option
def list_(type: str, limit: int | None, offset: int, with_local: bool) -> None:
    """Print the hashes of all nodes of TYPE, in the order of their arrival.

    \b
    casfs list thread-step --limit 10
    """
    from casfs.maintenance import names

    with open_store(with_local) as store:
        end = None if limit is None else offset + limit
        hashes = (hash for hash, _ in islice(names.of_type(store, type), offset, end))
        echo_lines(list(hashes) if wants_json() else None, hashes)
