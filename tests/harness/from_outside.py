"""What programs that are not ours say, mutated: nothing of it ends the daemon or a command.

    python -m tests.harness.from_outside events [--count 20000] [--seed 1]

What real agents have said (`tests/fixtures/agents`) is changed at random: values, names and forms
that no version of them writes, cut and damaged texts.

- `events`: into the spool of a running daemon, beside events of a session that is well. The daemon
  is the same process at the end, the spool is empty, each event is recorded or `status` counts it,
  the session that is well has all its calls, `fsck` is clean, and no command ends in a traceback.
- `transcripts`: imported, read for the answers of calls, cut for a rewind.
- `arguments`: each command with words that no person types.
- `settings`: agents are attached and detached; what is refused stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from casfs.attach import attachments, spool
from casfs.attach.agents import AGENTS
from casfs.cli.main import cli
from casfs.errors import CasfsError
from casfs.sessions import session_steps
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.system.clock import now_ms
from casfs.threads import sessions, threads
from casfs.threads.threads import Thread
from casfs.transcripts import transcript_files
from engine.sessions import session_import, transcript_reader
from tests.support import recorded_agents
from tests.support.engine import alive, daemon, spawn, until
from tests.support.json_mutator import NUMBERS, TEXTS, JsonMutator
from tests.support.new_store import init_store
from tests.support.sessions import ClaudeEvents

BATCH = 50
LINES_CHANGED = 4
IMPORTED = ("claude", "codex", "gemini")  # that leave transcripts
COMMANDS = (
    ("status",), ("status", "--json"), ("doctor",), ("fsck",), ("stats",), ("thread", "list"),
    ("thread", "list", "--json"), ("sessions", "list"), ("log", "--json"), ("grep", "hello"),
    ("rewind", "--list"), ("rewind", "--list", "--json"), ("undo", "--list"), ("blame", "a.txt"),
    ("log", "a.txt"),
)  # fmt: skip
# A repository's own words: those of our records, and what a person would call a secret.
ENV_WORDS = (
    "name", "text", "type", "status", "completed", "failed", "claude", "session", "workspace",
    "role", "user", "tokens", "tree", "turns", "true", "null", "0", "1", "react-turn", "suspended",
    "postgres", "correct-horse-x1", "/", ".", "src", "a.txt",
)  # fmt: skip


# Commands that serve, or wait for what comes.
LASTING = {
    ("web",), ("mcp",), ("demo",), ("watch",), ("daemon", "start"), ("daemon", "run"), ("mount",),
    ("daemon", "logs"),
}  # fmt: skip
MAX_COMMAND_S = 60


Play = Callable[[int, int], Counter[str]]  # of a count and a seed


class Wrong(Exception):
    pass


class Outside:
    """A home directory with a project, and a store that agents are attached to."""

    def __init__(self, top: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.mutator = JsonMutator(self.chance)
        self.home = top / "home"
        self.project = top / "project"
        self.root = top / "store"
        self.home.mkdir()
        self.project.mkdir()
        (self.project / "a.txt").write_text("hello\n")
        self._write_env()
        self.store = init_store(self.root)
        spool.prepare(self.root, os.environ)
        (self.root / "hooks/start-daemon").write_text("#!/bin/sh\n")

    def _write_env(self) -> None:
        """A `.env` whose values are words of our own records."""
        lines = [f"{word.upper()}_KEY={word}" for word in ENV_WORDS if word.isalpha()]
        lines += [f"SECRET_{number}={word}" for number, word in enumerate(ENV_WORDS)]
        (self.project / ".env").write_text("\n".join(lines))

    def recorded(self) -> Iterator[tuple[str, recorded_agents.Ask]]:
        for agent in recorded_agents.agents():
            for ask in recorded_agents.load(agent, self.project, self.home):
                yield agent, ask

    def put_transcripts(self) -> None:
        for _, ask in self.recorded():
            for name, data in ask.transcripts.items():
                file = self.home / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)


@contextmanager
def outside(seed: int) -> Iterator[Outside]:
    top = Path(tempfile.mkdtemp(prefix="casfs-outside-"))
    made = Outside(top, seed)
    try:
        yield made
    finally:
        made.store.close()
    shutil.rmtree(top)


# -- events -------------------------------------------------------------------------------


def play_events(count: int, seed: int) -> Counter[str]:
    with outside(seed) as made:
        made.put_transcripts()
        events = [event for _, ask in made.recorded() for event in ask.events]
        sent = 0
        with daemon(made.root) as pid:
            while sent < count:
                for _ in range(min(BATCH, count - sent)):
                    _spool(made.root, _mutated_event(made, made.chance.choice(events)))
                    sent += 1
                _play_one_that_is_well(made, sent)
                if not alive(pid):
                    raise Wrong(f"the daemon has ended after {sent} events")
            counts = _check(made)
            if not alive(pid):
                raise Wrong("the daemon has ended by a command")
        counts["events"] = sent
        return counts


def _mutated_event(made: Outside, event: bytes) -> bytes:
    line, _, payload = event.partition(b"\n")
    mutated = payload
    if made.chance.random() < 0.9:
        mutated = made.mutator.mutated(payload)
    if made.chance.random() < 0.05:
        line = made.mutator.mutated(line)
    # As hooks report: by a process that has ended.
    return line + b"\n" + mutated


def _spool(root: Path, data: bytes) -> None:
    name = f"{spool.current_boot()}-{time.monotonic_ns():020d}-{os.getpid()}"
    hidden = root / spool.SPOOL / f".{name}"
    hidden.write_bytes(data)
    hidden.rename(hidden.with_name(name))


def _play_one_that_is_well(made: Outside, number: int) -> None:
    session = ClaudeEvents(made.project, session=f"well-{number}")
    events = [
        session.prompt("Do it"),
        session.call("c1", command="make"),
        session.result("c1", command="make"),
        session.stop(),
    ]
    for payload in events:
        line = f"casfs 1 claude {now_ms()} {os.getpid()}\n".encode()
        _spool(made.root, line + json.dumps(payload).encode())
    names = spool.names(made.root)
    try:
        daemon_socket.request(made.root, "session_event", file=names[-1] if names else "none")
        until(lambda: spool.names(made.root) == [], "an empty spool")
    except (AssertionError, CasfsError) as error:
        raise Wrong(f"{spool.names(made.root)} stay in the spool: {error!r}") from error
    thread = _thread(made.store, f"well-{number}")
    calls = (
        []
        if thread is None
        else [c for s in session_steps.load(made.store, thread) for c in s.calls]
    )
    if len(calls) != 1 or calls[0].before is None or calls[0].after is None:
        raise Wrong(f"a session that is well lacks its call: {calls}")


def _thread(store: Store, session: str) -> Thread | None:
    for thread in sessions.newest_first(store):
        if sessions.about(store, thread)["id"] == session:
            return thread
    return None


def _check(made: Outside) -> Counter[str]:
    counts: Counter[str] = Counter()
    counts["set aside"] = spool.set_aside_count(made.root)
    counts["sessions"] = sum(1 for _ in sessions.newest_first(made.store))
    for thread in sessions.newest_first(made.store):
        counts["steps"] += threads.length(made.store, thread)
        session_steps.load(made.store, thread)
    status = spawn("--store", made.root, "status", cwd=made.project)
    stale = spawn("--store", made.root, "doctor", cwd=made.project)
    for said in (status.stdout + status.stderr, stale.stdout):
        if counts["set aside"] and str(counts["set aside"]) not in said:
            raise Wrong(f"what was set aside is not counted: {said}")
    for words in COMMANDS:
        ended = spawn("--store", made.root, *words, cwd=made.project)
        if "Traceback" in ended.stderr or ended.returncode < 0:
            raise Wrong(f"{words}: {ended.stderr}")
        if words == ("fsck",) and ended.returncode != 0:
            raise Wrong(f"{words}: {ended.stdout}{ended.stderr}")
    for thread in list(sessions.newest_first(made.store))[:20]:
        for words in (("thread", "show"), ("thread", "log"), ("log",), ("rewind", "--list")):
            ended = spawn("--store", made.root, *words, thread.id, cwd=made.project)
            if "Traceback" in ended.stderr or ended.returncode < 0:
                raise Wrong(f"{words}: {ended.stderr}")
    return counts


# -- transcripts --------------------------------------------------------------------------


def play_transcripts(count: int, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    with outside(seed) as made:
        asks = [(agent, ask) for agent, ask in made.recorded() if agent in IMPORTED]
        for number in range(count):
            agent, ask = made.chance.choice(asks)
            home = made.home / f"{number}"
            paths = []
            for name, data in ask.transcripts.items():
                file = home / name
                file.parent.mkdir(parents=True) if not file.parent.is_dir() else None
                file.write_bytes(_mutated_lines(made, data))
                paths.append(file)
            for path in paths:
                counts[_read(made, agent, path)] += 1
            shutil.rmtree(home)
        for thread in sessions.newest_first(made.store):
            session_steps.load(made.store, thread)
    return counts


def _mutated_lines(made: Outside, data: bytes) -> bytes:
    lines = data.splitlines()
    for _ in range(made.chance.randint(1, LINES_CHANGED)):
        place = made.chance.randrange(len(lines))
        match made.chance.randrange(6):
            case 0:
                del lines[place]
            case 1:
                lines.insert(place, made.chance.choice(lines))
            case _:
                lines[place] = made.mutator.mutated(lines[place])
        if not lines:
            return b""
    text = b"\n".join(lines) + b"\n"
    return text[: made.chance.randrange(len(text))] if made.chance.random() < 0.1 else text


def _read(made: Outside, agent: str, path: Path) -> str:
    """Returns how it ended. Raises what is no error of ours."""
    result = "imported"
    for read in _readings(made, agent, path):
        try:
            read()
        except CasfsError as error:
            result = type(error).__name__
        except Exception as error:
            raise Wrong(f"{agent}: {path}: {error!r}") from error
    return result


def _readings(made: Outside, agent: str, path: Path) -> list[Callable[[], object]]:
    size = path.stat().st_size
    since = made.chance.choice((0, size // 2, size, size + 10))
    return [
        lambda: transcript_reader.answers(agent, str(path), since),
        lambda: transcript_reader.read_part(made.store, agent, str(path), since),
        lambda: session_import.import_session(made.store, {}, agent, path),
    ]


# -- settings -----------------------------------------------------------------------------


def play_settings(count: int, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    with outside(seed) as made:
        for number in range(count):
            agent = made.chance.choice(list(AGENTS.values()))
            env = {agent.variable: str(made.home / str(number))}
            file = agent.settings(None, env)
            plan = attachments.plan(made.root, agent, None, env)
            file.parent.mkdir(parents=True)
            text = plan.after.encode() if made.chance.random() < 0.5 else b'{"theme": "dark"}'
            data = made.mutator.mutated(text)
            file.write_bytes(data)
            counts[_attached(made, agent.name, file, env)] += 1
            shutil.rmtree(made.home / str(number))
            (made.root / attachments.FILE).unlink(missing_ok=True)
    return counts


def _attached(made: Outside, name: str, file: Path, env: dict[str, str]) -> str:
    data = file.read_bytes()
    try:
        plan = attachments.plan(made.root, AGENTS[name], None, env)
        attachments.attach(made.root, plan, os.environ)
        events = attachments.reported_events(made.root, plan.attachment)
        if file.read_text() != plan.after or (not events and AGENTS[name].plugin is None):
            raise Wrong(f"{name} is attached, and its settings have no hook: {data[:400]!r}")
        attachments.detach(made.root, name, None, env)
    except CasfsError as error:
        if file.read_bytes() != data:
            raise Wrong(f"{name}: {error}, and its settings are others: {data[:400]!r}") from error
        return type(error).__name__
    except Exception as error:
        raise Wrong(f"{name}: {error!r}: {data[:400]!r}") from error
    if file.exists() and b"report.py" in file.read_bytes() and b"report.py" not in data:
        raise Wrong(f"{name} is detached, and its hooks are there: {data[:400]!r}")
    return "attached"


# -- arguments ----------------------------------------------------------------------------


def play_arguments(count: int, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    with outside(seed) as made:
        made.put_transcripts()
        for agent in IMPORTED:
            for path in transcript_files.find(agent, made.home / f".{agent}"):
                session_import.import_session(made.store, {}, agent, path)
        env = {
            **os.environ,
            "HOME": str(made.home),
            "CASFS_STORE": str(made.root),
            "EDITOR": "true",
        }
        commands = list(_commands(cli, ()))
        for _ in range(count):
            words, command = made.chance.choice(commands)
            argv = [*words, *_arguments(made, command)]
            argv = [word.replace("\0", "") for word in argv]
            try:
                ended = subprocess.run(
                    [sys.executable, "-m", "casfs", *argv],
                    cwd=made.project, env=env, stdin=subprocess.DEVNULL, capture_output=True,
                    timeout=MAX_COMMAND_S,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise Wrong(f"{argv} has not ended") from None
            said = ended.stderr.decode("utf-8", "replace")
            if "Traceback" in said or "internal error" in said or ended.returncode < 0:
                raise Wrong(f"{argv}: {said}")
            counts[str(ended.returncode)] += 1
    return counts


def _commands(
    group: click.Group, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yields all commands that end by themselves, with their words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))
        elif command is not None and (*words, name) not in LASTING:
            yield (*words, name), command


def _arguments(made: Outside, command: click.Command) -> list[str]:
    words = []
    for parameter in made.chance.sample(command.params, len(command.params)):
        if isinstance(parameter, click.Argument):
            if made.chance.random() < 0.8:
                words.append(_word(made))
        elif made.chance.random() < 0.25:
            words.append(parameter.opts[0])
            if not getattr(parameter, "is_flag", False):
                words.append(_word(made))
    return [*words, *(["--json"] if made.chance.random() < 0.2 else [])]


def _word(made: Outside) -> str:
    names = [thread.id for thread in sessions.newest_first(made.store)]
    known = (*names, "a.txt", str(made.project), f"{names[0]}@1", "1", "1.2", "0" * 64)
    kinds = (TEXTS[:8] + TEXTS[9:], tuple(map(str, NUMBERS)), known, known)
    word: str = made.chance.choice(made.chance.choice(kinds))
    return word[:4000].encode("utf-8", "surrogatepass").decode("utf-8", "replace")


PLAYS = {
    "arguments": play_arguments,
    "events": play_events,
    "transcripts": play_transcripts,
    "settings": play_settings,
}


def main(plays: Mapping[str, Play], description: str | None, count: int) -> None:
    """Runs the play that the command line names; ends with what is wrong."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("what", choices=plays)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        print(dict(plays[options.what](options.count, options.seed)))
    except Wrong as error:
        sys.exit(f"seed {options.seed}: {error}")


if __name__ == "__main__":
    main(PLAYS, __doc__, count=20_000)
