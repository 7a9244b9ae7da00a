"""Trust of hooks in Codex (version 0.169): it runs none that its user has not trusted, by hash.

The trust is kept in its `config.toml`. It is asked and changed by `codex app-server`, which speaks
JSON by lines, so codex itself computes the hashes and writes the file. Only ever called where a
person has asked for it.
"""

from __future__ import annotations

import json
import select
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from casfs.attach import settings
from casfs.errors import Failed, NotFound
from casfs.version import VERSION

ARGV = ("codex", "app-server")
ANSWER_S = 20.0
STATE = "hooks.state"


def trust(program: Path) -> int:
    """Trusts the hooks that run `program`; returns how many there are. Raises NotFound where codex
    is not installed, Failed."""
    with _server() as server:
        hooks = _hooks(server, program)
        trusted = {hook["key"]: {"trusted_hash": hook["currentHash"]} for hook in hooks}
        if trusted:
            server.write(STATE, trusted, "upsert")
    return len(trusted)


def forget(program: Path) -> None:
    """Takes the trust of these hooks back, before they are taken out. Raises as `trust`."""
    with _server() as server:
        for hook in _hooks(server, program):
            if hook["trustStatus"] == "trusted":
                server.write(f"{STATE}.{json.dumps(hook['key'])}", None, "replace")
        if server.config().get("hooks", {}).get("state") == {}:
            server.write(STATE, None, "replace")


class _Server:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._number = 0
        self._lines = b""
        client = {"name": "casfs", "version": VERSION}
        self._home = self.call("initialize", {"clientInfo": client}).get("codexHome", "")
        self._send({"method": "initialized"})

    def call(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                break
        if "error" in answer:
            raise Failed(f"codex: {method}: {answer['error'].get('message')}")
        return answer["result"]

    def write(self, key: str, value: Any, strategy: str) -> None:
        edit = {"keyPath": key, "value": value, "mergeStrategy": strategy}
        self.call("config/batchWrite", {"edits": [edit]})

    def config(self) -> dict[str, Any]:
        """Returns what the `config.toml` holds; nothing where it cannot be read."""
        with suppress(OSError, ValueError):
            return tomllib.loads(Path(self._home, "config.toml").read_text("utf-8"))
        return {}

    def _send(self, message: dict[str, Any]) -> None:
        stdin: IO[bytes] | None = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise Failed("codex app-server ended without an answer") from None

    def _receive(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._lines:
            ready, _, _ = select.select([stdout], [], [], ANSWER_S)
            piece = stdout.read1(1 << 16) if ready else b""  # type: ignore[attr-defined]
            if not piece:
                raise Failed(f"codex app-server gave no answer in {ANSWER_S:g} s")
            self._lines += piece
        line, _, self._lines = self._lines.partition(b"\n")
        try:
            value: dict[str, Any] = json.loads(line)
        except ValueError:
            raise Failed("codex app-server answered in an unknown form") from None
        return value


@contextmanager
def _server() -> Iterator[_Server]:
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(ARGV, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
    except OSError as error:
        raise NotFound(f"codex cannot be run: {error.strerror}") from None
    try:
        yield _Server(process)
    finally:
        process.kill()
        process.communicate()


def _hooks(server: _Server, program: Path) -> list[dict[str, Any]]:
    """Returns the hooks that run a program, of all that codex knows here."""
    listed = server.call("hooks/list", {"cwds": [str(Path.cwd())]})
    try:
        hooks = [hook for entry in listed["data"] for hook in entry["hooks"]]
        return [hook for hook in hooks if settings.runs(str(hook.get("command")), str(program))]
    except (KeyError, TypeError) as error:
        raise Failed(f"codex lists its hooks in an unknown form: {error!r}") from None
