"""The types of nodes."""

from __future__ import annotations

import json

import click

from casfs.backend.derived import count_by_type
from casfs.cli.common import input_name, open_store, read_json
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_json, echo_result, json_option
from casfs.cli.output_schemas import output_schema
from casfs.cli.removal import remove_heads
from casfs.cli.table import Hash, echo_table
from casfs.errors import Conflict, Invalid, Refused, Usage
from casfs.store.nodes import registry

WORKFLOW_FILE = "workflow-file"  # not a type of nodes: what `workflow add` reads


@click.group(cls=LazyGroup)
def schema() -> None:
    """The types of nodes: JSON Schema 2020-12 with "format": "cas_ref" for references.

    \b
    casfs schema add note.json
    casfs schema show content
    """


@schema.command()
@click.argument("file")
@json_option
def add(file: str) -> None:
    """Register the schema in FILE (- for stdin) under its "$id".

    \b
    casfs schema add note.json
    """
    document = read_json(file)
    with open_store() as store, store.batch() as batch:
        try:
            digest = batch.put_schema(document)
        except (Conflict, Invalid) as error:
            raise type(error)(f"{input_name(file)}: {error}") from None
    name = document["$id"]
    echo_result({"hash": digest.hash, "name": name}, f"{digest.hash} {name}")


@schema.command("list")
@json_option
def list_() -> None:
    """List the registered types and the hashes of their schemas.

    \b
    casfs schema list
    """
    with open_store() as store:
        types = [(name, store.registry.head(name).hash) for name in store.registry.names()]
    value = [{"name": name, "hash": hash} for name, hash in types]
    echo_table(value, "NAME HASH", ((name, Hash(hash)) for name, hash in types))


@schema.command()
@click.argument("words", metavar="TYPE", nargs=-1, required=True)
@click.option("--output", "of_output", is_flag=True, help="TYPE is a command: what it prints.")
@json_option
def show(words: tuple[str, ...], of_output: bool) -> None:
    """Print the schema of a type, of workflow files, or of what a command prints with --json.

    \b
    casfs schema show content
    casfs schema show workflow-file
    casfs schema show --output thread list
    """
    if of_output:
        echo_json(output_schema(" ".join(words).replace("-", " ")))
        return
    if len(words) > 1:
        raise Usage(f"give one type, not {len(words)}")
    (type,) = words
    if type == WORKFLOW_FILE:
        from engine.workflow import file

        echo_json(file.schema())
        return
    with open_store() as store:
        echo_json(store.registry.document(store.registry.head(type).hash))


@schema.command()
@click.argument("type")
@json_option
def rm(type: str) -> None:
    """Remove a type that no node has; `casfs undo --store` restores it until gc deletes it.

    \b
    casfs schema rm note
    """
    with open_store() as store:
        head = store.registry.head(type)
        if head.record.get("builtin"):
            raise Refused(f"the type {type!r} is built in")
        if count := count_by_type(store.blobs).get(head.hash):
            raise Refused(f"{count} nodes are of the type {type!r}; see `casfs list {type}`")
        for other in store.registry.names():
            document = store.registry.document(store.registry.head(other).hash)
            if other != type and f'"cas_type": {json.dumps(type)}' in json.dumps(document):
                raise Refused(f"the type {other!r} refers to nodes of the type {type!r}")
        remove_heads(store, [(registry.head_name(type), head)])
