"""Child processes, with real ones: what they say, how they end, that none is left."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.errors import Failed
from casfs.store.store import Store
from engine.processes import subprocesses
from engine.processes.subprocesses import (
    RUN_VARIABLE,
    OutputTooLarge,
    ProcessResult,
    TimedOut,
    end_orphans,
    run,
    start_time,
)
from tests.support.engine import alive, kill, pids

FOREVER = "sleep 600"
DAEMONIZE = (  # a grandchild that leaves the group, then the child ends
    "import subprocess, sys\n"
    "p = subprocess.Popen(['sleep', '600'], start_new_session=True,"
    " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
    "print(p.pid, flush=True)\n"
    "p.returncode = 0\n"
)


async def nothing(pid: int) -> None:
    pass


async def sh(script: str, stdin: bytes = b"", **more: Any) -> ProcessResult:
    settings: dict[str, Any] = {"cwd": None, "timeout": 60.0, "started": nothing, **more}
    env = {"PATH": os.environ["PATH"]}
    return await run(["sh", "-c", script], stdin, env=env, **settings)


@pytest.fixture
def pid_file(tmp_path: Path) -> Iterator[Path]:
    """Where a script writes the ids of its processes; they are ended after the test."""
    file = tmp_path / "pids"
    yield file
    for pid in pids(file):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def until_written(file: Path, count: int) -> list[int]:
    while len(found := pids(file)) < count:
        await trio.sleep(0.01)
    return found


async def until_gone(*pids: int) -> None:
    while any(alive(pid) for pid in pids):  # a signal takes a moment; the test has a limit
        await trio.sleep(0.01)


async def test_output_and_exit_code() -> None:
    outcome = await sh("echo out; echo err >&2; exit 3")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, b"out\n", b"err\n")
    assert outcome.duration_ms >= 0


async def test_an_end_by_signal_is_negative() -> None:
    assert (await sh("kill -9 $$")).exit_code == -9


async def test_stdin_is_fed_while_output_is_read() -> None:
    data = os.urandom(3 << 20)
    assert (await sh("cat; echo done >&2", data)).stdout == data


async def test_a_command_may_ignore_its_stdin() -> None:
    assert (await sh("echo hi", b"x" * (1 << 20))).stdout == b"hi\n"


async def test_directory_environment_and_notice(tmp_path: Path) -> None:
    started_pids = []

    async def started(pid: int) -> None:
        started_pids.append(pid)

    outcome = await sh('pwd; echo "$$ ${HOME-unset}"', cwd=tmp_path, started=started)
    assert outcome.stdout.decode().split() == [str(tmp_path), str(started_pids[0]), "unset"]


async def test_what_cannot_be_started() -> None:
    with pytest.raises(Failed, match="cannot run /no/such: No such file"):
        await run(["/no/such"], b"", cwd=None, env={}, timeout=1, started=nothing)


async def test_a_timeout_ends_the_whole_group(pid_file: Path) -> None:
    script = f"echo $$ >>{pid_file}; (sh -c 'echo $$ >>{pid_file}; {FOREVER}' & wait) & wait"
    with pytest.raises(TimedOut, match=r"sh took longer than 1\.5 s"):
        await sh(script, timeout=1.5)
    found = pids(pid_file)
    assert len(found) == 2
    await until_gone(*found)


async def test_who_ignores_sigterm_is_killed(
    pid_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocesses, "TERM_GRACE_S", 0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sh, f"trap '' TERM; echo $$ >>{pid_file}; while :; do sleep 1; done")
        (pid,) = await until_written(pid_file, 1)
        nursery.cancel_scope.cancel()
    await until_gone(pid)


async def test_who_obeys_sigterm_can_clean_up(pid_file: Path, tmp_path: Path) -> None:
    script = f"trap 'echo bye >{tmp_path}/bye; exit' TERM; echo $$ >>{pid_file}; sleep 600 & wait"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sh, script)
        await until_written(pid_file, 1)
        nursery.cancel_scope.cancel()
    assert (tmp_path / "bye").read_text() == "bye\n"


async def test_cancelling_ends_the_group(pid_file: Path) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sh, f"{FOREVER} & echo $! >>{pid_file}; echo $$ >>{pid_file}; wait")
        found = await until_written(pid_file, 2)
        assert all(alive(pid) for pid in found)
        nursery.cancel_scope.cancel()
    await until_gone(*found)


async def test_a_child_left_in_the_group_neither_stays_nor_holds_up(pid_file: Path) -> None:
    outcome = await sh(f"{FOREVER} & echo $! >>{pid_file}; echo said")
    assert outcome.stdout == b"said\n"
    await until_gone(*pids(pid_file))


@pytest.mark.parametrize("stream", ["1", "2"])
async def test_who_left_the_group_and_holds_a_pipe_neither_stays_nor_holds_up(
    pid_file: Path, stream: str
) -> None:
    """The child waits until the other is in a session of its own: then only the token is left."""
    left = f"exec {FOREVER} >&{stream}"
    script = (
        f"setsid sh -c 'echo $$ >>{pid_file}; {left}' & "
        f"until [ -s {pid_file} ]; do sleep 0.01; done; echo said"
    )
    env = {"PATH": os.environ["PATH"], RUN_VARIABLE: secrets.token_hex(8)}
    argv = ["sh", "-c", script]
    outcome = await run(argv, b"", cwd=None, env=env, timeout=45.0, started=nothing)
    assert (outcome.exit_code, outcome.stdout) == (0, b"said\n")
    assert not alive(*pids(pid_file))


async def test_without_a_token_who_left_the_group_does_not_hold_up(pid_file: Path) -> None:
    left = f"setsid sh -c 'echo $$ >>{pid_file}; exec {FOREVER}' & "
    outcome = await sh(left + f"until [ -s {pid_file} ]; do sleep 0.01; done; echo said")
    assert outcome.stdout == b"said\n"
    assert alive(*pids(pid_file))


@pytest.mark.parametrize("stream", ["1", "2"])
async def test_output_is_limited(
    stream: str, pid_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocesses, "MAX_OUTPUT_BYTES", 1 << 20)
    with pytest.raises(OutputTooLarge, match="sh wrote more than 1 MiB"):
        await sh(f"echo $$ >>{pid_file}; yes >&{stream}")
    await until_gone(*pids(pid_file))


async def test_output_may_reach_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocesses, "MAX_OUTPUT_BYTES", 1 << 16)
    assert len((await sh("head -c 65536 /dev/zero")).stdout) == 1 << 16


async def test_who_starts_it_may_fail_and_nothing_is_left() -> None:
    started_pids = []

    async def started(pid: int) -> None:
        started_pids.append(pid)
        raise Failed("no")

    with pytest.raises(Failed, match="no"):
        await sh(FOREVER, started=started)
    await until_gone(*started_pids)


async def test_what_belongs_to_the_store_outlives_the_run_that_started_it(
    disk_store: Store, runtime_dir: Path
) -> None:
    argv = [sys.executable, "-m", "casfs", "--store", str(disk_store.root), "daemon"]
    env = {**os.environ, RUN_VARIABLE: secrets.token_hex(8)}
    outcome = await run(argv, b"", cwd=None, env=env, timeout=60.0, started=nothing)
    pid = int(outcome.stdout.split()[0])
    try:
        assert alive(pid)
    finally:
        kill(pid)


async def test_who_left_with_an_empty_environment_does_not_stay(pid_file: Path) -> None:
    """As `sudo`, `su -` and `env -i` do."""
    left = f"echo $$ >>{pid_file}; exec {FOREVER}"
    script = (
        f"(env -i setsid sh -c '{left}' >/dev/null 2>&1 &); "
        f"until [ -s {pid_file} ]; do sleep 0.01; done"
    )
    env = {"PATH": os.environ["PATH"], RUN_VARIABLE: secrets.token_hex(8)}
    await run(["sh", "-c", script], b"", cwd=None, env=env, timeout=45.0, started=nothing)
    assert not alive(*pids(pid_file))


async def test_a_chain_of_forks_ends_with_its_step(pid_file: Path) -> None:
    """Each of them lives for a moment only, with nothing of the environment."""
    chain = (
        "import os, sys, time\n"
        "end = time.monotonic() + 30\n"
        "while time.monotonic() < end:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        "    time.sleep(0.001)\n"
        f"open({str(pid_file)!r}, 'w').write('outlived')\n"
    )
    env = {"PATH": os.environ["PATH"], RUN_VARIABLE: secrets.token_hex(8)}
    argv = ["env", "-i", sys.executable, "-I", "-c", chain]
    await run(argv, b"", cwd=None, env=env, timeout=45.0, started=nothing)
    wanted = str(pid_file).encode()
    for _ in range(20):  # each scan may miss one of them
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # no process, or gone
                assert wanted not in (entry / "cmdline").read_bytes()


# -- what a killed daemon left ------------------------------------------------------------


def test_orphans_are_found_by_their_token_wherever_they_went(pid_file: Path) -> None:
    token = secrets.token_hex(8)
    argv = [sys.executable, "-c", DAEMONIZE]
    done = subprocess.run(
        argv, env={**os.environ, RUN_VARIABLE: token}, capture_output=True, check=True
    )
    grandchild = int(done.stdout)
    pid_file.write_text(f"{grandchild}\n")
    assert os.getpgid(grandchild) == grandchild
    assert end_orphans(token + "0", None, None) == 0
    assert alive(grandchild)
    assert end_orphans(token, None, None) == 1
    assert not alive(grandchild)


def test_whoever_looks_for_orphans_is_none() -> None:
    token = secrets.token_hex(8)
    code = (
        "from engine.processes.subprocesses import end_orphans\n"
        f"print(end_orphans('{token}', None, None))"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env={**os.environ, RUN_VARIABLE: token}, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"0\n")


def test_start_time_of_nobody() -> None:
    assert start_time(2**22 + 1) is None


DIES_WITH_PARENT = "import ctypes, time; ctypes.CDLL(None).prctl(1, 9); time.sleep(1); print('end')"


async def test_it_is_started_by_a_thread_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """PR_SET_PDEATHSIG, as of `bwrap --die-with-parent`, is about the thread that forked; trio's
    worker threads end after 10 s without work."""
    monkeypatch.setattr("trio._core._thread_cache.IDLE_TIMEOUT", 0.05)
    env = {"PATH": os.environ["PATH"]}
    argv = [sys.executable, "-c", DIES_WITH_PARENT]
    done = await run(argv, b"", cwd=None, env=env, timeout=60, started=nothing)
    assert (done.exit_code, done.stdout) == (0, b"end\n")
