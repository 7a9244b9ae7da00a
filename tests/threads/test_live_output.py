"""The output of a program while it runs, as a file of the store."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from casfs.agents.secrets import NO_SECRETS, Secrets
from casfs.store.store import Store
from casfs.threads import live_output, threads
from engine.workflow import registry as workflows
from tests.support.engine import ONE, daemon, kill, says, start_thread, until

TOKEN = "0123456789abcdef" * 2


def test_a_daemon_writes_it_and_deletes_it(disk_store: Store, tmp_path: Path) -> None:
    root, go = disk_store.root, tmp_path / "go"
    workflows.add(disk_store, ONE)
    script = f"echo one; while [ ! -e {go} ]; do sleep 0.02; done; echo two"

    def token(id: str) -> str:
        intent = threads.get(disk_store, threads.ThreadId(id)).record["intent"] or {}
        return str(intent.get("run", ""))

    with daemon(root):
        id = start_thread(root, "sample", {"a": says({}, script)})
        data, _ = until(lambda: (found := live_output.tail(root, token(id))) and found[0] and found)
        assert data == b"one\n"
        assert stat.S_IMODE((root / "live" / token(id)).stat().st_mode) == 0o600
        go.touch()
        until(lambda: threads.get(disk_store, threads.ThreadId(id)).status == "ended")
        assert os.listdir(root / "live") == []


def test_the_next_daemon_deletes_what_a_killed_one_left(disk_store: Store) -> None:
    root = disk_store.root
    workflows.add(disk_store, ONE)
    with daemon(root) as pid:
        start_thread(root, "sample", {"a": says({}, "echo one; sleep 600")})
        (left,) = until(lambda: (root / "live").exists() and os.listdir(root / "live"))
        kill(pid)
        assert (root / "live" / left).exists()
    with daemon(root):
        assert not (root / "live" / left).exists()


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_secret_is_redacted_wherever_the_output_is_cut(cut: int, tmp_path: Path) -> None:
    said = b"the key is hunter22hunter22, no?"
    with live_output.recording(tmp_path, TOKEN, Secrets({"KEY": "hunter22hunter22"})) as live:
        for piece in (said[:cut], said[cut : cut + 8], said[cut + 8 :]):
            live.write(piece)
            found = live_output.read(tmp_path, TOKEN, 0)
            assert b"hunter" not in found
        assert found == b"the key is $KEY, no?"


def test_a_token_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x")
    for token in ("../other", "", None, "ab", TOKEN + "/x"):
        assert not live_output.exists(tmp_path, token)
        assert live_output.tail(tmp_path, token) is None
        assert live_output.read(tmp_path, token, 0) == b""
    with live_output.recording(tmp_path, "../other", NO_SECRETS) as live:
        live.write(b"y")
    assert (tmp_path / "other").read_bytes() == b"x"
