"""What real agents have said to casfs, kept in `tests/fixtures/agents`, so that the tests of what
is made of it need no agent.

    python -m tests.support.recorded_agents [AGENT...]

records it anew, with the agents of `tests.support.real_agents` and a scripted model: the events of
their hooks, in order, and the transcripts that they have left, by their paths in the home
directory. The project and the home directory are @PROJECT@ and @HOME@ there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.attach import spool
from tests.support import agent_model, real_agents
from tests.support.agent_model import script
from tests.support.new_store import init_store
from tests.support.outside_programs import PROGRAMS, Program

FOLDER = Path(__file__).resolve().parents[1] / "fixtures/agents"
EVENTS = "events"
ENDS = "ends.json"
TRANSCRIPTS = {
    "claude": (".claude/projects/**/*.jsonl",),
    "codex": (".codex/sessions/**/*.jsonl",),
    "gemini": (".gemini/tmp/**/*.jsonl", ".gemini/tmp/*/.project_root"),
    "opencode": (),  # it has a database
}
PROJECT_MARK = b"@PROJECT@"
HOME_MARK = b"@HOME@"
PYTHON_MARK = b"@PYTHON@"
# Codex calls its agents /root and /root/NAME, which reads as the home directory of a machine.
FIRST_AGENT = b"/root/"
FIRST_AGENT_MARK = b"@FIRST-AGENT@/"
PYTHON = os.fsencode(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
MAX_CHARS = 600  # no script of a model is longer
SHOWN_CHARS = 40


@dataclass(frozen=True)
class Ask:
    """What an agent has said on one prompt. `events`: what its hooks wrote into the spool;
    `transcripts`: as they were at the end, by path in the home directory."""

    events: list[bytes]
    transcripts: dict[str, bytes]


def load(agent: str, project: Path, home: Path) -> list[Ask]:
    """Returns what an agent has said, as if it had worked in `project`, a prompt each."""
    folder = FOLDER / agent

    def read(file: Path) -> list[bytes]:
        data = file.read_bytes()
        data = data.replace(PROJECT_MARK, bytes(project)).replace(HOME_MARK, bytes(home))
        data = data.replace(PYTHON_MARK, PYTHON).replace(FIRST_AGENT_MARK, FIRST_AGENT)
        return data.splitlines(keepends=True)

    events = [b"".join(read(file)) for file in sorted((folder / EVENTS).iterdir())]
    lines = {
        str(file.relative_to(folder / "home")): read(file)
        for file in sorted((folder / "home").rglob("*"))
        if file.is_file()
    }
    asks = []
    begin = 0
    for end in json.loads((folder / ENDS).read_text()):
        transcripts = {path: b"".join(lines[path][:count]) for path, count in end["lines"].items()}
        asks.append(Ask(events[begin : end["events"]], transcripts))
        begin = end["events"]
    return asks


def agents() -> list[str]:
    return sorted(folder.name for folder in FOLDER.iterdir())


class _Recording:
    """A session of one agent, without a daemon: what its hooks report stays in the spool."""

    def __init__(self, name: str, program: Program, top: Path, url: str) -> None:
        self.program = program
        self.ends: list[dict[str, Any]] = []  # of the prompts: how much there was then
        self.home = top / "home"
        self.project = top / "project"
        self.root = self.home / ".local/share/casfs"
        for folder in (self.home, self.project, self.root.parent):
            folder.mkdir(parents=True, exist_ok=True)
        programs = real_agents.install(name)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        variables = real_agents.set_up(name, self.home, url)
        self.env = {**os.environ, **variables, "PATH": path, "PWD": str(self.project)}
        init_store(self.root).close()
        self._run("git", "init", "-q")
        (self.project / "README").write_text("A project.\n")
        trust = ["--trust"] if program.agent == "codex" else []
        self._run(sys.executable, "-m", "casfs", "attach", program.agent, *trust)
        (self.root / "hooks/start-daemon").write_text("#!/bin/sh\n")
        self._run(sys.executable, "-m", "casfs", "daemon", "stop", is_needed=False)

    def ask(self, prompt: str, *actions: tuple[Any, ...], session: str | None = None) -> None:
        text = f"{prompt}\n{script(*actions)}"
        argv = self.program.argv(session)
        if self.program.by_stdin:
            self._run(*argv, input=text)
        else:
            self._run(*argv, text)

        self.ends.append({"events": len(spool.names(self.root)), "lines": self._line_counts()})

    def _line_counts(self) -> dict[str, int]:
        return {
            str(file.relative_to(self.home)): len(file.read_bytes().splitlines())
            for file in self._transcripts()
        }

    def session(self) -> str:
        first = spool.read(self.root, spool.names(self.root)[0])
        assert first is not None
        return str(first.payload["session_id"])

    def keep(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / EVENTS).mkdir(parents=True)
        for number, name in enumerate(spool.names(self.root)):
            data = (self.root / spool.SPOOL / name).read_bytes()
            (folder / EVENTS / f"{number:03}").write_bytes(self._marked(data))
        (folder / ENDS).write_text(json.dumps(self.ends, indent=1) + "\n")
        for file in self._transcripts():
            target = folder / "home" / file.relative_to(self.home)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text()
            if file.suffix == ".jsonl":
                values = [_shortened(json.loads(line)) for line in text.splitlines()]
                text = "".join(f"{json.dumps(value, ensure_ascii=False)}\n" for value in values)
            target.write_bytes(self._marked(text.encode()))

    def _transcripts(self) -> Iterator[Path]:
        for pattern in TRANSCRIPTS[self.program.agent]:
            yield from self.home.glob(pattern)

    def _marked(self, data: bytes) -> bytes:
        data = data.replace(bytes(self.project), PROJECT_MARK).replace(bytes(self.home), HOME_MARK)
        return data.replace(PYTHON, PYTHON_MARK).replace(FIRST_AGENT, FIRST_AGENT_MARK)

    def _run(self, *argv: str, input: str = "", is_needed: bool = True) -> None:
        ended = subprocess.run(
            argv, cwd=self.project, env=self.env, input=input, capture_output=True, text=True,
            timeout=180,
        )  # fmt: skip
        if is_needed and ended.returncode != 0:
            sys.exit(f"{argv}: {ended.stdout}{ended.stderr}")


def _shortened(value: Any) -> Any:
    """Cuts long texts: those are the agent's own instructions, and are nobody's here."""
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if isinstance(value, str) and len(value) > MAX_CHARS:
        return f"{value[:SHOWN_CHARS]} (cut)"
    return value


def record(name: str) -> None:
    program = PROGRAMS[name]
    top = Path(tempfile.gettempdir()) / "casfs-recorded"  # transcripts are named by it
    shutil.rmtree(top, ignore_errors=True)
    try:
        with agent_model.served() as model:
            recording = _Recording(name, program, top, model.url)
            recording.ask(
                "Make two files",
                ("write", "a.txt", "hello"),
                ("run", "sed -i s/hello/bye/ a.txt; echo new > b.txt"),
                ("run", "exit 3"),
                ("say", "All done."),
            )
            waits: list[tuple[Any, ...]] = []
            if program.agent == "codex":  # by default it has no subagents, and goes on beside them
                with (recording.home / ".codex/config.toml").open("a") as file:
                    file.write("\n[features]\nmulti_agent_v2 = true\n")
                waits.append(("tool", "wait_agent", {"timeout_ms": 20_000}))
            parts = [("run", "echo part >> b.txt"), ("say", "The part is done.")]
            delegated = [] if program.agent == "gemini" else [("delegate", "Do a part", parts)]
            recording.ask(
                "Go on",
                ("run", "rm a.txt"),
                *delegated,
                *waits,
                ("say", "Gone."),
                session=recording.session(),
            )
            recording.keep(FOLDER / program.agent)
    finally:
        shutil.rmtree(top)


if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        record(name)
