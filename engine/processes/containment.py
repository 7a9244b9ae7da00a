"""Containment of attempts: what an attempt has started ends with it, within its limits.

Methods, the best first; the first that works on this machine is used:

    cgroup   a control group an attempt, which no process leaves by a fork, a session or a cleared
             environment
    parent   a process between the daemon and the program, to which the kernel leaves descendants
             that have lost their parent (a subreaper)

With both, the token of the step finds what a killed daemon left (`casfs.system.processes`). A limit
is held by the control group, by the kernel's limits of a process or a user, or by a namespace.

A group has the name casfs-STORE-TOKEN, and a group below for each process of the attempt.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import trio

from casfs.errors import Refused
from casfs.system import cgroups, processes
from casfs.system.cgroups import MEMORY, PIDS, UNIFIED
from engine.processes.launcher import launched
from engine.processes.limits import Limits, merge

CGROUP = "cgroup"
PARENT = "parent"
SHELL = "/bin/sh"
SHELL_NAMES = ("PWD", "OLDPWD", "SHLVL")  # that it sets by itself
SHELL_OWN = {"IFS", "OPTIND", "PPID", "LINENO", "RANDOM", "SECONDS", "SHELLOPTS", "BASHOPTS"}
PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")  # it drops others
PROBE_TIMEOUT_S = 10.0
CPU_INTERVAL_S = 0.5
TRIAL = "trial-"  # begin names of groups; the id of a process follows
NO_DAEMON = "process"


@dataclass(frozen=True)
class Support:
    """`holders`: the method that holds a limit here, by the limit's key in the settings (memory,
    processes, cpuS, network); None where none does. `groups`: as `cgroups.usable`."""

    method: str
    holders: Mapping[str, str | None]
    groups: Mapping[str, Path]


@cache
def support() -> Support:
    """Tries the methods on this machine, once."""
    groups = cgroups.usable()
    trials = {group / f"{cgroups.PREFIX}{TRIAL}{os.getpid()}" for group in groups.values()}
    for trial in trials:
        trial.mkdir(exist_ok=True)
    # Where a group can be made, the kernel may still refuse that a process enters it.
    files = [str(trial / cgroups.PROCS) for trial in trials]
    if not _works({"join": files}):
        groups = {}
    for trial in trials:
        cgroups.end(trial)
    holders: dict[str, str | None] = {"memory": "process", "processes": "user", "cpuS": "process"}
    if MEMORY in groups:
        holders["memory"] = CGROUP
    if PIDS in groups:
        holders["processes"] = CGROUP
    elif os.geteuid() == 0:
        holders["processes"] = None  # the kernel counts no processes of root
    # Version 1 has no such count.
    if groups and cgroups.cpu_seconds(groups[UNIFIED]) is not None:
        holders["cpuS"] = CGROUP
    holders["network"] = "namespace" if _works({"offline": True}) else None
    return Support(CGROUP if groups else PARENT, holders, groups)


def _works(spec: Mapping[str, Any]) -> bool:
    # What a kernel and a container allow is only learned by trying.
    argv = launched(spec, ["true"])
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(argv, capture_output=True, timeout=PROBE_TIMEOUT_S).returncode == 0
    return False


@dataclass(eq=False)
class Confinement:
    """The processes of one attempt, or of one process outside of attempts. Its groups are made for
    its first process."""

    token: str
    limits: Limits
    was_used: bool = False
    _reached: set[str] = field(default_factory=set)
    _groups: dict[str, Path] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raises Refused where a limit cannot be held here."""
        for name in self.limits.asked() if self.limits.enforce else ():
            if support().holders[name] is None:
                raise Refused(
                    f"limits.{name} cannot be held on this machine, see `casfs status`; "
                    'with "enforce": false the role runs without it'
                )

    def launch(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: Path | str | None
    ) -> tuple[list[str], Path | None]:
        """Returns the argv that starts a program inside, and its group. Raises OSError as for the
        program itself."""
        # A missing program would else be an exit code of the shell or the launcher, which do start.
        _find(argv[0], env, cwd)
        spec, group = self.spec()
        # A shell is ready in a tenth of the time of the launcher, but enters groups only.
        if spec.keys() == {"join"}:
            script = _shell_script(spec["join"], argv[0], env)
            if script:
                return [SHELL, "-c", script, SHELL, *argv], group
        return launched(spec, argv), group

    def spec(self) -> tuple[dict[str, Any], Path | None]:
        """Returns what holds for one more process (`engine.processes.launcher`), and its group.
        Raises OSError."""
        machine = support()
        process_limits = self._process_limits()
        spec: dict[str, Any] = {"limits": process_limits} if process_limits else {}
        if not self.limits.network and machine.holders["network"]:
            spec["offline"] = True
        group = None
        if machine.method == PARENT:
            spec["keep"] = processes.OUTLIVING
        else:
            if not self._groups:
                self._make_groups()
            main_group = self._groups[UNIFIED]
            # One for each process, so that the end of one does not end what others have started.
            group = main_group / str(next(_numbers))
            group.mkdir()
            # The attempt's main group holds the process by this group, which is below it. With
            # version 2 it has all controllers; with version 1 each may have a group elsewhere,
            # which the process must join, too.
            joined = {group, *self._groups.values()} - {main_group}
            spec["join"] = [str(joined_group / cgroups.PROCS) for joined_group in joined]
        self.was_used = True
        return spec, group

    def _make_groups(self) -> None:
        machine = support()
        name = f"{cgroups.PREFIX}{_store}-{self.token}"
        values = {MEMORY: self.limits.memory, PIDS: self.limits.processes}
        groups = {UNIFIED: machine.groups[UNIFIED] / name}
        groups[UNIFIED].mkdir(exist_ok=True)
        try:
            for controller, value in values.items():
                if value and controller in machine.groups:
                    groups[controller] = machine.groups[controller] / name
                    groups[controller].mkdir(exist_ok=True)
                    cgroups.limit(groups[controller], controller, value)
        except OSError:
            # `self._groups` is still empty, so `finish` would not know them.
            for group in groups.values():
                cgroups.end(group)
            raise
        self._groups = groups
        # The kernel counts a group's processor time, but has no limit for it.
        cpu = self.limits.cpu
        if cpu and machine.holders["cpuS"] == CGROUP:
            # A daemon thread: it must not keep this process from ending.
            watcher = threading.Thread(target=self._watch, args=[cpu], daemon=True)
            watcher.start()

    def _watch(self, most: float) -> None:
        group = self._groups[UNIFIED]
        while not self._ended.wait(CPU_INTERVAL_S):
            if (cgroups.cpu_seconds(group) or 0) > most:
                self._reached.add("cpuS")
                cgroups.kill(group)

    def _process_limits(self) -> list[tuple[int, int]]:
        limits = self.limits
        holders = support().holders
        rlimits = []
        # Also beside a group, which is only looked at from time to time.
        if limits.cpu:
            rlimits.append((resource.RLIMIT_CPU, limits.cpu))
        if limits.memory and holders["memory"] == "process":
            rlimits.append((resource.RLIMIT_DATA, limits.memory))
        if limits.processes and holders["processes"] == "user":
            # The kernel compares it with all threads of the user, those outside included.
            most = processes.threads_of_user() + limits.processes
            rlimits.append((resource.RLIMIT_NPROC, most))
        return rlimits

    def kill(self, pid: int) -> None:
        """Ends a process that did not end itself, and its descendants."""
        # A group needs no help: `end` kills what is in it. The launcher, which stays as the parent,
        # blocks all signals and takes this one as the order to end its descendants.
        if support().method == PARENT:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGRTMAX)

    def end(self, group: Path | None, code: int | None) -> None:
        """Ends the descendants of a process that has ended."""
        if code == -signal.SIGXCPU:
            self._reached.add("cpuS")
        if group is not None:
            cgroups.end(group)
        # Outside of an attempt nobody else finishes it.
        if _confinements.get(self.token) is not self:
            self.finish()

    def finish(self) -> None:
        """Ends the attempt's remaining processes."""
        self._ended.set()
        # Before the groups are removed, and the counts with them.
        for name, key in ((MEMORY, "memory"), (PIDS, "processes")):
            if name in self._groups and cgroups.was_reached(self._groups[name], name):
                self._reached.add(key)
        for group in self._groups.values():
            cgroups.end(group)
        if self.was_used:  # also with groups: root's processes can enter others
            processes.end_carrying(processes.RUN_VARIABLE, self.token)
        if _confinements.get(self.token) is self:
            del _confinements[self.token]

    async def close(self) -> None:
        # The end of processes may take seconds, and is due when the attempt is cancelled, too.
        if self.was_used:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self.finish)
        else:
            self.finish()

    def record(self) -> dict[str, Any] | None:
        """Returns method and limits for the step; None where no process was started."""
        if not self.was_used:
            return None
        machine = support()
        limits = self.limits.asked()
        value: dict[str, Any] = {"method": machine.method}
        if limits:
            holders = machine.holders
            held = {name: {"limit": limit, "by": holders[name]} for name, limit in limits.items()}
            value["limits"] = held
        if self._reached:
            value["reached"] = sorted(self._reached)
        return value

    def reason(self) -> str:
        """Returns which limits were reached, for the reason of a failed attempt; else empty."""
        names = sorted(self._reached)
        return "; ".join(map(self.limits.reached, names))


