"""What an attempt has started ends with it, within its limits: real programs, in a process that
starts them as the daemon does, as root and as a plain user, with control groups and without."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import Invalid
from engine.processes import containment, limits
from tests.mount.test_containers import environment, interpreter
from tests.support import programs
from tests.support.engine import alive, pids

AS_NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
WITHOUT_GROUPS = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup; exec "$@"', "-"]
USERS = {"daemon": [], "without groups": WITHOUT_GROUPS, "plain user": AS_NOBODY}
DRIVER = """
import functools, json, os, sys
import trio
from casfs.errors import CasfsError
from engine.processes import containment, subprocesses

async def nothing(pid):
    pass

async def main(token, limits, timeout, *argv):
    try:
        confinement = containment.begin(token, json.loads(limits))
    except CasfsError as error:
        return {"refused": str(error)}
    env = {"PATH": os.environ["PATH"], "CASFS_RUN": token, **json.loads(os.environ["MORE"])}
    keep = {"cwd": None, "env": env, "timeout": float(timeout), "started": nothing}
    try:
        done = await subprocesses.run(argv, b"given", **keep)
    except subprocesses.TimedOut as error:
        done = error.result
    await confinement.close()
    texts = {"out": done.stdout.decode(), "err": done.stderr.decode()}
    found = {"code": done.exit_code, **texts, "reason": confinement.reason()}
    found |= confinement.record()
    return found

print(json.dumps(trio.run(main, *sys.argv[1:])))
"""
ESCAPE = """
import os, resource, sys, time
for number in range(int(sys.argv[2])):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open(sys.argv[1], "a") as file:
                file.write(f"{os.getpid()}\\n")
            kind = resource.RLIMIT_RTTIME
            resource.setrlimit(kind, resource.getrlimit(kind)[1:] * 2)
            null = os.open("/dev/null", os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            os.execve("/bin/sleep", ["sleep", "600"], {})
        os._exit(0)
    os.wait()
while sum(1 for _ in open(sys.argv[1])) < int(sys.argv[2]):
    time.sleep(0.01)
"""
Contained = Callable[..., dict[str, Any]]


@pytest.fixture(params=USERS)
def contained(request: pytest.FixtureRequest) -> Contained:
    """Runs Python code contained; returns what became of it."""
    before = USERS[request.param]
    if before and os.geteuid() != 0:
        pytest.skip("only root may become another user, or mount")
    for program in before[:1]:
        programs.require(program)
    python = interpreter() if before == AS_NOBODY else sys.executable

    def run(
        code: str, *arguments: str, timeout: float = 60, env: Any = None, **limits: Any
    ) -> dict[str, Any]:
        argv = [python, "-c", DRIVER, secrets.token_hex(8), json.dumps(limits), str(timeout)]
        inner = (
            ["sh", "-c", code, "sh"] if code.startswith("#") else [python, "-I", "-S", "-c", code]
        )
        argv = [*before, *argv, *inner, *arguments]
        own = environment(python, MORE=json.dumps(env or {}))
        done = subprocess.run(argv, capture_output=True, text=True, env=own)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


@pytest.fixture
def pid_file(tmp_path: Path) -> Iterator[Path]:
    """A file for anybody, of processes that are ended after the test."""
    file = Path(f"/tmp/casfs-test-{secrets.token_hex(8)}")
    file.touch()
    file.chmod(0o666)
    yield file
    for pid in pids(file):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    file.unlink()


# -- it ends ------------------------------------------------------------------------------


def test_whatever_it_started_ends_with_it(contained: Contained, pid_file: Path) -> None:
    found = contained(ESCAPE, str(pid_file), "30")
    assert (found["code"], found["err"]) == (0, "")
    assert len(pids(pid_file)) == 30
    assert not [pid for pid in pids(pid_file) if alive(pid)]


def test_also_where_it_took_too_long_and_ignores_signals(
    contained: Contained, pid_file: Path
) -> None:
    stubborn = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    wait = "\nprint(len(open(sys.argv[1]).readlines()), flush=True)\ntime.sleep(600)"
    found = contained(stubborn + ESCAPE + wait, str(pid_file), "3", timeout=3)
    assert (found["code"], found["out"]) == (-signal.SIGKILL, "3\n")
    assert not [pid for pid in pids(pid_file) if alive(pid)]


def test_a_program_that_kills_its_parent(contained: Contained, pid_file: Path) -> None:
    """Where a parent of its own stands between it and the daemon."""
    if contained("pass")["method"] == containment.CGROUP:
        pytest.skip("the parent is the daemon; see test_poison.py")
    code = f"{ESCAPE}\nos.kill(os.getppid(), 9)\ntime.sleep(600)"
    found = contained(code, str(pid_file), "0")
    assert found["code"] == -signal.SIGKILL


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a setuid program")
def test_a_process_of_another_user_changes_no_exit_code(
    contained: Contained, pid_file: Path
) -> None:
    """As one by sudo, which an attempt's own user cannot end."""
    program = pid_file.with_suffix(".setuid")
    programs.require("setpriv")
    shutil.copy(programs.path("setpriv"), program)
    program.chmod(0o4755)
    code = f"""
import os, subprocess, sys
null = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.DEVNULL)
argv = [{str(program)!r}, "--reuid", "0", "sleep", "600"]
started = subprocess.Popen(argv, start_new_session=True, **null)
while open(f"/proc/{{started.pid}}/comm").read() != "sleep\\n":
    pass
with open(sys.argv[1], "a") as file:
    file.write(f"{{started.pid}}\\n")
os._exit(3)
"""
    try:
        assert contained(code, str(pid_file))["code"] == 3
    finally:
        program.unlink()


# -- as without ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [{}, {"odd.name": "1"}, {"PWD": "/elsewhere", "SHLVL": "7"}, {"IFS": ":", "OPTIND": "no"}],
)
def test_the_program_has_what_it_was_given(contained: Contained, more: dict[str, str]) -> None:
    code = """
import json, os, signal, sys
fds = [fd for fd in range(100) if os.path.exists(f"/proc/self/fd/{fd}")]
print(json.dumps([sys.argv[1:], dict(os.environ), fds, sys.stdin.read()]))
sys.exit(3)
"""
    found = contained(code, "a b", "", "--x", env=more)
    argv, env, fds, stdin = json.loads(found["out"])
    assert (argv, fds, stdin) == (["a b", "", "--x"], [0, 1, 2], "given")
    assert {"PATH", "CASFS_RUN", *more} == env.keys() - {"LC_CTYPE"}  # which Python adds
    assert env.items() >= more.items()
    assert found["code"] == 3
    ignored, blocked = contained("#\ngrep -E 'Sig(Ign|Blk)' /proc/$$/status | cut -f 2")[
        "out"
    ].split()
    assert int(ignored, 16) & 1 << signal.SIGPIPE - 1 == 0
    assert int(blocked, 16) == 0


