"""The daemon as a service of the user's systemd, so that it is there from a login on.

Where the user has no systemd (a container, another system) there is none: the daemon is started as
by any command, and each session starts one that is away.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from casfs.attach import spool
from casfs.digest import hash_bytes
from casfs.errors import Failed, Refused
from casfs.system.files import os_errors, replacing

TIMEOUT_S = 30
UNIT = """\
[Unit]
Description=casfs daemon of {root}

[Service]
Type=notify
{environment}ExecStart={program} -P -m casfs --store {root} daemon start --foreground
Restart=on-failure
Delegate=yes

[Install]
WantedBy=default.target
"""


def unit(root: Path, env: Mapping[str, str]) -> str:
    """Returns the text of a unit that runs the daemon of a store, with the settings that `env` has
    for it. Raises Refused for a path that no unit can have."""
    if not f"{sys.executable}{root}".isprintable():
        raise Refused(f"the path {str(root)!r} has a character that a unit cannot have")
    settings = spool.daemon_settings(env)
    lines = [f"Environment={_quoted(f'{name}={value}')}\n" for name, value in settings.items()]
    return UNIT.format(
        # Only a command has variables, which begin with a dollar sign.
        program=_quoted(sys.executable).replace("$", "$$"),
        root=_quoted(str(root)).replace("$", "$$"),
        environment="".join(line for line in lines if line[:-1].isprintable()),
    )


def unit_file(root: Path, env: Mapping[str, str]) -> Path:
    """Returns where the unit of a store is, or would be."""
    config = env.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    # Of its path, as a user may have several stores.
    name = f"casfs-{hash_bytes(str(root).encode())[:8]}.service"
    return Path(config) / "systemd/user" / name


def is_available() -> bool:
    """Returns whether the user has a systemd that runs."""
    return _systemctl("show-environment") is None


def install(root: Path, env: Mapping[str, str]) -> None:
    """Writes the unit, and has the service start with each login. One that runs already, or a
    daemon, is left as it is. Raises Failed."""
    file = unit_file(root, env)
    with os_errors(f"cannot write {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as written:
            written.write(unit(root, env).encode())
    for arguments in (("daemon-reload",), ("enable", file.name)):
        if (fault := _systemctl(*arguments)) is not None:
            raise Failed(f"systemctl --user {' '.join(arguments)}: {fault}")


def start(root: Path, env: Mapping[str, str]) -> None:
    """Starts the service; returns once its daemon is ready. Raises Failed."""
    if (fault := _systemctl("start", unit_file(root, env).name)) is not None:
        raise Failed(f"systemctl --user start: {fault}")


def remove(root: Path, env: Mapping[str, str]) -> None:
    """Takes the service out again, where there is one. It runs on until it is stopped. Raises
    Failed."""
    file = unit_file(root, env)
    if not file.exists():
        return
    # Where systemd is away the links that it has made are gone with the next `daemon-reload`.
    _systemctl("disable", file.name)
    with os_errors(f"cannot delete {file}"):
        file.unlink()
    _systemctl("daemon-reload")


def _systemctl(*arguments: str) -> str | None:
    """Returns why it failed, None where it did not."""
    argv = ["systemctl", "--user", "--quiet", *arguments]
    try:
        ended = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"]
    return None if ended.returncode == 0 else said[-1]


def _quoted(word: str) -> str:
    """Returns a word of a unit as systemd reads it."""
    word = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{word}"' if re.search("[ \"']", word) else word
