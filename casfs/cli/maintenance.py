"""Keeping a store: list, stats, search, fsck, gc, export, import."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import click

from casfs import config as settings
from casfs.backend.derived import count_by_type, total_stored
from casfs.cli.common import answer, json_option, opened, read_input, root, say, say_json
from casfs.cli.terminal import Size, bar
from casfs.digest import is_hash
from casfs.errors import CasfsError, Failed, Invalid, NotFound
from casfs.store import Store

SUFFIX = ".zst"
STDOUT = "-"


@click.command("list")
@click.argument("type")
@click.option("--limit", type=click.IntRange(0), help="At most so many.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Leave out the first.")
@json_option
@click.pass_context
def list_(ctx: click.Context, type: str, limit: int | None, offset: int, as_json: bool) -> None:
    """Print the hashes of all nodes of TYPE, in the order of their arrival.

    \b
    casfs list thread-step --limit 10
    """
    from casfs.maintenance import names

    with opened(ctx) as store:
        chosen = islice(
            names.of_type(store, type), offset, None if limit is None else offset + limit
        )
        if as_json:
            say_json([hash for hash, _ in chosen])
        else:
            for hash, _ in chosen:
                say(hash)


@click.command()
@json_option
@click.pass_context
def stats(ctx: click.Context, as_json: bool) -> None:
    """How much is stored, by type, and how much room it takes.

    \b
    casfs stats --json
    """
    with opened(ctx) as store:
        value = _stats(store)
    if as_json:
        say_json(value)
        return
    for name in ("blobs", "bytes", "files", "heads", "database_bytes"):
        say(f"{name:16} {value[name]}")
    for name, count in value["types"].items():
        say(f"  {name:14} {count}")


def _stats(store: Store) -> dict[str, Any]:
    assert store.root is not None
    total = total_stored(store.blobs)
    by_type: dict[str, int] = {}
    for hash, count in count_by_type(store.blobs).items():
        name = store.registry.name(hash)
        by_type[name] = by_type.get(name, 0) + count
    return {
        **asdict(total),
        "heads": sum(1 for _ in store.heads.list()),
        "database_bytes": (store.root / "store.db").stat().st_size,
        "types": dict(sorted(by_type.items())),
    }


@click.command()
@click.argument("text")
@click.option("--type", help="Only nodes of this type.")
@click.option("--thread", help="Only what the steps of this thread said.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True)
@json_option
@click.pass_context
def search(
    ctx: click.Context,
    text: str,
    type: str | None,
    thread: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Find nodes that have all words of TEXT; prints where they are in a mount.

    \b
    casfs search "the retry" --type content
    """
    from casfs import threads
    from casfs.maintenance.search import Index

    with opened(ctx) as store, Index(store) as index:
        id = threads.expand(store, thread).id if thread else None
        hits = list(index.search(text, type=type, thread=id, limit=limit))
    if as_json:
        say_json([asdict(hit) for hit in hits])
    else:
        for hit in hits:
            say(f"{hit.path}: {hit.snippet}")


@click.command()
@click.option("--repair-from", "source", metavar="STORE|DIR", help="Where lost content may be.")
@json_option
@click.pass_context
def fsck(ctx: click.Context, source: str | None, as_json: bool) -> int:
    """Read everything and check it; exit 1 when something is wrong.

    Damaged bytes are moved to quarantine/ in the store. With --repair-from, what is lost is
    looked for by its hash in another store, or in every file below a directory.

    \b
    casfs fsck
    casfs fsck --repair-from ../backup
    """
    from casfs.maintenance import fsck as checker
    from casfs.maintenance import repair

    if source is not None and not Path(source).is_dir():
        raise NotFound(f"no store and no directory {source}")
    with opened(ctx) as store:

        def check() -> checker.Report:
            with bar("checking", _count(store)) as progress:
                return checker.check(store, progress=progress)

        report = check()
        back: list[str] = []
        if source is not None:
            report, back = repair.repair_all(store, report, Path(source), check)
    if as_json:
        say_json({**asdict(report), "repaired": back})
    else:
        _tell(report, back)
    return Failed.exit_code if report.faults else 0


def _count(store: Store) -> int:
    """How many blobs there are; 0 where the SQLite file is too damaged to tell."""
    try:
        return total_stored(store.blobs).blobs
    except CasfsError:
        return 0