def test_a_signal_is_its_exit_code(contained: Contained) -> None:
    assert contained("import os; os.kill(os.getpid(), 11)")["code"] == -signal.SIGSEGV
    assert contained("import time; time.sleep(600)", timeout=1)["code"] == -signal.SIGTERM


# -- limits -------------------------------------------------------------------------------


def test_memory(contained: Contained) -> None:
    code = "import sys\ntry: x = b'x' * (300 << 20)\nexcept MemoryError: sys.exit(9)\n"
    assert contained(code)["code"] == 0
    found = contained(code, memory="64M")
    by = {"cgroup": "cgroup", "parent": "process"}[found["method"]]
    assert found["limits"] == {"memory": {"limit": 64 << 20, "by": by}}
    if by == "cgroup":
        assert (found["code"], found["reached"]) == (-signal.SIGKILL, ["memory"])
        assert found["reason"] == "ended by its memory limit of 64M"
    else:
        assert found["code"] == 9


def test_processes(contained: Contained) -> None:
    code = """
import os, signal, sys
made = []
try:
    while len(made) < 200:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        made.append(pid)
except OSError:
    pass
print(len(made))
"""
    found = contained(code, processes=20)
    if "refused" in found:
        assert found["refused"].startswith("limits.processes cannot be held on this machine")
        loose = contained(code, processes=20, enforce=False)
        assert (loose["out"], loose["limits"]["processes"]["by"]) == ("200\n", None)
        return
    assert 10 <= int(found["out"]) < 20
    if found["method"] == containment.CGROUP:
        assert found["reason"] == "its limit of 20 processes was reached"


def test_more_processes_than_a_kernel_has(contained: Contained) -> None:
    assert contained("pass", processes=1 << 50, enforce=False)["code"] == 0


def test_processor_time(contained: Contained) -> None:
    found = contained("while True: pass", cpuS=1)
    assert found["code"] in (-signal.SIGXCPU, -signal.SIGKILL)
    assert found["reason"] == "ended by its limit of 1 s of processor time"


