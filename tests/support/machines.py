"""Machines of one shared store: directories, environment and a link to each server of their own.

    with machines(postgres, seaweedfs, 3) as team:
        first, second, third = team
        first.casfs("thread", "start", "loop", "--input", "x")
        first.cut("database")             # or "objects", or both; heal() ends it
        second.start_daemon(); second.kill_daemon(); second.stop_daemon()
        third.freeze(); third.thaw()      # SIGSTOP and SIGCONT for all its processes
        third.die()                       # all of it at once: no server hears of it

Processes see neither the environment nor the network of the tests. With a `Network`
(tests/support/namespaces.py) each machine is a network namespace as well.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from tests.support import programs
from tests.support.engine import alive, until
from tests.support.links import Link
from tests.support.namespaces import Network
from tests.support.postgres_server import PostgresServer
from tests.support.s3_servers import CREDENTIALS, S3Server

Server = Literal["database", "objects"]
SERVERS: tuple[Server, ...] = ("database", "objects")
DEADLINE_S = 120.0
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class Machine:
    """`prefix`: what enters its network; `plug` sets its cable. `pid`: of its daemon."""

    name: str
    folder: Path
    links: dict[Server, Link]
    database: str
    objects: str
    prefix: tuple[str, ...] = ()
    plug: Callable[[bool], None] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    pid: int | None = None

    @property
    def root(self) -> Path:
        """Its directory for the store."""
        return self.folder / "store"

    @property
    def url(self) -> str:
        """The database, as this machine reaches it."""
        link = self.links["database"]
        return f"postgresql://casfs@{link.host}:{link.port}/{self.database}"

    @property
    def endpoint(self) -> str:
        """The object store, as this machine reaches it."""
        link = self.links["objects"]
        return f"http://{link.host}:{link.port}"

    def join(self) -> None:
        """Makes the store, or joins it."""
        self.casfs("init", self.url, "--objects", self.objects, "--endpoint", self.endpoint)

    def command(self, *arguments: str | Path) -> list[str]:
        return [*self.prefix, sys.executable, "-P", "-m", "casfs", *map(str, arguments)]

    def casfs(self, *arguments: str | Path, code: int = 0, stdin: str = "") -> str:
        """Runs casfs here; returns its stdout, of a refusal its stderr."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == code, f"{self.name}: {arguments}: {done}"
        return done.stdout if code == 0 else done.stderr

    def run(self, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            input=stdin, capture_output=True, text=True, timeout=DEADLINE_S,
            env=self.environment, cwd=self.folder,
        )  # fmt: skip

    def json(self, *arguments: str | Path) -> Any:
        return json.loads(self.casfs(*arguments, "--json"))

    # -- the network ----------------------------------------------------------------

    def cut(self, *servers: Server) -> None:
        """Silence between here and those servers, or all."""
        for server in servers or SERVERS:
            self.links[server].cut()

    def heal(self, *servers: Server) -> None:
        for server in servers or SERVERS:
            self.links[server].heal()

    # -- its daemon -----------------------------------------------------------------

    def start_daemon(self) -> int:
        started = self.casfs("daemon")
        self.pid = int(started.split()[0])
        return self.pid

    def stop_daemon(self) -> None:
        """Ends it in order, where it runs."""
        if self.pid is not None and alive(self.pid):
            os.kill(self.pid, signal.SIGTERM)
            self._gone([self.pid])
        self.pid = None

    def kill_daemon(self) -> None:
        """SIGKILL for the daemon alone; its agents live on."""
        if self.pid is not None:
            _signal([self.pid], signal.SIGKILL)
            self._gone([self.pid])
        self.pid = None

    def processes(self) -> list[int]:
        """All that was started here and lives, by its environment."""
        mark = f"={self.folder}/".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (place / "environ").read_bytes() and alive(int(place.name)):
                    found.append(int(place.name))
        return found

    def freeze(self, agents: bool = True) -> None:
        """SIGSTOP for the daemon; with `agents` for every process here, until none is new."""
        known: set[int] = set()
        while new := {*(self.processes() if agents else [self.pid or 0])} - known - {0}:
            _signal(new, signal.SIGSTOP)
            known |= new

    def thaw(self) -> None:
        _signal(self.processes(), signal.SIGCONT)

    def die(self) -> None:
        """All processes end at once, and no server sees a connection end."""
        self.freeze()
        for link in self.links.values():
            link.abandon()
        self.end_all()

    def end_all(self) -> None:
        """SIGKILL for every process here; what is mounted goes as well."""
        while found := self.processes():
            _signal(found, signal.SIGKILL)
            self._gone(found)
        self.pid = None
        for line in Path("/proc/self/mounts").read_text().splitlines()[::-1]:
            if (point := line.split()[1]).startswith(f"{self.folder}/"):
                subprocess.run([programs.path("umount"), "--lazy", point], check=True)

    def _gone(self, pids: Collection[int]) -> None:
        until(lambda: not any(map(alive, pids)), f"the end of processes on {self.name}")


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def environment(folder: Path) -> dict[str, str]:
    """Of a machine: its own homes, the programs of the tests, keys of the object store."""
    for name in ("home", "run"):
        (folder / name).mkdir(mode=0o700)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    own = {"HOME": folder / "home", "XDG_RUNTIME_DIR": folder / "run", "TMPDIR": folder / "home"}
    return kept | CREDENTIALS | {"CASFS_STORE": str(folder / "store")} | {
        name: str(path) for name, path in own.items()
    }  # fmt: skip


@contextmanager
def machines(
    postgres: PostgresServer,
    s3: S3Server,
    count: int,
    network: Network | None = None,
    joined: bool = True,
) -> Iterator[list[Machine]]:
    """Machines of a new store. `network`: a `Network`, each in a namespace of its own."""
    folder = Path(tempfile.mkdtemp(prefix="casfs-machines-", dir="/tmp"))  # sockets: a short path
    ports: dict[Server, int] = {"database": postgres.port}
    ports["objects"] = urlsplit(s3.endpoint).port or 80
    team: list[Machine] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        database = stack.enter_context(postgres.database()).rpartition("/")[2]
        objects = s3.url()
        for name in LETTERS[:count]:
            place = folder / name
            place.mkdir()
            listen = network.address if network else "127.0.0.1"
            links = {
                server: stack.enter_context(Link("127.0.0.1", ports[server], listen))
                for server in SERVERS
            }
            machine = Machine(name, place, links, database, objects)
            machine.environment = environment(place)
            if network:
                machine.prefix, machine.plug = network.add(name)
            team.append(machine)
            stack.callback(machine.end_all)
        for machine in team if joined else []:
            machine.join()
        yield team
