"""The bubblewrap sandbox for a model's commands: workspace writable, system read-only.

Visible read-only are programs and libraries, the part of /etc that they need, and the `paths` of
the config; /tmp, /proc and /dev are private. Not visible are homes, the store beside the
workspace and other processes; the network only where the config allows it. The environment is
a new one, without keys of the daemon, and so is the session keyring. Memory and processes are
limited (`_confined`). All processes end with bwrap.

Commands of a daemon that runs as root are root's for the kernel too. So they get no capabilities,
with which they could mount the system writable, and the host's entries in /proc are read-only.
From bubblewrap 0.8 on they cannot make user namespaces either, where they would have them again.

Where bubblewrap is missing, or the kernel forbids it namespaces, a command is refused, unless the
config has `allowShell`: then it runs with all rights of the daemon's user (but not its
environment).
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from casfs.errors import Refused
from casfs.system.processes import RUN_VARIABLE, threads_of_user
from engine.processes.launcher import launched

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
NO_USERNS = ("--unshare-user", "--disable-userns")
_PROBED: dict[str, list[str]] = {}  # program -> options that work, by this process's trials
MAX_PROCESSES = 1024  # of a command, threads included; the kernel does not count root's


@dataclass(frozen=True)
class Settings:
    """`paths`: further readable directories; `allow_shell`: run without bubblewrap where it is
    missing; `timeout`: seconds for a command; `shown_at`: the path at which the command sees its
    workspace, None for its own."""

    paths: Sequence[str] = ()
    network: bool = False
    allow_shell: bool = False
    timeout: float = 120.0
    shown_at: Path | None = None


async def sandboxed_command(
    command: str, workspace: Path, run: str, env: Mapping[str, str], settings: Settings
) -> tuple[list[str], dict[str, str]]:
    """Returns argv and environment to run a shell command in the sandbox. Raises Refused."""
    bwrap = shutil.which("bwrap", path=env.get("PATH", os.defpath))
    clean = _environment(env, settings.shown_at or workspace, run)
    options = None if bwrap is None else await _working_options(bwrap)
    if bwrap is not None and options is not None:
        inner = [bwrap, *options, *_visible(workspace, settings)]
        argv = await trio.to_thread.run_sync(_confined, inner)  # it searches /proc
        return [*argv, "sh", "-c", command], clean
    if settings.allow_shell:
        return ["sh", "-c", command], clean
    why = "cannot make namespaces here" if bwrap else "is not installed"
    raise Refused(f"no commands: bubblewrap {why}, and the agent's config has no allowShell")


def _environment(env: Mapping[str, str], workspace: Path, run: str) -> dict[str, str]:
    kept = {name: env[name] for name in PASSED_VARIABLES if name in env}
    return {"PATH": os.defpath, **kept, "HOME": "/tmp", "PWD": str(workspace), RUN_VARIABLE: run}


def _visible(workspace: Path, settings: Settings) -> list[str]:
    """Returns the options for what a command sees of the system."""
    argv = ["--share-net"] if settings.network else []
    for path in [*SYSTEM, *(f"/etc/{name}" for name in ETC), *settings.paths]:
        argv += ["--ro-bind-try", path, path]
    shown = str(settings.shown_at or workspace)
    return [*argv, "--bind", str(workspace), shown, "--chdir", shown, "--"]


def _confined(argv: Sequence[str]) -> list[str]:
    """Returns the argv that gives a program what is inherited through bubblewrap, which has no
    option for it. The memory is of each process: private writable memory, half of the machine's;
    not the address space, of which runtimes reserve far more than they use."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    limits = [
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_NPROC, threads_of_user() + MAX_PROCESSES),
        (resource.RLIMIT_CORE, 0),
    ]
    return launched({"keyring": True, "limits": limits}, argv)


def _isolation() -> list[str]:
    """Returns the options that isolate a command, except for its visible files."""
    argv = ["--unshare-all", "--die-with-parent", "--new-session"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    if os.geteuid() == 0:  # bwrap leaves other users none, and may refuse the option
        argv += ["--cap-drop", "ALL"]
        for name in HOST_PROC_ENTRIES:
            argv += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    return argv


async def _working_options(bwrap: str) -> list[str] | None:
    """Returns the isolating options that work here, None where none do: the kernel, or a container
    around us, may forbid it; an old bubblewrap lacks NO_USERNS. A success is cached."""
    for options in () if bwrap in _PROBED else ([*_isolation(), *NO_USERNS], _isolation()):
        argv = _confined([bwrap, "--ro-bind", "/", "/", *options, "true"])
        with trio.move_on_after(PROBE_TIMEOUT_S):
            ended = await trio.run_process(argv, check=False, capture_stderr=True)
            if ended.returncode == 0:
                _PROBED[bwrap] = options
                break
    return _PROBED.get(bwrap)