def _tell(report: Any, back: list[str]) -> None:
    for hash in back:
        say(f"repaired {hash}")
    for fault in report.faults:
        say(f"{fault.kind}: {fault.message}")
        for name in fault.takes:
            say(f"    takes with it {name}")
    for hash in report.quarantined:
        say(f"quarantined {hash}")
    checked = f"{report.blobs} blobs, {report.nodes} of them nodes, {report.bytes} bytes"
    found = len(report.faults)
    say(f"{checked}: {found or 'no'} fault{'' if found == 1 else 's'}")


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--max-size", type=Size(), help="Evict cache until the content fits (5G).")
@click.option("--max-inodes", type=click.IntRange(0), help="The same for files of their own.")
@click.option("--grace", type=click.IntRange(0), metavar="SECONDS", help="Spare younger blobs.")
@click.option("--why", metavar="HASH", help="Print the path from a root to HASH instead.")
@json_option
@click.pass_context
def gc(
    ctx: click.Context,
    dry_run: bool,
    max_size: int | None,
    max_inodes: int | None,
    grace: int | None,
    why: str | None,
    as_json: bool,
) -> None:
    """Delete what no thread, checkpoint, workflow or schema reaches.

    Blobs touched within the grace period (a day, see `casfs config`) are spared. Cache
    (action results, plugins) goes only when a limit asks for it, least recently used first.

    \b
    casfs gc --dry-run
    casfs gc --max-size 50G
    casfs gc --why 8e4c7c1b
    """
    from casfs.maintenance import gc as collector

    where = root(ctx)
    with opened(ctx) as store:
        if why is not None:
            _why(store, store.expand(why), as_json)
            return
        values = settings.values(where, os.environ)
        limits = collector.Limits(
            max_size if max_size is not None else values["gc.max_size"] or None,
            max_inodes if max_inodes is not None else values["gc.max_inodes"] or None,
        )
        with bar("marking", total_stored(store.blobs).blobs) as progress:
            result = collector.collect(
                store,
                grace=grace if grace is not None else values["gc.grace_s"],
                limits=limits,
                keep=values["gc.keep_checkpoints"],
                dry_run=dry_run,
                progress=progress,
            )
    verb = "would free" if dry_run else "freed"
    line = f"{verb} {result.freed.blobs} blobs, {result.freed.bytes} bytes; kept"
    value = {**asdict(result), "dry_run": dry_run}
    answer(as_json, value, f"{line} {result.kept.blobs} blobs, {result.kept.bytes} bytes")
    if not as_json:
        for name in result.evicted:
            say(f"evicted {name}")


def _why(store: Store, hash: str, as_json: bool) -> None:
    from casfs.maintenance import gc as collector

    path = collector.why(store, hash)
    if path is None:
        raise NotFound(f"no root reaches {hash}; gc may delete it")
    if as_json:
        say_json(path)
        return
    say(path[0])
    for step in path[1:]:
        info = store.blobs.info([step])[step]
        say(f"  {step} {store.registry.name(info.type) if info.type else 'blob'}")


@click.command()
@click.argument("roots", nargs=-1, required=True, metavar="ROOT...")
@click.option("-o", "output", required=True, metavar="FILE", help="Compressed if it ends in .zst.")
@click.option("--have", metavar="FILE", help="Hashes that the other side has, one a line.")
@json_option
@click.pass_context
def export(
    ctx: click.Context, roots: tuple[str, ...], output: str, have: str | None, as_json: bool
) -> None:
    """Write threads, checkpoints (NAME[@ID]), workflows or hashes, with all they reach.

    \b
    casfs export 01J9ZTHREAD work -o history.tar.zst
    """
    from casfs.maintenance import archive, names

    known = _hashes(have) if have else frozenset()
    with opened(ctx) as store:
        hashes, heads = names.roots(store, list(roots))
        compress = output.endswith(SUFFIX)
        with _new_file(output) as target:
            done = archive.export(store, hashes, heads, target, have=known, compress=compress)
    if output != STDOUT:
        line = f"{output} {done.members} members, {done.bytes} bytes"
        answer(as_json, {"file": output, **asdict(done)}, line)


@click.command("import")
@click.argument("file")
@json_option
@click.pass_context
def import_(ctx: click.Context, file: str, as_json: bool) -> None:
    """Bring in an exported FILE; every digest, type and reference is checked first.

    \b
    casfs import history.tar.zst
    """
    from casfs.maintenance import archive

    with opened(ctx) as store:
        done = archive.load(store, Path(file))
    if as_json:
        say_json(asdict(done))
        return
    say(f"{done.members} members, {done.new_bytes} new bytes")
    for name in done.heads:
        say(f"imported {name}")


def _hashes(file: str) -> frozenset[str]:
    found = read_input(file).decode("utf-8", "replace").split()
    for hash in found:
        if not is_hash(hash):
            raise Invalid(f"{file}: {hash[:80]!r} is not a valid hash")
    return frozenset(found)


@contextmanager
def _new_file(name: str) -> Iterator[Any]:
    """A file that is there whole or not at all; `-` is stdout."""
    if name == STDOUT:
        yield sys.stdout.buffer
        return
    temp = Path(f"{name}.{os.getpid()}.part")
    try:
        with temp.open("xb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        temp.replace(name)
    except OSError as error:
        raise Failed(f"cannot write {name}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            temp.unlink(missing_ok=True)
