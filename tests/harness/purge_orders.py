"""Purge in every order of the commands that spread a text, some of them killed.

    python tests/harness/purge_orders.py --rounds 20 [--kills 10] [--seed N]

A round is a store, its clone, their remote, and archives of any age. Random commands record,
push, pull, clone, export, import and purge; `--kills` of them in a round are killed at a random
instant and given again. In the end what was purged is purged, pushed, pulled and collected
everywhere, and then

- the texts and the contents are in no file of the store, the remote and the clone, and in no
  reading of a blob;
- fsck finds nothing in the three;
- files beside them, and the lines beside a text of several lines, are as they were.

Exit 1 on any loss, with the seed; the directory is kept then.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from casfs.store.store import Store
from tests.support import readings
from tests.support.remotes import remote_bytes

WORDS = b"the plain words of a person 4711"
PARTS = (b"AAAAfirst line of the thing", b"BBBBlast line of it")
KEY = b"-----BEGIN THING-----\n" + b"\n}\n".join(PARTS) + b"\n-----END THING-----"
OTHER = b"-----BEGIN OTHER-----\n}\nCCCC\n-----END OTHER-----\n"
WHOLE = b"a whole file that has to go, 0815\n"
BESIDE = b"nobody has purged this\n"
LONGEST_S = 0.6  # until a command is killed


@dataclass
class World:
    """`kills`: how many commands may still be killed."""

    folder: Path
    chance: random.Random
    kills: int
    done: list[str] = field(default_factory=list)
    archives: int = 0
    has_clone: bool = False
    killed: int = 0
    first: str = ""  # the checkpoint that was recorded before any purge

    @property
    def place(self) -> Path:
        return self.folder / "place"

    @property
    def remote(self) -> Path:
        return self.folder / "remote"

    def run(self, site: str, *arguments: str | Path, stdin: bytes = b"", ok: str = "0") -> str:
        """Runs a command on a store; first perhaps one that is killed. `ok`: exit codes."""
        store = {"CASFS_STORE": str(self.folder / site)}
        command = [sys.executable, "-m", "casfs", *map(str, arguments)]
        self.done.append(f"{site}: {' '.join(map(str, arguments))}")
        if self.kills and self.chance.random() < 0.4:
            self.kills -= 1
            self.killed += 1
            first = subprocess.Popen(
                command, env={**os.environ, **store}, stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert first.stdin is not None
            first.stdin.write(stdin)
            first.stdin.close()
            time.sleep(self.chance.random() * LONGEST_S)
            first.kill()
            first.wait()
            self.done[-1] += " (killed first)"
        done = subprocess.run(
            command, env={**os.environ, **store}, input=stdin, capture_output=True, check=False
        )
        said = done.stdout.decode() + done.stderr.decode()
        assert str(done.returncode) in ok.split(), f"{self.done[-1]}: {done.returncode}: {said}"
        return said


# -- the commands --------------------------------------------------------------------------------


def edit(world: World) -> None:
    """Writes the files; their neighbours differ each time."""
    world.place.mkdir(exist_ok=True)
    number = b"%d\n" % world.chance.randrange(10**6)
    (world.place / "words.txt").write_bytes(b"before\n" + WORDS + b"\nafter " + number)
    (world.place / "thing.txt").write_bytes(OTHER + KEY + b"\n" + OTHER)
    (world.place / "whole.txt").write_bytes(WHOLE)
    (world.place / "beside.txt").write_bytes(BESIDE)


def create(world: World) -> None:
    edit(world)
    message = f"with {WORDS.decode()}" if world.chance.random() < 0.5 else "plain"
    said = world.run("store", "checkpoint", "create", "work", world.place, "-m", message)
    world.first = world.first or f"work@{said.split()[0]}"


def act(world: World) -> None:
    """A thread whose agent shows and changes the files."""
    edit(world)
    script = "cat words.txt thing.txt; cp whole.txt copy.txt; echo x >>words.txt"
    agent = f'command:sh -c "{script}"'
    world.run("store", "run", agent, "Do it", world.place, "--no-apply")
    world.run("store", "daemon", "stop", ok="0 5")


def push(world: World) -> None:
    world.run("store", "push", "far", "--all")


def pull(world: World) -> None:
    if world.has_clone:
        world.run("clone", "pull", "origin", ok="0 1")


def clone(world: World) -> None:
    if not world.has_clone:
        world.run("store", "push", "far", "--all")
        world.run("store", "clone", world.remote.as_uri(), world.folder / "clone")
        world.has_clone = True


def push_back(world: World) -> None:
    if world.has_clone:
        world.run("clone", "push", "origin", "--all", ok="0 4")


def export(world: World) -> None:
    world.archives += 1
    target = world.folder / f"archive{world.archives}"
    world.run("store", "export", "work", "-o", target, ok="0 3")
    if not target.exists():
        world.archives -= 1


def import_(world: World) -> None:
    if world.archives:
        number = world.chance.randint(1, world.archives)
        site = "clone" if world.has_clone and world.chance.random() < 0.5 else "store"
        world.run(site, "import", world.folder / f"archive{number}", ok="0 4")


def purge_words(world: World) -> None:
    world.run("store", "purge", "--text", "--force", stdin=WORDS, ok="0 3")


def purge_thing(world: World) -> None:
    world.run("store", "purge", "--text", "--force", stdin=KEY, ok="0 3")


def purge_whole(world: World) -> None:
    world.run("store", "purge", "work:whole.txt", "--all-versions", "--force", ok="0 3 4")


def collect(world: World) -> None:
    world.run("store", "gc")


COMMANDS: tuple[Callable[[World], None], ...] = (
    create, create, act, push, pull, clone, push_back, export, import_, purge_words, purge_thing,
    purge_whole, collect,
)  # fmt: skip


# -- a round -------------------------------------------------------------------------------------


def play(world: World, length: int = 12) -> None:
    """Plays a round. Raises AssertionError."""
    world.run("store", "init")
    world.run("store", "remote", "add", "far", world.remote.as_uri(), ok="0 4")
    create(world)
    for _ in range(length):
        world.chance.choice(COMMANDS)(world)
    finish(world)
    verify(world)


def finish(world: World) -> None:
    """Does what docs/secrets.md says, in that order."""
    for purge in (purge_words, purge_thing, purge_whole):
        purge(world)
    push(world)
    world.run("store", "remote", "gc", "far")
    if world.has_clone:
        world.run("clone", "pull", "origin", "--purge", ok="0 1")
        world.run("clone", "gc")
        push_back(world)
    for number in range(1, world.archives + 1):
        world.run("store", "import", world.folder / f"archive{number}", ok="0 4")
    world.run("store", "gc")


def verify(world: World) -> None:
    purged = (WORDS, *PARTS, WHOLE.strip())
    for site in ("store", "clone") if world.has_clone else ("store",):
        world.run(site, "fsck")
        root = world.folder / site
        for path in root.rglob("*"):
            data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found = [text for text in purged if text in data]
            assert not found, f"{path} has {found}"
        with Store.open(root) as store:
            assert readings.leaks(store, *purged, whole=True) == [], site
    far = remote_bytes(world.remote) if world.remote.exists() else b""
    assert not [text for text in purged if text in far], "the remote has it"
    world.run("store", "checkpoint", "restore", world.first, world.folder / "back")
    assert (world.folder / "back/beside.txt").read_bytes() == BESIDE
    thing = (world.folder / "back/thing.txt").read_bytes()
    assert thing.startswith(OTHER), thing
    assert thing.endswith(OTHER), thing
    assert (world.folder / "back/words.txt").read_bytes().startswith(b"before\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kills", type=int, default=0, help="in each round")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    killed = 0
    for seed in range(given.seed, given.seed + given.rounds):
        folder = Path(tempfile.mkdtemp(prefix="casfs-purge-"))
        world = World(folder, random.Random(seed), given.kills)
        try:
            play(world)
        except AssertionError as error:
            print(f"seed {seed}, {folder}: {error}", file=sys.stderr)
            print("\n".join(world.done), file=sys.stderr)
            return 1
        finally:
            subprocess.run(
                [sys.executable, "-m", "casfs", "--store", folder / "store", "daemon", "stop"],
                capture_output=True, check=False,
            )  # fmt: skip
        killed += world.killed
        shutil.rmtree(folder)
    print(f"{given.rounds} rounds, {killed} kills, losses 0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
