"""What the tests of the engine and of the command line share: small workflows, agents that
are one-line shell scripts, processes to watch, the command line in this process."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casfs.checkpoints import revisions
from casfs.cli.main import main
from casfs.digest import TreeHash
from casfs.store.store import FORMAT, Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import Thread
from casfs.trees.recorded_state import RecordedState
from engine.runtime.run_services import RunServices
from engine.runtime.thread_run import ThreadRun
from engine.threads import forking, lifecycle, suspension
from engine.threads.agent_binding import NO_BINDINGS, Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support import output_schemas

ERROR = re.compile("casfs: (?!step [0-9]|warning: )")  # --wait also reports steps on stderr
DEADLINE = 60.0  # seconds that a condition may take on a slow machine

OPEN = {"name": "open", "type": "object"}
STATUS = {
    "name": "status",
    "type": "object",
    "properties": {"status": {"enum": ["done", "failed"]}},
    "required": ["status"],
}

# -- workflows ----------------------------------------------------------------------------


def rule(origin: str, to: str, when: str | None = None) -> dict[str, Any]:
    return {"from": origin, "to": to, "when": when}


def role(name: str, schema: Any = None) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"The {name}.",
        "systemPrompt": f"You are the {name}.",
        "extractPrompt": "Say how it went.",
        "schema": schema or OPEN,
    }


def workflow(rules: list[dict[str, Any]], name: str = "sample", **schemas: Any) -> dict[str, Any]:
    """A definition with a role for each keyword; None is a schema that takes any object."""
    roles = {key: role(key, schema) for key, schema in schemas.items()}
    return {"name": name, "description": "A sample.", "roles": roles, "moderator": rules}


ONE = workflow([rule("__start__", "a"), rule("a", "__end__")], a=None)


def loop(steps: int, schema: Any = None) -> dict[str, Any]:
    """One role, `steps` times."""
    again = rule("a", "a", f"$count($steps) < {steps}")
    return workflow([rule("__start__", "a"), again, rule("a", "__end__")], a=schema)


# -- agents -------------------------------------------------------------------------------


def shell(script: str, *arguments: str) -> dict[str, Any]:
    """The config of a command agent: a shell script that gets `arguments` as $1, $2, …"""
    return {"argv": ["sh", "-c", script, "sh", *arguments]}


def says(meta: Any, first: str = "true") -> dict[str, Any]:
    """The config of a command agent that does `first` and then reports `meta`."""
    script = f"{first}\nprintf '%s\\n' '```json' \"$1\" '```'"
    return shell(script, json.dumps(meta))


def begin(
    store: Store,
    definition: dict[str, Any],
    agents: Mapping[str, dict[str, Any]],
    workspace: str | RecordedState | None = None,
    max_steps: int = lifecycle.MAX_STEPS,
) -> Thread:
    """Add a workflow and create a thread of it with command agents; nothing runs yet."""
    hash, _ = workflows.add(store, definition)
    bound = {name: Binding("command", config) for name, config in agents.items()}
    state = RecordedState(TreeHash(workspace)) if isinstance(workspace, str) else workspace
    return lifecycle.create(
        store, ThreadRequest(hash, "Do it.", bound, workspace=state, max_steps=max_steps)
    )


def fork(
    store: Store,
    thread: Thread,
    at: Any = None,
    replacements: Mapping[str, Binding] = NO_BINDINGS,
    **more: Any,
) -> Thread:
    """One fork."""
    (made,) = forking.fork(store, thread, at, [replacements], options=forking.ForkOptions(**more))
    return made


async def carry_on(store: Store, thread: Thread, **more: Any) -> Thread:
    """Run a thread as the daemon would, from where its head stands. `more`: of RunServices."""
    services = RunServices(store, **more)
    return await ThreadRun(services, threads.get(store, thread.id), dict(os.environ))()


async def resumed(store: Store, thread: Thread) -> Thread:
    return await carry_on(store, suspension.resume(store, threads.get(store, thread.id)))


def steps(store: Store, thread: Thread) -> list[dict[str, Any]]:
    """The payloads of a thread's steps, oldest first."""
    return [node.payload for node in threads.backwards(store, thread)][::-1]


