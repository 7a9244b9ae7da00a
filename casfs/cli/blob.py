"""Verbs on the store itself: init, put, get, has, missing, refs, walk, heads."""

from __future__ import annotations

import sys

import click

from casfs import graph as reach
from casfs.backend.derived import find_missing
from casfs.cli.common import answer, json_option, opened, root, say, say_json
from casfs.digest import is_hash
from casfs.errors import Failed, Invalid, NotFound
from casfs.store import Store

CHUNK = 1 << 20


@click.command()
@json_option
@click.pass_context
def init(ctx: click.Context, as_json: bool) -> None:
    """Make a store, or bring an older one's built-in types up to date.

    \b
    casfs init
    casfs --store ./store init
    """
    path = root(ctx)
    with Store.init(path) as store:
        names = store.registry.names()
    answer(as_json, {"store": str(path), "types": names}, f"{path}")


@click.command()
@click.argument("file")
@json_option
@click.pass_context
def put(ctx: click.Context, file: str, as_json: bool) -> None:
    """Store the bytes of FILE (- for stdin) and print their hash.

    \b
    casfs put README.md
    date | casfs put -
    """
    with opened(ctx) as store:
        if file == "-":
            digest = store.put_stream(sys.stdin.buffer)
        else:
            try:
                with open(file, "rb") as source:
                    digest = store.put_stream(source)
            except FileNotFoundError:
                raise NotFound(f"no file {file}") from None
            except OSError as error:
                raise Failed(f"cannot read {file}: {error.strerror}") from None
    answer(as_json, {"hash": digest.hash, "size_bytes": digest.size_bytes}, digest.hash)


@click.command()
@click.argument("hash")
@click.pass_context
def get(ctx: click.Context, hash: str) -> None:
    """Print the bytes of a blob, verified.

    \b
    casfs get 8e4c7c1b >README.md
    """
    with opened(ctx) as store, store.blobs.open(store.expand(hash)) as source:
        while piece := source.read(CHUNK):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


@click.command()
@click.argument("hashes", nargs=-1, required=True, metavar="HASH...")
@json_option
@click.pass_context
def has(ctx: click.Context, hashes: tuple[str, ...], as_json: bool) -> int:
    """Say for each HASH whether it is stored; exit 3 when one is not.

    \b
    casfs has 8e4c7c1b…
    """
    _check(hashes)
    with opened(ctx) as store:
        found = store.blobs.info(hashes)
    if as_json:
        say_json({hash: hash in found for hash in hashes})
    else:
        for hash in hashes:
            say(f"{hash} {'yes' if hash in found else 'no'}")
    return 0 if len(found) == len(set(hashes)) else NotFound.exit_code


@click.command()
@json_option
@click.pass_context
def missing(ctx: click.Context, as_json: bool) -> None:
    """Read hashes from stdin, one a line, and print those that are not stored.

    \b
    casfs missing <hashes
    """
    hashes = sys.stdin.buffer.read().decode("utf-8", "replace").split()
    _check(hashes)
    with opened(ctx) as store:
        lacking = find_missing(store.blobs, hashes)
    if as_json:
        say_json(lacking)
    else:
        for hash in lacking:
            say(hash)


@click.command()
@click.argument("hash")
@json_option
@click.pass_context
def refs(ctx: click.Context, hash: str, as_json: bool) -> None:
    """Print what a node refers to: the refs of its payload, then its type.

    \b
    casfs refs 4b9b6694
    """
    with opened(ctx) as store:
        found = reach.refs(store, store.expand(hash))
    if as_json:
        say_json(found)
    else:
        for ref in found:
            say(ref)


@click.command()
@click.argument("hash")
@json_option
@click.pass_context
def walk(ctx: click.Context, hash: str, as_json: bool) -> None:
    """Print everything reachable from HASH, itself first, each hash once.

    \b
    casfs walk 4b9b6694 | wc -l
    """
    with opened(ctx) as store:
        found = reach.walk(store, [store.expand(hash)])
        if as_json:
            say_json(list(found))
        else:
            for one in found:
                say(one)


@click.command()
@click.argument("prefix", default="")
@json_option
@click.pass_context
def heads(ctx: click.Context, prefix: str, as_json: bool) -> None:
    """Print the mutable names that start with PREFIX, and where they point.

    \b
    casfs heads checkpoints/
    """
    with opened(ctx) as store:
        found = list(store.heads.list(prefix))
    if as_json:
        say_json([{"name": n, "hash": h.hash, "record": h.record} for n, h in found])
    else:
        for name, head in found:
            say(f"{name} {head.hash}")


def _check(hashes: tuple[str, ...] | list[str]) -> None:
    for hash in hashes:
        if not is_hash(hash):
            raise Invalid(f"{hash!r} is not a valid hash: 64 lowercase hex characters")
