"""What a sandboxed command does not get from the daemon: its keys, namespaces, boundless memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from engine.llm import sandbox
from engine.llm.sandbox import Settings
from engine.processes import launcher
from tests.support.agents import RUN
from tests.support.programs import needs

MACHINE = os.uname().machine
SYS_ADD_KEY = {"x86_64": 248, "aarch64": 217, "riscv64": 217}
KEYRINGS = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
SESSION = ctypes.c_long(-3)
def keyctl(operation, *given):
    values = [ctypes.c_long(one) if isinstance(one, int) else one for one in given]
    return libc.syscall(ctypes.c_long({launcher.SYS_KEYCTL.get(MACHINE)}), operation, *values)
def key(text):
    size = ctypes.c_size_t(len(text))
    number = ctypes.c_long({SYS_ADD_KEY.get(MACHINE)})
    return libc.syscall(number, b"user", b"casfs-test", text, size, SESSION)
"""
OUTSIDE = f"""{KEYRINGS}
if keyctl(1, 0) < 0:
    sys.exit(77)
print(key(b"secret"), flush=True)
os.execv(sys.argv[1], sys.argv[1:])
"""
INSIDE = f"""{KEYRINGS}
number = keyctl(10, SESSION, b"user", b"casfs-test", 0)
found = ctypes.create_string_buffer(6)
keyctl(11, number, found, 6)
print("found", number > 0, found.value)
"""
PYTHON = os.path.realpath(sys.executable)
SETTINGS = Settings(paths=[sys.base_prefix])
AS_NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


async def sandboxed(script: str, workspace: Path) -> list[str]:
    env = {"PATH": os.environ["PATH"]}
    return (await sandbox.sandboxed_command(script, workspace, RUN, env, SETTINGS))[0]


@needs("bwrap")
@pytest.mark.skipif(MACHINE not in SYS_ADD_KEY, reason="keyctl has another number here")
async def test_no_key_of_the_session_is_in_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "inside.py").write_text(INSIDE)
    argv = await sandboxed(f"exec {PYTHON} inside.py", tmp_path)
    outside = [sys.executable, "-P", "-c", OUTSIDE]
    for command, found in (([PYTHON, str(tmp_path / "inside.py")], True), (argv, False)):
        done = subprocess.run([*outside, *command], capture_output=True, text=True)
        if done.returncode == 77:
            pytest.skip("no keyrings here")
        assert done.stdout.splitlines()[1:] == [f"found {found} {b'secret' if found else b''}"]


@needs("bwrap")
@pytest.mark.parametrize("before", [[], AS_NOBODY])
async def test_no_user_namespaces_in_the_sandbox(tmp_path: Path, before: list[str]) -> None:
    if before and os.geteuid() != 0:
        pytest.skip("only root may become another user")
    options = ["--ro-bind", "/", "/", *sandbox._isolation(), *sandbox.NO_USERNS]
    if before:  # as the daemon of a user would
        options = [one for one in options if one not in ("--cap-drop", "ALL")]
    bwrap = next(one for one in await sandboxed("true", tmp_path) if one.endswith("bwrap"))
    done = subprocess.run([*before, bwrap, *options, "true"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"this bubblewrap cannot: {done.stderr}")
    argv = [*before, bwrap, *options, "unshare", "--user", "--map-root-user", "true"]
    assert subprocess.run(argv, capture_output=True).returncode != 0
    own = await sandboxed("unshare --user --map-root-user true", tmp_path)
    assert subprocess.run(own, capture_output=True).returncode != 0


@needs("bwrap")
async def test_memory_and_processes_are_limited(tmp_path: Path) -> None:
    script = "import resource as r; print(*(r.getrlimit(one)[1] for one in {}))"
    kinds = (resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_CORE)
    argv = await sandboxed(f"exec {PYTHON} -c '{script.format(kinds)}'", tmp_path)
    done = subprocess.run(argv, capture_output=True, text=True)
    memory, processes, core = map(int, done.stdout.split())
    assert 0 < memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    assert 0 < processes < 1 << 20
    assert core == 0