_numbers = itertools.count()  # of groups for processes
_confinements: dict[str, Confinement] = {}  # of running attempts, by token
_defaults: dict[str, Any] = {}
_store = f"{NO_DAEMON}{os.getpid()}"  # until it is a daemon


def set_defaults(table: Mapping[str, Any]) -> None:
    """Sets the limits that hold where an agent or a role has no other. Raises Invalid."""
    merge(table)  # first: a table with a fault sets nothing
    _defaults.clear()
    _defaults.update(table)


def begin(token: str, *tables: Mapping[str, Any]) -> Confinement:
    """Begins an attempt: its processes are started with that token, within the limits of the
    tables. Raises Invalid, Refused."""
    confinement = Confinement(token, merge(_defaults, *tables))
    # Before it is registered: an attempt that was refused never closes its confinement.
    confinement.check()
    _confinements[token] = confinement
    return confinement


def of_run(token: str) -> Confinement:
    """Returns the confinement of a running attempt, else a new one for one process."""
    if running := _confinements.get(token):
        return running
    return Confinement(token, merge(_defaults))


def prepare(root: Path) -> int:
    """Prepares this process to contain the attempts of a store, as its only daemon: ends what an
    earlier one left. Returns the number of attempts."""
    global _store
    _store = store_key(root)
    for prefix in (TRIAL, cgroups.PROBE, NO_DAEMON):
        cgroups.remove_abandoned(prefix)
    # In this order: `support` tries once, and what it finds depends on what is delegated.
    cgroups.delegate()
    support()
    left = cgroups.named(f"{_store}-")
    for group in left:
        cgroups.end(group)
    return len({group.name for group in left})