def states(store: Store, thread: Thread) -> list[RecordedState]:
    """What was recorded of the directory after each step, oldest first."""
    nodes = list(threads.backwards(store, thread))[::-1]
    return [revisions.state_of_node(store, node.hash) for node in nodes]


# -- processes ----------------------------------------------------------------------------


def until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Wait until `condition` returns something true, and return that."""
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)
    return value


def alive(pid: int) -> bool:
    """Is it running? A zombie is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def pids(file: Path) -> list[int]:
    """The process ids that a script has written into `file`, whole lines only."""
    if not file.exists():
        return []
    return [int(line) for line in file.read_text().splitlines(keepends=True) if line[-1] == "\n"]


def kill(pid: int) -> None:
    """Kill -9 a process and wait until it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, 9)
    until(lambda: not alive(pid), f"the end of process {pid}")


def spawn(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run `casfs` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "casfs", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        **more,
    )


@contextmanager
def daemon(root: Path) -> Iterator[int]:
    """A daemon of the store at `root`; it ends with the block, if it has not ended before."""
    started = spawn("--store", root, "daemon")
    assert started.returncode == 0, started.stderr
    pid = int(started.stdout.split()[0])
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, 15)
        until(lambda: not alive(pid), "the end of the daemon")


def start_thread(
    root: Path, workflow: str, agents: Mapping[str, dict[str, Any]], **more: Any
) -> str:
    """Ask the daemon to start a thread with command agents; returns its id."""
    bound = {name: {"name": "command", "config": config} for name, config in agents.items()}
    made = daemon_socket.request(
        root, "start", workflow=workflow, input="Do it.", agents=bound, **more
    )
    return str(made["id"])


# -- the command line ---------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def word(self) -> str:
        """The first word of stdout: the hash or id that a verb made."""
        return self.text.split()[0]

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """`casfs ARGUMENTS…` in this process, on one store."""

    def __init__(
        self,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        capture: pytest.CaptureFixture[bytes],
    ) -> None:
        self.root = root
        self._monkeypatch = monkeypatch
        self._capture = capture

    def __call__(self, *arguments: str | Path, stdin: bytes = b"", code: int = 0) -> Answer:
        """Run it; the exit code must be `code`, and an error must be one line."""
        self._capture.readouterr()
        with self._monkeypatch.context() as patch:
            patch.setenv("CASFS_STORE", str(self.root))
            patch.setattr(sys, "argv", ["casfs", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            with pytest.raises(SystemExit) as ended:
                main()
        captured = self._capture.readouterr()
        answer = Answer(int(ended.value.code or 0), captured.out, captured.err.decode())
        assert answer.code == code, answer
        if "--json" in arguments:
            output_schemas.check([str(one) for one in arguments], answer.out)
        if code not in (0, 2):
            errors = [one for one in answer.err.splitlines() if ERROR.match(one)]
            assert len(errors) <= 1, answer.err
        return answer

    def refused(self, *arguments: str | Path, code: int, stdin: bytes = b"") -> str:
        """Run what must fail with `code`, one line on stderr, and nothing stored."""
        before = self.contents()
        answer = self(*arguments, stdin=stdin, code=code)
        assert answer.out == b""
        assert answer.err.startswith("casfs: ")
        assert answer.err.count("\n") == 1
        assert self.contents() == before
        return answer.err

    def contents(self) -> tuple[int, list[str]]:
        """How many blobs there are, and every head."""
        if not (self.root / "store.db").exists():
            return 0, []
        backend = Store.open(self.root) if _readable(self.root) else None
        if backend is None:
            return 0, []
        with backend as store:
            heads = [f"{name} {head.hash} {head.record}" for name, head in store.heads.list()]
            return sum(1 for _ in store.blobs.iterate()), heads


def _readable(root: Path) -> bool:
    return (root / "format").read_text().strip() == FORMAT
