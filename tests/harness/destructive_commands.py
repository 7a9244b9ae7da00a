"""The real claude runs commands that destroy a repository or a directory, and is let end, or is
interrupted, or killed; `casfs rewind --last` brings all of it back.

    python -m tests.harness.destructive_commands [--commands 20]

Each command is run in a new project, with the hooks in its own settings and in those of the user,
and is ended in three ways: by itself, by the signal of Ctrl-C, by kill -9 of all of the agent's
processes. Then the files are as they were, and git sees the repository as it was.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from casfs.attach import spool
from casfs.system import daemon_socket
from tests.agents_real.test_attached import CLAUDE
from tests.support import agent_model, real_agents
from tests.support.agent_model import Model, script
from tests.support.attached_agent import contents
from tests.support.repositories import DESTRUCTIVE, make_repository, seen_by_git

ENDINGS = ("ended", "interrupted", "killed")
SETTINGS = ("project", "user")
DEADLINE_S = 60.0
MARK = "command-is-done"  # a file beside the project


class Wrong(Exception):
    """Something did not come back."""


@dataclass
class Project:
    """A project with claude attached to it, in a home of its own."""

    folder: Path
    model: Model
    is_of_user: bool

    def __post_init__(self) -> None:
        home = self.folder / "home"
        self.directory = self.folder / "project"
        home.mkdir(parents=True)
        self.directory.mkdir()
        (self.directory / "a").write_text("1\n2\n3\n")
        (self.directory / "b").write_text("b\n")
        programs = f"{real_agents.install('claude-code')}{os.pathsep}{Path(sys.executable).parent}"
        self.env = {**os.environ, **real_agents.set_up("claude-code", home, self.model.url)}
        self.env |= {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PWD": str(self.directory),
        }
        self.env.pop("CASFS_STORE", None)
        self.root = home / ".local/share/casfs"
        make_repository(self.directory)
        self.casfs("attach", "claude", *["--user"] * self.is_of_user)

    def casfs(self, *arguments: str) -> str:
        argv = [sys.executable, "-m", "casfs", *arguments]
        ended = subprocess.run(argv, cwd=self.directory, env=self.env, capture_output=True)
        if ended.returncode != 0:
            raise Wrong(f"casfs {' '.join(arguments)}: {ended.stdout!r} {ended.stderr!r}")
        return ended.stdout.decode()

    def run(self, command: str, ending: str) -> None:
        mark = self.folder / MARK
        stays = "" if ending == "ended" else "; sleep 60"
        line = f"({command}) >/dev/null 2>&1; touch {mark}{stays}"
        agent = subprocess.Popen(
            [*CLAUDE, script(("run", line), ("say", "Done."))],
            cwd=self.directory,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not mark.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            if ending == "interrupted":
                agent.send_signal(signal.SIGINT)
            elif ending == "killed":
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait(timeout=DEADLINE_S)
        finally:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()
        while spool.names(self.root):
            time.sleep(0.05)

    def look(self) -> tuple[object, ...]:
        files = contents(self.directory)
        return seen_by_git(self.directory), {
            name: entry for name, entry in files.items() if name.split("/")[0] != ".git"
        }


def play(folder: Path, model: Model, command: str, settings: str, ending: str) -> None:
    """Raises Wrong."""
    project = Project(folder, model, settings == "user")
    try:
        before = project.look()
        project.run(command, ending)
        with suppress(subprocess.SubprocessError):  # there may be no repository any more
            if project.look() == before:  # a rebase without a terminal
                return
        project.casfs("rewind", "--last", "--yes")
        if project.look() != before:
            raise Wrong(f"{project.look()} is not {before}")
    finally:
        daemon_socket.stop(project.root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=len(DESTRUCTIVE))
    options = parser.parse_args()
    wrong = 0
    commands = DESTRUCTIVE[: options.commands]
    combinations = list(itertools.product(commands, SETTINGS, ENDINGS))
    with agent_model.served() as model:
        for command, settings, ending in combinations:
            folder = Path(tempfile.mkdtemp(prefix="casfs-destructive-"))
            try:
                play(folder / "it", model, command, settings, ending)
            except (Wrong, subprocess.SubprocessError) as error:
                wrong += 1
                print(f"{command} ({settings}, {ending}): {error}", flush=True)
            else:
                shutil.rmtree(folder)
    print(f"{len(combinations)} combinations, {wrong} that did not come back")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
