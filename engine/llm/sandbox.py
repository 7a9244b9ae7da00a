"""The bubblewrap sandbox for a model's commands: workspace writable, system read-only.

Visible read-only are programs and libraries, the part of /etc that they need, and the `paths` of
the config; /tmp, /proc and /dev are private. Not visible are homes, the store beside the
workspace and other processes; the network only where the config allows it. The environment is
a new one, without keys of the daemon. All processes end with bwrap.

Commands of a daemon that runs as root are root's for the kernel too. So they get no capabilities,
with which they could mount the system writable, and the host's entries in /proc are read-only.

Where bubblewrap is missing, or the kernel forbids it namespaces, a command is refused, unless the
config has `allowShell`: then it runs with all rights of the daemon's user (but not its
environment).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from casfs.errors import Refused
from engine.processes import RUN_VARIABLE

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store")
ETC = (
    "alternatives ca-certificates group gitconfig hosts ld.so.cache ld.so.conf "
    "ld.so.conf.d localtime nsswitch.conf os-release passwd pki protocols python3 resolv.conf "
    "services ssl timezone"
).split()
HOST_PROC_ENTRIES = (
    "sys",
    "sysrq-trigger",
    "irq",
    "bus",
    "fs",
)  # in /proc; files of it are root's to write
PASSED_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TERM",
)  # from the daemon's environment
PROBE_TIMEOUT_S = 10.0
_PROBED: set[str] = set()  # by this process's trials


@dataclass(frozen=True)
class Settings:
    """`paths`: further readable directories; `allow_shell`: run without bubblewrap where it is
    missing; `timeout`: seconds for a command."""

    paths: Sequence[str] = ()
    network: bool = False
    allow_shell: bool = False
    timeout: float = 120.0


async def sandboxed_command(
    command: str, workspace: Path, run: str, env: Mapping[str, str], settings: Settings
) -> tuple[list[str], dict[str, str]]:
    """Returns argv and environment to run a shell command in the sandbox. Raises Refused."""
    bwrap = shutil.which("bwrap", path=env.get("PATH", os.defpath))
    clean = _environment(env, workspace, run)
    if bwrap is not None and await _works(bwrap):
        return [*_argv(bwrap, workspace, settings), "sh", "-c", command], clean
    if settings.allow_shell:
        return ["sh", "-c", command], clean
    why = "cannot make namespaces here" if bwrap else "is not installed"
    raise Refused(f"no commands: bubblewrap {why}, and the agent's config has no allowShell")


def _environment(env: Mapping[str, str], workspace: Path, run: str) -> dict[str, str]:
    kept = {name: env[name] for name in PASSED_VARIABLES if name in env}
    return {"PATH": os.defpath, **kept, "HOME": "/tmp", "PWD": str(workspace), RUN_VARIABLE: run}


def _argv(bwrap: str, workspace: Path, settings: Settings) -> list[str]:
    seen = [*SYSTEM, *(f"/etc/{name}" for name in ETC), *settings.paths]
    argv = [bwrap, *_walls()]
    if settings.network:
        argv.append("--share-net")
    for path in seen:
        argv += ["--ro-bind-try", path, path]
    where = str(workspace)
    return [*argv, "--bind", where, where, "--chdir", where, "--"]


def _walls() -> list[str]:
    """Returns the options that isolate a command, except for its visible files."""
    argv = ["--unshare-all", "--die-with-parent", "--new-session"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    if os.geteuid() == 0:  # to anybody else it leaves no capabilities, and may not be asked to
        argv += ["--cap-drop", "ALL"]
        for name in HOST_PROC_ENTRIES:
            argv += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    return argv


async def _works(bwrap: str) -> bool:
    """Probes whether bubblewrap works: the kernel, or a container around us, may forbid it. A
    success is cached."""
    if bwrap in _PROBED:
        return True
    argv = [bwrap, "--ro-bind", "/", "/", *_walls(), "true"]
    with trio.move_on_after(PROBE_TIMEOUT_S):
        ended = await trio.run_process(argv, check=False, capture_stderr=True)
        if ended.returncode == 0:
            _PROBED.add(bwrap)
            return True
    return False
