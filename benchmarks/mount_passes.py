"""Passes over a tree, and reads of one large file, through each peer.

Cold: a fresh mount, and the kernel's caches dropped before. Warm: the same again at once. First:
a fresh mount while all that the peer keeps is in the page cache; what the native file system
needs then is its warm time. The peers take turns within a round.

Three things would make a pass look quicker than it is: tar reads nothing when its archive is
/dev/null, grep stops at the first match when nobody reads its output, and a pattern that is
found ends a file early. So both write to a pipe, and no file has the pattern.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from benchmarks import common
from benchmarks.common import Times, add, compared, in_seconds, table, timed
from benchmarks.mount_peers import Kernel, Native, Peer, made, spent
from benchmarks.workspaces_peers import ENV, run
from casfs.errors import Failed

PATTERN = "".join(random.Random(0).choices("bcdfghjklmnpqrstvwxz", k=24))
GREP = f"grep -r {PATTERN} . | cat"
COMMANDS = {"find": "find .", "ls -lR": "ls -lR .", "grep -r": GREP, "tar c": "tar c . | cat"}
PARALLEL_GREPS = 8
RUNTIME = 10  # seconds that a pass of random reads takes at most
MAX_KINDS = 3  # kinds of requests
LARGE = "large"
OBJECT = "object file of the store"


# -- walks ------------------------------------------------------------------------------------


def walks(peers: Sequence[Peer], rounds: int) -> None:
    times: dict[str, dict[str, Times]] = {
        pass_: {name: {} for name in COMMANDS} for pass_ in ("cold", "warm")
    }
    counts: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for _ in range(rounds):
        for peer in peers:
            for name, command in COMMANDS.items():
                with peer.shown() as top:
                    if common.may_drop():
                        common.drop_caches()
                    for pass_ in ("cold", "warm"):
                        value, asked = spent(peer, top, command, os.environ)
                        add(times[pass_][name], peer.name, value)
                        counts.setdefault((peer.name, pass_), {})[name] = asked
    names = [peer.name for peer in peers]
    for pass_, title in (("cold", "Cold"), ("warm", "Warm")):
        if pass_ == "cold" and not common.may_drop():
            print("\nOnly root may drop caches: the first passes are not cold.")
        rows = compared(times[pass_], names, Native.name, in_seconds)
        table(f"{title}, medians of {rounds} (× native)", ["", *COMMANDS], rows)
    _requests(peers, counts)


def _requests(
    peers: Sequence[Peer], counts: dict[tuple[str, str], dict[str, Counter[str]]]
) -> None:
    rows = []
    for peer in (peer for peer in peers if isinstance(peer, Kernel)):
        for pass_ in ("cold", "warm"):
            cells = [_kinds(asked) for asked in counts[peer.name, pass_].values()]
            rows.append([f"{peer.name}, {pass_}", *cells])
    if rows:
        table("Requests of the last round's passes", ["", *COMMANDS], rows)


def _kinds(asked: Counter[str]) -> str:
    most = [f"{kind} {count:,}" for kind, count in asked.most_common(MAX_KINDS) if count > 0]
    total = sum(count for count in asked.values() if count > 0)
    return f"{total:,}" + (f" ({', '.join(most)})" if most else "")


# -- the first grep, and several at once ------------------------------------------------------


def greps(peers: Sequence[Peer], rounds: int) -> None:
    halves = _halves(peers[0].source)
    variants = {
        "first": [GREP],
        "two halves at once": halves,
        f"{PARALLEL_GREPS} at once": [GREP] * PARALLEL_GREPS,
    }
    columns: dict[str, Times] = {name: {} for name in variants}
    for _ in range(rounds):
        for peer in peers:
            for name, commands in variants.items():
                common.cache(peer.place)
                with peer.shown() as top:
                    add(columns[name], peer.name, timed(*commands, top=top))
    rows = compared(columns, [peer.name for peer in peers], Native.name, in_seconds)
    for row in rows:
        whole, split = (statistics.median(columns[pass_][row[0]]) for pass_ in list(variants)[:2])
        row.append(f"{split / whole:.2f}")
    title = f"grep -r, what is stored in the page cache, medians of {rounds} (× native)"
    table(title, ["", *variants, "halves / whole"], rows)


def _halves(tree: Path) -> list[str]:
    """Two commands that read about as many bytes each, and together the whole tree."""
    parts: list[Path] = []
    for top in sorted(tree.iterdir()):
        inner = sorted(top.iterdir()) if top.is_dir() and not top.is_symlink() else []
        parts += inner or [top]
    sums = [0, 0]
    lists: tuple[list[str], list[str]] = ([], [])
    weights = {part: _weight(part) for part in parts}
    for part in sorted(parts, key=lambda part: -weights[part]):
        side = sums.index(min(sums))
        sums[side] += weights[part]
        lists[side].append(quote(str(part.relative_to(tree))))
    return [f"grep -r {PATTERN} {' '.join(names or ['/dev/null'])} | cat" for names in lists]


def _weight(path: Path) -> int:
    """Bytes to read, and what every file costs besides."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.lstat().st_size + 16384 for one in files)


