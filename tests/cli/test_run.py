"""`casfs run`: from the start of a thread to its result, on a terminal and without one."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from casfs.cli.run import MAX_PATHS
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import lookup, threads
from engine.workflow import registry as workflows
from engine.workflow import shipped
from tests.support.acp import Script
from tests.support.engine import DEADLINE, STATUS, Cli, rule, workflow

COMMAND = [sys.executable, "-m", "casfs"]
WRITES = "#!/bin/sh\nprintf 'working\\033[2J\\n'; echo two >>notes; echo Done.\n"
ANY = {"name": "any", "default": {}}
ASKS = '#!/bin/sh\n[ "$CASFS_ANSWER" ] || { echo Which?; exit 75; }\necho "$CASFS_ANSWER" >notes\n'


@pytest.fixture
def project(cli: Cli, opened: Store, tmp_path: Path) -> Iterator[Path]:
    """A directory with agents, as the working directory; the daemon that a test has started ends
    with it."""
    shipped.install(opened)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes").write_text("one\n")
    for name, text in (("writes", WRITES), ("asks", ASKS)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    yield folder
    with suppress(Exception):
        daemon_socket.stop(cli.root)


class Terminal:
    """`casfs ARGUMENTS…` on a terminal of its own."""

    def __init__(self, cli: Cli, folder: Path, *arguments: str, **env: str) -> None:
        ours, theirs = pty.openpty()
        argv = [*COMMAND, "--store", str(cli.root), *arguments]
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        env = {**inherited, "TERM": "xterm", "PAGER": "cat", **env}
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *argv],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=env, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._fd = ours
        self.shown = ""
        self._seen = 0

    def until(self, text: str, answer: str = "") -> str:
        """Reads until `text` is shown, then types the answer."""
        while text not in self.shown[self._seen :]:
            assert self._read(), self.shown
        self._seen = self.shown.index(text, self._seen) + len(text)
        os.write(self._fd, answer.encode())
        return self.shown

    def interrupt(self) -> None:
        os.write(self._fd, b"\x03")

    def end(self) -> int:
        """Reads to the end; returns the exit code."""
        while self._read():
            pass
        os.close(self._fd)
        return self.process.wait(DEADLINE)

    def _read(self) -> bool:
        assert select.select([self._fd], [], [], DEADLINE)[0], self.shown
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # the last writer has closed
            return False
        self.shown += data.decode().replace("\r\n", "\n")
        return bool(data)


# takes the terminal as a shell would: Ctrl-C there is for the program, which may be interrupted
ON_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def spawned(cli: Cli, folder: Path, *arguments: str, **more: object) -> tuple[int, str, str]:
    """Runs it without a terminal; returns exit code, stdout and stderr."""
    argv = [*COMMAND, "--store", str(cli.root), "run", *arguments]
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=DEADLINE,
        **{"stdin": subprocess.DEVNULL, **more},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def newest(store: Store) -> threads.Thread:
    return threads.list_threads(store)[-1]


def test_an_agent_runs_and_its_changes_are_applied(cli: Cli, project: Path, opened: Store) -> None:
    assert not daemon_socket.runs(cli.root)
    screen = Terminal(cli, project, "run", "command:./writes", "Add two")
    screen.until(f"Apply to {project}? [y/N] ")
    assert (project / "notes").read_text() == "one\n"
    screen.until("", "y\n")
    assert screen.end() == 0
    said = screen.shown
    assert "daemon started; `casfs daemon stop` ends it" in said
    assert "working\\x1b[2J\n" in said
    assert "Done.\n" in said
    assert "step 1 agent: done, " in said
    assert "succeeded" in said
    assert "1 path changed, +1 -0 lines" in said
    assert "+two" in said
    assert "`casfs undo` takes it back" in said
    assert (project / "notes").read_text() == "one\ntwo\n"
    assert daemon_socket.runs(cli.root)
    assert newest(opened).fields["workflow"] == "single"


@pytest.mark.parametrize("answer", ["\n", "n\n", "\x04"])
def test_nothing_is_applied_without_a_yes(
    cli: Cli, project: Path, opened: Store, answer: str
) -> None:
    screen = Terminal(cli, project, "run", "command:./writes", "Add two")
    screen.until("[y/N] ", answer)
    assert screen.end() == 0
    assert f"`casfs thread apply {newest(opened).id} {project}` does it" in screen.shown
    assert (project / "notes").read_text() == "one\n"


def test_without_a_terminal_there_are_plain_lines(
    cli: Cli, project: Path, opened: Store, tmp_path: Path
) -> None:
    code, out, err = spawned(
        cli, tmp_path, "command:./writes", "-", "project", input="Add", stdin=None
    )
    assert code == 0, err
    assert "\x1b" not in out + err
    assert "\r" not in out
    assert "working\\x1b[2J\nDone.\nstep 1 agent: done, " in out
    assert f"casfs: thread {newest(opened).id}\n" in err
    assert (project / "notes").read_text() == "one\n"
    code, out, _ = spawned(cli, project, "command:./writes", "Add", "--apply")
    assert code == 0
    assert "M notes\n`casfs undo` takes it back" in out
    assert (project / "notes").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(("count", "is_cut"), [(MAX_PATHS, False), (MAX_PATHS + 1, True)])
def test_many_changes_are_cut_and_it_says_so(
    cli: Cli, project: Path, count: int, is_cut: bool
) -> None:
    makes = f"command:sh -c 'seq -f new-%03g {count} | xargs touch'"
    code, out, err = spawned(cli, project, makes, "x", "--no-apply")
    assert code == 0, err
    assert ("shows all" in out) is is_cut
    assert f"new-{MAX_PATHS}" in out
    assert f"new-{MAX_PATHS + 1}" not in out


def test_conflicts_of_the_apply_are_exit_code_1(cli: Cli, project: Path, opened: Store) -> None:
    late = f"sh -c 'echo theirs >notes; echo mine >{project}/notes'"
    code, out, _ = spawned(cli, project, f"command:{late}", "x", "--apply")
    assert code == 1
    assert "conflict: notes" in out


def test_json_is_one_object_for_each_event(cli: Cli, project: Path) -> None:
    code, out, _ = spawned(cli, project, "command:./writes", "Add", "--json", "--apply")
    assert code == 0
    *_, step, over, applied = map(json.loads, out.splitlines())
    assert (step["role"], step["meta"]) == ("agent", {"status": "done"})
    assert (over["event"], over["status"], over["returnCode"]) == ("over", "succeeded", 0)
    assert applied["changes"] == [{"letter": "M", "path": "notes"}]


def test_a_person_answers_on_the_terminal(cli: Cli, project: Path, opened: Store) -> None:
    rules = [rule("__start__", "critic"), rule("critic", "coder"), rule("coder", "__end__")]
    workflows.add(opened, workflow(rules, critic=STATUS, coder=ANY))
    agents = ["--agent", "critic=human:Shall it be?", "--agent", "coder=command:./asks"]
    screen = Terminal(cli, project, "run", "sample", "Ask", *agents)
    screen.until("? critic: Shall it be?\n")
    screen.until("done or failed> ", "perhaps\n")
    screen.until("casfs: warning: not accepted: ")
    screen.until("done or failed> ", "done\n")
    screen.until("step 1 critic: done, ")
    screen.until("? coder: Which?\nWhich?\nanswer> ", "blue\n")
    screen.until("[y/N] ", "n\n")
    assert screen.end() == 0
    first, _ = threads.last_steps(opened, newest(opened), None)
    assert first.payload["meta"] == {"status": "done"}


def test_an_answer_is_a_text_for_a_program(cli: Cli, project: Path) -> None:
    screen = Terminal(cli, project, "run", "command:./asks", "Ask", "--apply")
    screen.until("answer> ", "blue\n")
    assert screen.end() == 0
    assert (project / "notes").read_text() == "blue\n"


def test_a_question_without_an_answer_stays_open(cli: Cli, project: Path, opened: Store) -> None:
    screen = Terminal(cli, project, "run", "command:./asks", "Ask")
    screen.until("answer> ", "\x04")
    assert screen.end() == 7
    id = newest(opened).id
    assert f"answer with `casfs thread resume {id} --input TEXT`" in screen.shown
    code, _, err = spawned(cli, project, "--continue")
    assert code == 7
    assert f"`casfs thread resume {id} --input TEXT`" in err
    screen = Terminal(cli, project, "run", "--continue", id, "--no-apply")
    screen.until("answer> ", "red\n")
    assert screen.end() == 0
    assert "+red" in screen.shown


def test_a_called_thread_asks_by_its_caller(cli: Cli, project: Path, opened: Store) -> None:
    called = {"workflow": "single", "agents": {"agent": {"name": "human", "config": {}}}}
    agent = f"workflow:{json.dumps(called)}"
    code, _, err = spawned(cli, project, agent, "Ask")
    id = newest(opened).fields["parent"]
    way = f"answer with `casfs thread resume {id} --input TEXT`"
    assert (code, way in err) == (7, True)
    code, _, err = spawned(cli, project, "--continue")
    assert (code, way in err) == (7, True)
    screen = Terminal(cli, project, "run", "--continue", "@last")
    screen.until("answer> ", '{"status": "done"}\n')
    assert screen.end() == 0
    assert threads.get(opened, id).status == threads.ENDED


def test_ctrl_c_leaves_it_running_and_continue_comes_back(
    cli: Cli, project: Path, opened: Store, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    waits = f"sh -c 'echo begun; until [ -e {go} ]; do sleep 0.02; done; echo two >>notes'"
    screen = Terminal(cli, project, "run", f"command:{waits}", "Wait")
    screen.until("begun\n")
    screen.interrupt()
    assert screen.end() == 130
    found = newest(opened)
    assert f"`casfs run --continue {found.id} {project}` follows it" in screen.shown
    assert found.status == "running"
    again = Terminal(cli, tmp_path, "run", "--continue", found.id, str(project), "--apply")
    again.until("begun\n")
    again.until("step 1 agent: ")  # the time of the step, on the last line
    go.touch()
    assert again.end() == 0
    assert (project / "notes").read_text() == "one\ntwo\n"
    assert threads.get(opened, found.id).status == "ended"


def test_a_failed_agent_says_why_and_what_to_do(cli: Cli, project: Path, opened: Store) -> None:
    code, out, err = spawned(
        cli, project, "command:sh -c 'echo half; echo no disk >&2; exit 3'", "x"
    )
    assert code == 7
    id = newest(opened).id
    assert "stderr:\nno disk\n" in out
    assert "agent: sh exited with 3: no disk; see `casfs thread log" in err
    assert f"`casfs thread resume {id}` tries again" in err
    code, out, _ = spawned(cli, project, "--continue", id, "--agent", "agent=command:echo Done")
    assert code == 0
    assert "failed attempts: 1" in out


def test_an_agent_that_reports_a_failure(cli: Cli, project: Path) -> None:
    says = 'printf \'```json\n{"status": "failed", "summary": "no way"}\n```\n\''
    (project / "gives-up").write_text(f"#!/bin/sh\n{says}\necho x >>notes")
    (project / "gives-up").chmod(0o755)
    code, out, err = spawned(cli, project, "command:./gives-up", "x", "--apply")
    assert code == 1
    assert "step 1 agent: failed, " in out
    assert "has failed: no rule matches after agent" in err
    assert (project / "notes").read_text() == "one\n"


def test_what_is_wrong_is_said_before_anything_starts(cli: Cli, project: Path) -> None:
    def refused(*arguments: str, code: int) -> str:
        found, out, err = spawned(cli, project, *arguments)
        assert (found, out, err.count("\n")) == (code, "", 1)
        return err

    assert "did you mean hello?" in refused("helo", "x", code=3)
    assert "did you mean acp:qwen?" in refused("qwen", "x", code=3)
    assert "no workflow 'zzz', and no agent or profile 'zzz'" in refused("zzz", "x", code=3)
    assert "no workflow 'Fix it'" in refused("Fix it", "x", code=3)
    assert f"no directory {project}/none" in refused("hello", "x", "none", code=3)
    assert "and a task" in refused("hello", code=2)
    assert "--agent is for the roles" in refused("command:x", "x", "--agent", "human", code=2)
    assert "only DIR" in refused("--continue", "@last", ".", "task", code=2)
    for option in ("--max-steps", "--agents"):
        again = refused("--continue", "@last", ".", option, "5", code=2)
        assert f"{option} is for a new thread, not for --continue" in again
    assert not daemon_socket.runs(cli.root)


def test_a_workflow_precedes_an_agent_of_its_name(cli: Cli, project: Path, opened: Store) -> None:
    rules = [rule("__start__", "a"), rule("a", "__end__")]
    workflows.add(opened, workflow(rules, "human", a=ANY))
    code, out, _ = spawned(cli, project, "human", "x", "--agent", "command:echo mine")
    assert code == 0
    assert "mine\nstep 1 a: finished" in out


def test_an_agent_that_speaks_acp_asks_for_permission(
    cli: Cli, project: Path, tmp_path: Path
) -> None:
    tool = {"toolCallId": "1", "title": "rm \x1b[2Jx", "kind": "execute"}
    asks = [{"permission": {"tool": tool}}, {"say": "All gone."}]
    script = Script(tmp_path, [{"say": "Let me see."}, *asks], load=True, again=[asks])
    screen = Terminal(cli, project, "run", f"acp:{json.dumps(script.config())}", "Tidy up")
    screen.until("Let me see.")
    screen.until("The agent asks for permission: rm \\x1b[2Jx\n")
    screen.until("r a reason> ", "y")
    screen.until("All gone.")
    screen.until("step 1 agent: done, ")
    assert screen.end() == 0
    assert screen.shown.count("All gone.") == screen.shown.count("Let me see.") == 1


def test_a_question_that_is_answered_elsewhere(
    cli: Cli, project: Path, tmp_path: Path, opened: Store
) -> None:
    tool = {"toolCallId": "1", "title": "rm x", "kind": "execute"}
    script = Script(tmp_path, [{"permission": {"tool": tool}}, {"say": "All gone."}])
    screen = Terminal(cli, project, "run", f"acp:{json.dumps(script.config())}", "Tidy up")
    screen.until("r a reason> ")
    thread = lookup.find(opened, "@last")
    daemon_socket.request(cli.root, "resume", id=thread.id, input="allow")
    screen.until("answered elsewhere")
    screen.until("All gone.")
    assert screen.end() == 0
    assert screen.shown.count("All gone.") == screen.shown.count("step 1 agent: done, ") == 1


def test_two_that_start_at_the_same_instant_share_a_daemon(cli: Cli, project: Path) -> None:
    both = [Terminal(cli, project, "run", "command:./writes", "x", "--no-apply") for _ in range(2)]
    assert [one.end() for one in both] == [0, 0], [one.shown for one in both]
    assert sum(one.shown.count("daemon started") for one in both) == 1
