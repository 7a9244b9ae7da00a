"""Verbs on the store itself: init, put, get, has, missing, refs, walk, heads."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, BinaryIO

import click

from casfs.backend.derived import find_missing
from casfs.checkpoints.revisions import resolve_blob
from casfs.cli import on_disk
from casfs.cli.common import open_store, step_secrets, with_local_option
from casfs.cli.output import echo_lines, echo_result, json_option, wants_json, warn
from casfs.digest import is_hash
from casfs.errors import Failed, Invalid, NotFound, Usage
from casfs.store import graph, local_trees
from casfs.store.referrers import Referrers

if TYPE_CHECKING:
    from casfs.agents.secrets import Secrets
    from casfs.store.store import Store

READ_CHUNK_BYTES = 1 << 20


@click.command()
@click.argument("file")
@json_option
def put(file: str) -> None:
    """Store the bytes of FILE (- for stdin) and print their hash.

    \b
    casfs put README.md
    date | casfs put -
    """
    secrets = step_secrets()
    with open_store() as store:
        if file == "-":
            digest = store.put_stream(_redacted(sys.stdin.buffer, secrets))
        else:
            try:
                with open(file, "rb") as source:
                    digest = store.put_stream(_redacted(source, secrets))
            except FileNotFoundError:
                raise NotFound(f"no file {file}") from None
            except OSError as error:
                raise Failed(f"cannot read {file}: {error.strerror}") from None
    echo_result({"hash": digest.hash, "sizeBytes": digest.size_bytes}, digest.hash)


def _redacted(source: BinaryIO, secrets: Secrets) -> BinaryIO:
    """Returns `source`, or what is left of it without the secrets; it is read into memory then."""
    return io.BytesIO(secrets.redact_bytes(source.read())) if secrets else source


@click.command()
@click.argument("what", metavar="TREE:PATH|HASH|PATH")
@with_local_option
def cat(what: str, with_local: bool) -> None:
    """Print the verified bytes of a file in a tree, or of any blob by its hash.

    A path on disk stands for the file in the newest checkpoint of its directory.

    \b
    casfs cat work~1:README.md
    casfs get 8e4c7c1b >README.md
    """
    with open_store(with_local) as store:
        try:
            hash = resolve_blob(store, what)
        except (NotFound, Invalid) as error:
            hash = resolve_blob(store, on_disk.revision(store, what, error))
        if store.purged.replaced().get(hash) is not None:
            warn(f"{hash} was purged in part; this is the rest")
        _print(store, hash)


def _print(store: Store, hash: str) -> None:
    with store.blobs.open(hash) as source:
        while piece := source.read(READ_CHUNK_BYTES):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


get = cat


@click.command()
@click.argument("hashes", nargs=-1, required=True, metavar="HASH...")
@with_local_option
@json_option
def has(hashes: tuple[str, ...], with_local: bool) -> int:
    """Print for each HASH whether it is stored; exit 3 when one is missing.

    \b
    casfs has 8e4c7c1b…
    """
    _check(hashes)
    with open_store(with_local) as store:
        infos = store.blobs.info(hashes)
    lines = (f"{hash} {'yes' if hash in infos else 'no'}" for hash in hashes)
    echo_lines({hash: hash in infos for hash in hashes}, lines)
    return 0 if len(infos) == len(set(hashes)) else NotFound.exit_code


@click.command()
@with_local_option
@json_option
def missing(with_local: bool) -> None:
    """Read hashes from stdin, one a line, and print those that are not stored.

    \b
    casfs missing <hashes
    """
    hashes = sys.stdin.buffer.read().decode("utf-8", "replace").split()
    _check(hashes)
    with open_store(with_local) as store:
        lacking = find_missing(store.blobs, hashes)
    echo_lines(lacking, lacking)


@click.command()
@click.argument("hash")
@click.option("--reverse", is_flag=True, help="Print the nodes that refer to HASH.")
@click.option("--recursive", is_flag=True, help="With --reverse: the nodes that reach HASH.")
@click.option("--type", metavar="TYPE", help="With --reverse: only nodes of this type.")
@with_local_option
@json_option
def refs(hash: str, reverse: bool, recursive: bool, type: str | None, with_local: bool) -> None:
    """Print the references of a node: those of its payload, then its type.

    \b
    casfs refs 4b9b6694
    casfs refs --reverse 4b9b6694
    casfs refs --reverse --recursive --type thread-step 4b9b6694     steps that hold a file
    """
    if not reverse and (recursive or type):
        raise Usage("--recursive and --type go with --reverse")
    with open_store(with_local) as store:
        expanded = store.expand(hash)
        if not reverse:
            hashes = graph.refs(store, expanded)
        else:
            with Referrers(store) as index:
                above = index.walk_up(expanded) if recursive else index.of(expanded)
                hashes = [
                    referrer
                    for referrer in above
                    if type is None or store.node(referrer).type == type
                ]
    echo_lines(hashes, hashes)


@click.command()
@click.argument("hash")
@with_local_option
@json_option
def walk(hash: str, with_local: bool) -> None:
    """Print the hashes reachable from HASH, itself first, each once.

    \b
    casfs walk 4b9b6694 | wc -l
    """
    with open_store(with_local) as store:
        hashes = graph.walk(store, [store.expand(hash)], with_local=with_local)
        echo_lines(list(hashes) if wants_json() else None, hashes)


@click.command()
@click.argument("prefix", default="")
@with_local_option
@json_option
def heads(prefix: str, with_local: bool) -> None:
    """Print the refs (mutable names) that start with PREFIX, and their hashes.

    \b
    casfs heads checkpoints/
    """
    with open_store(with_local) as store:
        named_heads = [
            (name, head)
            for name, head in store.heads.list(prefix)
            if with_local or not name.startswith(local_trees.HEADS)
        ]
    value = [{"name": name, "hash": head.hash, "record": head.record} for name, head in named_heads]
    echo_lines(value, (f"{name} {head.hash}" for name, head in named_heads))


def _check(hashes: tuple[str, ...] | list[str]) -> None:
    for hash in hashes:
        if not is_hash(hash):
            raise Invalid(f"{hash!r} is not a valid hash: 64 lowercase hex characters")