# -- git --------------------------------------------------------------------------------------


def git(work: Path, peers: Sequence[Peer], rounds: int) -> None:
    """`git status` of the tree as a work tree, with the repository elsewhere and an index that
    knows the files of that mount."""
    repository = work / "git"
    run("git", "init", "-q", "--bare", repository)
    base = {**ENV, "GIT_DIR": str(repository), "GIT_OPTIONAL_LOCKS": "0"}
    source = {**base, "GIT_WORK_TREE": str(peers[0].source)}
    timed("git -c core.compression=0 add -Af", top=peers[0].source, env=source)
    columns: dict[str, Times] = {"first": {}, "second": {}}
    asked: dict[str, Counter[str]] = {}
    for number, peer in enumerate(peers):
        index = work / f"index-{number}"
        shutil.copy(repository / "index", index)
        with peer.shown() as top:
            env = {**base, "GIT_WORK_TREE": str(top), "GIT_INDEX_FILE": str(index)}
            timed("git update-index -q --refresh", top=top, env=env)
        for _ in range(rounds):
            with peer.shown() as top:
                for column in columns.values():
                    value, found = spent(peer, top, "git status -s", env)
                    add(column, peer.name, value)
                asked[peer.name] = found
    rows = compared(columns, [peer.name for peer in peers], Native.name, in_seconds)
    for row, peer in zip(rows, peers, strict=True):
        row.append(_kinds(asked[peer.name]) if isinstance(peer, Kernel) else "")
    title = f"git status over a fresh mount, medians of {rounds} (× native)"
    table(title, ["", *columns, "requests of the second"], rows)


# -- one large file ---------------------------------------------------------------------------


def reads(work: Path, wanted: Sequence[str], mib: int, rounds: int) -> None:
    source = work / "reads"
    source.mkdir()
    with (source / LARGE).open("wb") as out:
        for _ in range(mib):
            out.write(os.urandom(1 << 20))
    peers = made(work, source, wanted)
    columns: dict[str, Times] = {}
    for _ in range(rounds):
        for peer in peers:
            for name, rate in _rates(peer, mib).items():
                add(columns.setdefault(name, {}), peer.name, rate)
        for peer in (peer for peer in peers if isinstance(peer, Kernel)):
            largest = max(peer.place.rglob("*"), key=lambda path: path.lstat().st_size)
            rate = mib / timed(f"cat {quote(str(largest))}", top=work)
            for name in ("first cat", "second cat"):
                add(columns[name], OBJECT, rate)
            break
    names = [*(peer.name for peer in peers), *[OBJECT] * any(isinstance(p, Kernel) for p in peers)]
    sequential = {name: times for name, times in columns.items() if "4 KiB" not in name}
    rest = {name: times for name, times in columns.items() if "4 KiB" in name}
    title = f"A file of {mib:,} MiB, medians of {rounds} (× native; more is better)"
    rows = compared(sequential, names, Native.name, lambda rate: f"{rate:,.0f} MiB/s")
    table(title, ["", *sequential], rows)
    if rest:  # fio is here
        kinds = [peer.name for peer in peers]
        rows = compared(rest, kinds, Native.name, lambda rate: f"{rate:,.0f}/s")
        table("Random reads of it (× native; more is better)", ["", *rest], rows)


def _rates(peer: Peer, mib: int) -> dict[str, float]:
    """MiB/s, and random reads a second. First: what is stored is in the page cache."""
    rates: dict[str, float] = {}
    common.cache(peer.place)
    with peer.shown() as top:
        for name in ("first cat", "second cat"):
            rates[name] = mib / timed(f"cat {LARGE}", top=top)
        if shutil.which("fio"):
            rates["fio, 1 MiB blocks, warm"] = _fio(top, "read", "1m") / (1 << 20)
            rates["4 KiB warm"] = _fio(top, "randread", "4k") / 4096
    if common.may_drop():
        rates |= _cold(peer, mib)
    return rates


def _cold(peer: Peer, mib: int) -> dict[str, float]:
    rates: dict[str, float] = {}
    with peer.shown() as top:
        common.drop_caches()
        rates["cold cat"] = mib / timed(f"cat {LARGE}", top=top)
    if shutil.which("fio"):
        with peer.shown() as top:
            common.drop_caches()
            rates["4 KiB cold"] = _fio(top, "randread", "4k") / 4096
    return rates


def _fio(top: Path, pattern: str, block: str) -> float:
    """Bytes a second."""
    path = str(top / LARGE).replace(":", "\\:")  # else two files
    command = ["fio", "--name=reads", "--readonly", f"--filename={path}", f"--rw={pattern}"]
    command += [f"--bs={block}", "--ioengine=psync", "--invalidate=0", "--allow_file_create=0"]
    command += [f"--runtime={RUNTIME}", "--output-format=json"]
    with common.process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        out, said = started.communicate()
    if started.returncode:
        raise Failed(said.decode(errors="replace").strip())
    rate: float = json.loads(out)["jobs"][0]["read"]["bw_bytes"]
    return rate
