"""`casfs purge`: what must not stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from casfs.checkpoints.revisions import resolve_entry, split
from casfs.cli.common import open_store, options_as
from casfs.cli.grep import Place, find_places, reaches_remote, read_text, search_store
from casfs.cli.output import (
    echo_json,
    echo_line,
    echo_lines,
    echo_result,
    json_option,
    wants_json,
    warn,
)
from casfs.cli.removal import listed
from casfs.errors import NoDaemon, NotFound, Refused, Usage
from casfs.mount import registry
from casfs.store.nodes.directory import File
from casfs.store.removals import label
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.system.clock import local_moment, rfc3339

if TYPE_CHECKING:
    from casfs.maintenance.git_copies import GitCopies
    from casfs.store.tombstones import Tombstone


REMOTES_HAVE_IT = "remotes have it until the next `casfs push` and `casfs remote gc`"


class PurgeOptions(NamedTuple):
    with_git: bool
    force: bool
    why: str
    dry_run: bool


@click.command()
@click.argument("target", required=False, metavar="[HASH|REV:PATH]")
@click.option("--all-versions", is_flag=True, help="Every content that the path ever had.")
@click.option("--text", is_flag=True, help="Purge the text on stdin, wherever it is.")
@click.option("--with-git", is_flag=True, help="Also from git objects that agents committed.")
@click.option("--force", is_flag=True, help="Do it; without it only what has it is printed.")
@click.option("--why", default="", metavar="TEXT", help="The reason, kept in the tombstone.")
@click.option("--dry-run", is_flag=True, help="Print what would be purged.")
@click.option("--list", "show", is_flag=True, help="List what was purged.")
@click.option("--allow", metavar="HASH", help="Let a purged content be stored again.")
@json_option
@options_as(PurgeOptions)
def purge(
    target: str | None,
    all_versions: bool,
    text: bool,
    show: bool,
    allow: str | None,
    options: PurgeOptions,
) -> None:
    """Delete a content or a text for good, whatever has it; old checkpoints stay usable.

    Its tombstone stays, and nothing stores the same bytes again. A file is left out where its
    checkpoint is read. With --text only the text goes: readers get the rest of the file, the prompt
    or the output with ‹purged› in its place. Names of files are reported, not changed. Without
    --force nothing is purged that a checkpoint or a thread has, exit 4. What git keeps of it in a
    thread's workspace is named; --with-git purges that, too.

    \b
    casfs purge work:.env --all-versions --force --why "key of the test account"
    casfs purge --text --force <key.txt
    casfs purge --list
    """
    chosen = [target is not None, text, show, allow is not None]
    if sum(chosen) != 1:
        raise Usage("give a HASH or REV:PATH, --text, --list, or --allow")
    with open_store() as store:
        if show:
            _list(store)
        elif allow is not None:
            _allow(store, allow)
        elif text:
            _purge_text(store, options)
        else:
            hashes = targets(store, str(target), all_versions=all_versions)
            purge_blobs(store, hashes, options)


# -- a text -----------------------------------------------------------------------------------


def _purge_text(store: Store, options: PurgeOptions) -> None:
    from casfs.maintenance import git_copies
    from casfs.maintenance import purge as purging
    from casfs.maintenance.needle import MIN_CHARS, Needle
    from casfs.maintenance.redact import redact
    from casfs.store.tombstones import purgeable

    text = read_text()
    if len(text) < MIN_CHARS:
        raise Refused(f"a text of less than {MIN_CHARS} characters is in too much; give more of it")
    purgeable(store)
    needle = Needle(text)
    findings = search_store(store, needle)
    git = git_copies.with_text(store, needle)
    if not findings and not git.copies:
        raise NotFound("the text is nowhere in this store")
    places = [*find_places(store, findings), *_git_places(store, git)]
    value: dict[str, Any] = {
        "found": [location.value for location in places],
        "dryRun": not options.force or options.dry_run,
    }
    if not options.force or options.dry_run:
        echo_lines({**value, "purged": [], "left": []}, (location.line for location in places))
        _warn_of_unread(git)
        if not options.dry_run:
            raise Refused(f"{len(places)} places have the text; use --force to purge it from them")
        return
    running = 0
    try:  # before the search for what was recorded meanwhile
        running = daemon_socket.request(store.root, "redact", text=text)["threads"]
    except NoDaemon:
        if daemon_socket.runs(store.root):  # its threads would write the text again
            raise
    done = redact(store, needle, findings=findings, why=options.why)
    if options.with_git:
        done.purged += (of_git := git_copies.tombstones_of(store, git.copies, options.why))
        done.is_erased &= purging.purge_all(store, of_git)
    else:
        done.left += _left_in_git(git)
    value["purged"] = [_value(tombstone) for tombstone in done.purged]
    value["left"] = done.left
    lines = [location.line for location in places]
    lines.append(f"purged from {len(done.purged)} contents, {len(done.heads)} records")
    echo_lines(value, lines)
    for line in done.left:
        warn(f"the text is still in {line}")
    _warn_of_unread(git)
    if running:
        warn(
            f"{running} threads run: files with the text in their workspaces are recorded again;"
            " `casfs thread suspend` them first, and delete the files"
        )
    _warn_of_copies(store, is_erased=done.is_erased)
    if any(where.startswith("remote ") for location in places for where in location.where):
        warn(REMOTES_HAVE_IT)


# -- whole contents ---------------------------------------------------------------------------


def targets(store: Store, text: str, *, all_versions: bool) -> list[str]:
    """Returns the hashes of the blobs that a hash, its prefix or REV:PATH names."""
    path = split(text)[1]
    if path is None:
        if all_versions:
            raise Usage("--all-versions needs REV:PATH")
        return [store.expand(text)]
    if all_versions:
        from casfs.maintenance.versions_of_path import contents_of

        hashes = contents_of(store, path)
        if not hashes:
            raise NotFound(f"{text}: no checkpoint or step has such a file, or all were purged")
        return hashes
    entry = resolve_entry(store, text, with_local=True)[2]
    if not isinstance(entry, File):
        raise Refused(f"{text} is not a file")
    return [entry.digest.hash]


def purge_blobs(store: Store, hashes: list[str], options: PurgeOptions) -> None:
    """Purges blobs whole; `with_git`: also the git objects of the same content. Raises Refused
    where something has one, and not `force`."""
    from casfs.maintenance import git_copies
    from casfs.maintenance import purge as purging
    from casfs.store.tombstones import Tombstone
    from casfs.system.clock import now_ms

    tombstones: list[Tombstone] = []
    values: list[dict[str, Any]] = []
    for hash in hashes:
        size = purging.check(store, hash)
        nodes, heads = purging.users(store, hash)
        values.append({"hash": hash, "bytes": size, "nodes": nodes, "heads": heads})
        tombstones.append(Tombstone(hash, size, purged_at=now_ms(), why=options.why))
        if heads and not options.force and not options.dry_run:
            names = listed(list(map(label, heads)))
            raise Refused(f"{hash} is in {names}; use --force to purge it from them")
    git = git_copies.of_blobs(store, hashes)
    if options.with_git and not options.dry_run:
        tombstones += git_copies.tombstones_of(store, git.copies, options.why)
    is_in_remote = any(reaches_remote(store, tombstone.hash) for tombstone in tombstones)
    is_erased = options.dry_run or purging.purge_whole(store, tombstones, options.why)
    if wants_json():
        shown = [{**value, "dryRun": options.dry_run} for value in values]
        echo_json(shown[0] if len(shown) == 1 else shown)
    for value in values if not wants_json() else ():
        names = listed([label(name) for name in value["heads"]]) if value["heads"] else ""
        verb = "would be purged" if options.dry_run else "purged"
        where = f"; in {names}" if names else ""
        echo_line(f"{value['hash']} {verb}, {value['bytes']} bytes{where}")
    if not options.with_git:
        for line in _left_in_git(git):
            warn(f"the content is still in {line}")
    if not options.dry_run:
        _warn_of_copies(store, is_erased=is_erased)
    if is_in_remote:
        warn(REMOTES_HAVE_IT)


# -- git objects ------------------------------------------------------------------------------


def _git_places(store: Store, git: GitCopies) -> list[Place]:
    from casfs.maintenance.whereabouts import Whereabouts

    with Whereabouts(store) as whereabouts:
        return [
            Place(
                f"git {copy.kind} {copy.object_id}",
                copy.file,
                where=whereabouts.of(copy.file),
                lines=[],
            )
            for copy in git.copies
        ]


def _left_in_git(git: GitCopies) -> list[str]:
    """Returns a line for each git object that is not purged, with the way to do it."""
    return [
        f"the git {copy.kind} {copy.object_id}; --with-git purges it here, `git filter-repo` takes"
        " it out of a repository of yours"
        for copy in git.copies
    ]


def _warn_of_unread(git: GitCopies) -> None:
    for line in git.unread:
        warn(f"not searched: {line}")


def _warn_of_copies(store: Store, *, is_erased: bool) -> None:
    if not is_erased:
        warn("a reader is using the database's log: copies stay in it until the next commands end")
    for state in registry.listing(store.root):
        warn(f"programs that have it open in the mount {state.mount} may show it until they end")


# -- tombstones -------------------------------------------------------------------------------


def _value(tombstone: Tombstone) -> dict[str, Any]:
    return {
        "hash": tombstone.hash,
        "bytes": tombstone.size,
        "purgedAt": rfc3339(tombstone.purged_at),
        "why": tombstone.why,
        "substitute": tombstone.substitute,
    }


def _line(tombstone: Tombstone) -> str:
    what = "in part" if tombstone.substitute else "whole"
    why = f", {tombstone.why}" if tombstone.why else ""
    when = local_moment(tombstone.purged_at)
    return f"{tombstone.hash}  {when}  {tombstone.size} bytes, {what}{why}"


def _list(store: Store) -> None:
    from casfs.store import tombstones

    purged = list(tombstones.listing(store))
    echo_lines([_value(tombstone) for tombstone in purged], map(_line, purged))


def _allow(store: Store, text: str) -> None:
    from casfs.store import tombstones

    tombstone = tombstones.remove(store, store.expand(text))
    line = f"{tombstone.hash} may be stored again; until then it cannot be read"
    echo_result(_value(tombstone), line)