def test_processor_time_of_all_together(contained: Contained) -> None:
    """No process takes more than a second."""
    code = """
import os, time
while True:
    if os.fork() == 0:
        while time.process_time() < 0.3: pass
        os._exit(0)
    os.wait()
"""
    if contained("pass")["method"] == containment.PARENT:
        pytest.skip("only a control group counts them together")
    assert contained(code, cpuS=1)["reached"] == ["cpuS"]


def test_no_network(contained: Contained) -> None:
    code = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
    print("connected")
except OSError as error:
    print(type(error).__name__)
with socket.create_server(("127.0.0.1", 0)) as own:
    socket.create_connection(own.getsockname(), timeout=10)
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert contained(code, port)["out"] == "connected\n"
        found = contained(code, port, network=False)
    if "refused" in found:
        pytest.skip("no network namespaces here")
    assert (found["out"], found["code"], found["err"]) == ("ConnectionRefusedError\n", 0, "")
    assert found["limits"] == {"network": {"limit": False, "by": "namespace"}}


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"memory": "2g"}, "limits.memory: must be a number of bytes, or a text like 2G"),
        ({"memory": 1}, "limits.memory: must be"),
        ({"memory": True}, "limits.memory: must be"),
        ({"memory": "999999999999T"}, "limits.memory: must be"),
        ({"processes": 0}, "limits.processes: must be a whole number from 1"),
        ({"cpuS": 0.5}, "limits.cpuS: must be a whole number"),
        ({"network": 0}, "limits.network: must be true or false"),
        ({"time": 1}, "limits.time: no such field; there are memory, processes, cpuS"),
        ([], "limits: must be an object"),
    ],
)
def test_a_wrong_limit_is_named(table: Any, fault: str) -> None:
    assert next(limits.faults(table, "limits")).startswith(fault)


def test_a_faulty_default_changes_none() -> None:
    containment.set_defaults({"cpuS": 100})
    try:
        with pytest.raises(Invalid, match=r"limits\.cpuS"):
            containment.set_defaults({"cpuS": 0})
        assert containment.of_run("none").limits.cpu == 100
    finally:
        containment.set_defaults({})


def test_the_role_has_precedence_over_the_agent_and_that_over_the_default() -> None:
    default, agent, role = (
        {"memory": "1G", "network": False},
        {"memory": "2G", "cpuS": 5},
        {"cpuS": 6},
    )
    merged = limits.merge(default, agent, role)
    assert merged == limits.Limits(memory=2 << 30, cpu=6, network=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups")
def test_empty_groups_of_ended_processes_are_removed(tmp_path: Path) -> None:
    groups = {*containment.support().groups.values()}
    assert groups
    with subprocess.Popen(["true"]) as ended:
        pass
    names = [f"casfs-{kind}-{ended.pid}" for kind in ("trial", "probe")]
    left = [group / name for group in groups for name in [*names, f"casfs-process{ended.pid}-x"]]
    living = [group / f"casfs-trial-{os.getppid()}" for group in groups]
    for one in [*left, *living]:
        one.mkdir()
    try:
        code = "import sys; from pathlib import Path; from engine.processes import containment"
        run = f"{code}; containment.prepare(Path(sys.argv[1]))"
        subprocess.run([sys.executable, "-c", run, tmp_path], check=True)
        assert [one for one in left if one.exists()] == []
        assert all(one.exists() for one in living)
    finally:
        for one in [*left, *living]:
            if one.exists():
                one.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups")
def test_what_entered_another_group_ends_with_its_attempt(tmp_path: Path) -> None:
    """Root's program can write its id to `cgroup.procs` of any group."""
    left = """
import os, sys, time
for file in sys.argv[2:]:
    with open(file, "w") as procs:
        procs.write("0")
if os.fork() == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    with open(sys.argv[1], "w") as file:
        file.write(f"{os.getpid()}\\n")
    os.execv("/bin/sleep", ["sleep", "600"])
while not os.path.exists(sys.argv[1]) or not os.path.getsize(sys.argv[1]):
    time.sleep(0.01)
"""
    files = [str(group / "cgroup.procs") for group in {*containment.support().groups.values()}]
    assert files
    argv = [sys.executable, "-c", left, str(tmp_path / "pids"), *files]
    driver = [sys.executable, "-c", DRIVER, secrets.token_hex(8), "{}", "60", *argv]
    done = subprocess.run(driver, env=os.environ | {"MORE": "{}"}, capture_output=True, check=True)
    assert json.loads(done.stdout)["method"] == "cgroup", done
    assert [pid for pid in pids(tmp_path / "pids") if alive(pid)] == []
