"""Kills the worker of a mount repeatedly, under readers, and checks that they notice nothing.

    python tests/harness/mount_kills.py --kills 50 --readers 64 [--seed N] [--how replace]

The readers read and list a checkpoint, with fresh caches where root may drop them, and compare
every byte with the files that it was made from. By our own transport nobody may see an error,
nor when the program is replaced. With --older, as on a kernel that sends no request again,
those in flight may fail. Exit 1 on any other error, and when the mount does not come back.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from casfs.checkpoints import create
from casfs.mount.registry import wait_until
from casfs.mount.supervisor import replace_program
from casfs.store.store import Store
from tests.support.served import Mount, serving

CACHES = Path("/proc/sys/vm/drop_caches")
OLDER = Path(__file__).resolve().parents[1] / "support" / "older.py"
FAILED = os.strerror(errno.EIO)
FILES = 300
LONGEST = 0.3  # seconds between a server's start and its end
LAST_PASS_S = 30  # a reader that is not done then hangs: its request is lost


@dataclass
class Findings:
    """What the readers have seen so far."""

    passes: int = 0
    errors: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


def plant(folder: Path) -> dict[str, bytes]:
    """Files of all sizes, some so large that they are verified beside the loop."""
    chance = random.Random(0)
    contents = {}
    for number in range(FILES):
        size = 3 << 20 if number % 100 == 7 else chance.choice((0, 10, 5000, 40_000))
        name = f"d{number % 7}/e{number % 3}/f{number}"
        contents[name] = chance.randbytes(size)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents[name])
    return contents


def read(tree: Path, contents: dict[str, bytes], seed: int, found: Findings) -> None:
    names = list(contents)
    random.Random(seed).shuffle(names)
    while not found.over.is_set():
        for name in names:
            try:
                same = (tree / name).read_bytes() == contents[name]
                listed = len(os.listdir((tree / name).parent))
                if not same or not listed:
                    found.errors.append(f"{name}: other bytes")
            except OSError as error:
                found.errors.append(f"{name}: {error.strerror}")
            if found.over.is_set():
                break
        found.passes += 1


def end(mount: Mount, chance: random.Random, how: str) -> float:
    """Ends the worker; returns the seconds until its successor answers."""
    before = mount.state()
    time.sleep(chance.uniform(0, LONGEST))  # a random instant is what this is about
    if os.geteuid() == 0:
        CACHES.write_text("3\n")
    began = time.monotonic()
    if how == "kill":
        os.kill(before.worker, signal.SIGKILL)
    else:
        replace_program(before)

    def back() -> bool:
        with suppress(OSError, ValueError):
            now = mount.state()
            return now.starts > before.starts and now.serves and bool(os.statvfs(mount.path))
        return False

    wait_until(back, f"no worker serves {mount.path} after {before.worker} was killed")
    return time.monotonic() - began


def run(
    folder: Path,
    kills: int,
    readers: int,
    seed: int,
    transport: str,
    how: str = "kill",
    before: Sequence[str] = (),
) -> Findings:
    contents = plant(folder / "source")
    found, chance, gaps = Findings(), random.Random(seed), []
    with (
        Store.init(folder / "store") as store,
        serving(store, folder / "mnt", transport=transport, before=before) as mount,
    ):
        made = create.create(
            store, "c", folder / "source", options=create.CreateOptions(defaults=False)
        ).checkpoint
        tree = mount.path / "trees" / "c" / made.id
        threads = [
            threading.Thread(target=read, args=(tree, contents, number, found), daemon=True)
            for number in range(readers)
        ]
        for thread in threads:
            thread.start()
        try:
            gaps = [end(mount, chance, how) for _ in range(kills)]
        finally:
            found.over.set()
            for thread in threads:
                thread.join(LAST_PASS_S)
            if hanging := sum(thread.is_alive() for thread in threads):
                found.errors.append(f"{hanging} readers wait for an answer")
        check = subprocess.run(["diff", "-r", folder / "source", tree], capture_output=True)
        if check.returncode:
            found.errors.append(check.stdout.decode(errors="replace")[:1000])
    gaps.sort()
    print(
        f"back after {gaps[len(gaps) // 2] * 1000:.0f} ms (median), {gaps[-1] * 1000:.0f} ms (most)"
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--readers", type=int, default=64)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--transport", default="builtin")
    parser.add_argument("--older", action="store_true")
    parser.add_argument("--how", choices=("kill", "replace"), default="kill")
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="casfs-kills-"))
    try:
        found = run(
            folder,
            wanted.kills,
            wanted.readers,
            wanted.seed,
            wanted.transport,
            wanted.how,
            [sys.executable, str(OLDER)] if wanted.older else (),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failed = [one for one in found.errors if wanted.older and one.endswith(FAILED)]
    errors = [one for one in found.errors if one not in failed]
    for error in errors[:20]:
        print(error)
    print(f"kills {wanted.kills}, errors {len(errors)}, failed {len(failed)}, seed {wanted.seed}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