def store_key(root: Path) -> str:
    path = os.fsencode(root.resolve())
    return hashlib.blake2b(path, digest_size=6).hexdigest()


def end_left(token: str) -> None:
    """Ends what a killed daemon left of an attempt."""
    # By the token alone: this may be another process than the daemon, without its `_store`.
    for group in cgroups.named(""):
        if group.name.endswith(f"-{token}"):
            cgroups.end(group)


def _shell_script(files: Sequence[str], name: str, env: Mapping[str, str] | None) -> str | None:
    """Returns a script that does the same as the launcher, in a tenth of the time; None where a
    shell would not keep the environment."""
    # `exec` would take such a name for an option.
    if env is None or name.startswith("-") or not SHELL_OWN.isdisjoint(env):
        return None
    if not all(map(PLAIN_NAME.fullmatch, env)):
        return None
    commands = [f"echo 0 >{shlex.quote(file)} || exit 126" for file in files]
    for variable in SHELL_NAMES:
        if variable in env:
            commands.append(f"{variable}={shlex.quote(env[variable])}")
        else:
            commands.append(f"unset {variable}")
    return "; ".join([*commands, 'exec "$@"'])


def _find(name: str, env: Mapping[str, str] | None, cwd: Path | str | None) -> None:
    """Raises OSError as `subprocess` does for a missing program."""
    path = None if env is None else env.get("PATH", os.defpath)
    # A path is relative to the directory of the program, which changes into it before it starts.
    where = os.path.join(cwd or "", name) if "/" in name else name
    # A NUL is left to `subprocess`, which raises another error for it.
    if "\0" not in name and shutil.which(where, path=path) is None:
        there = shutil.which(where, os.F_OK, path=path)
        error = PermissionError if there else FileNotFoundError
        number = errno.EACCES if there else errno.ENOENT
        raise error(number, os.strerror(number), name)
