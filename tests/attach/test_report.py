"""The hook program as agents run it: a process of its own, which never disturbs them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from casfs.attach import spool
from casfs.store.store import Store
from casfs.system import daemon_socket

PYTHON = os.path.realpath(sys.executable)
EVENT = {"hook_event_name": "Stop", "session_id": "one", "cwd": "/project", "text": "ü\n"}


@pytest.fixture
def program(disk_store: Store) -> Path:
    return spool.prepare(disk_store.root, os.environ)


def run(
    program: Path,
    event: Any = EVENT,
    env: Mapping[str, str] | None = None,
    printed: bytes = b"",
) -> None:
    data = event if isinstance(event, bytes) else json.dumps(event).encode()
    argv = [PYTHON, "-IS", str(program), "claude"]
    ended = subprocess.run(argv, input=data, capture_output=True, env=env, timeout=20)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, printed, b"")


def spooled(program: Path) -> list[spool.Event]:
    root = program.parents[1]
    events = [spool.read(root, name) for name in spool.names(root)]
    return [event for event in events if event is not None]


def test_an_event_is_spooled(program: Path) -> None:
    run(program, env={"ANTHROPIC_API_KEY": "sk-secret", "PATH": os.environ["PATH"]})
    (event,) = spooled(program)
    assert (event.agent, event.payload, event.fault) == ("claude", EVENT, None)
    assert event.pid == os.getpid()
    (name,) = spool.names(program.parents[1])
    data = (program.parents[1] / "spool" / name).read_bytes()
    assert b"sk-secret" not in data
    assert (program.parents[1] / "spool" / name).stat().st_mode & 0o777 == 0o600


def test_the_agent_above_a_shell(program: Path) -> None:
    line = f"sh -c '{PYTHON} -IS {program} claude; true'; true"
    subprocess.run(["bash", "-c", line], input=b"{}", check=True)
    (event,) = spooled(program)
    assert event.pid == os.getpid()


def test_events_are_in_order(program: Path) -> None:
    for number in range(5):
        run(program, {"number": number})
    assert [event.payload["number"] for event in spooled(program)] == list(range(5))


def test_events_of_an_earlier_boot_come_first(program: Path) -> None:
    root = program.parents[1]
    run(program, {"number": 3})
    for boot, moment, number in (("aaaaaaaa", 10**18, 2), ("bbbbbbbb", 10**17, 1)):
        file = root / "spool" / f"{boot}-{moment:020d}-7"
        file.write_bytes(b"casfs 1 claude 1 1\n" + json.dumps({"number": number}).encode())
        # Booted earlier, though its moment is later: it ran long.
        begun = {"aaaaaaaa": 2_000_000_000, "bbbbbbbb": 1_000_000_000}[boot]
        at = begun * 10**9 + moment
        os.utime(file, ns=(at, at))
    assert [event.payload["number"] for event in spooled(program)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not a JSON object"),
        (b"{", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not a JSON object"),
        (b'{"a": "\xff"}', "not a JSON object"),
    ],
)
def test_what_is_no_event(program: Path, data: bytes, fault: str) -> None:
    run(program, data)
    (event,) = spooled(program)
    assert fault in (event.fault or "")


def test_a_damaged_file(disk_store: Store) -> None:
    assert "not a report" in (spool.parse(b"casfs 2 claude 1 1\n{}").fault or "")
    assert "not a report" in (spool.parse(b"\xff").fault or "")
    assert spool.read(disk_store.root, "gone") is None


@contextmanager
def listening(path: Path, answer: bytes | None, first: bytes = b"") -> Iterator[list[bytes]]:
    """A daemon that notes a request, and answers or does not. `first`: what it sends before."""
    got: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as stream:
                got.append(stream.readline())
                connection.sendall(first)
                if answer is None:
                    stream.read()
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield got
        thread.join()


def test_the_daemon_is_told(program: Path, tmp_path: Path) -> None:
    spool.announce(program.parents[1], tmp_path / "s")
    with listening(tmp_path / "s", b"{}\n") as got:
        run(program)
    (name,) = spool.names(program.parents[1])
    assert json.loads(got[0]) == {"op": "session_event", "file": name}


def test_a_daemon_that_does_not_answer(program: Path, tmp_path: Path) -> None:
    spool.announce(program.parents[1], tmp_path / "s")
    with listening(tmp_path / "s", None):
        run(program)
    assert len(spooled(program)) == 1


@pytest.mark.parametrize("answer", [b'{"ok":{}}\n', None])
@pytest.mark.parametrize(
    ("first", "printed"),
    [
        (b'{"print":"%s"}\n' % b'{"a": "\xc3\xbc"}'.hex().encode(), b'{"a": "\xc3\xbc"}'),
        (b'{"print":"7b', b""),  # the rest never comes
        (b'{"print":"no digits"}\n', b""),
        (b'{"print":""}\n', b""),
    ],
)
def test_what_comes_in_time_is_printed(
    program: Path, tmp_path: Path, first: bytes, printed: bytes, answer: bytes | None
) -> None:
    """Also where the daemon is late with its look."""
    spool.announce(program.parents[1], tmp_path / "s")
    with listening(tmp_path / "s", answer, first):
        run(program, printed=printed)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_told_nothing(program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    spool.announce(program.parents[1], folder / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s"))
        server.listen()
        server.setblocking(False)
        run(program)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert len(spooled(program)) == 1


def test_without_a_store(program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "hooks/report.py"
    copy.parent.mkdir()
    copy.write_bytes(program.read_bytes())
    run(copy)
    assert sorted(path.name for path in copy.parent.iterdir()) == ["report.py"]


@contextmanager
def full_disk(folder: Path) -> Iterator[Path]:
    """A store's directory, prepared for hooks, on a file system without room."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    try:
        program = spool.prepare(folder, os.environ)
        spool.announce(folder, folder.parent / "s")
        with (folder / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        yield program
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_and_no_daemon(tmp_path: Path) -> None:
    with full_disk(tmp_path / "full") as program:
        root = program.parents[1]
        run(program)
        first = spool.missed(root)
        assert first is not None
        assert first[0] == first[1]
        run(program)
        later = spool.missed(root)
        assert later is not None
        assert later[0] == first[0]
        assert later[1] > first[1]
        assert spool.names(root) == []
        week = 8 * 86_400 * 10**9
        os.utime(root / "spool/missed", ns=(0, time.time_ns() - week))
        assert spool.missed(root) is None
        run(program)
        again = spool.missed(root)
        assert again is not None
        assert again[0] == again[1]


def test_a_full_disk_and_a_daemon(tmp_path: Path) -> None:
    with full_disk(tmp_path / "full") as program:
        with listening(tmp_path / "s", b"{}\n") as got:
            run(program)
        assert spool.missed(program.parents[1]) is None
    event = spool.parse(bytes.fromhex(json.loads(got[0])["hex"]))
    assert event.payload == EVENT


def test_a_session_starts_a_daemon(program: Path) -> None:
    begun = program.parents[1] / "begun"
    script = program.parent / "start-daemon"
    script.write_text(f"#!/bin/sh\nenv > {begun}.new; mv {begun}.new {begun}\n")
    run(program, {"hook_event_name": "SessionStart"}, env={"KEY": "sk-secret"})
    for _ in range(500):
        if begun.exists():
            break
        threading.Event().wait(0.01)
    assert "sk-secret" not in begun.read_text()


def test_no_daemon_is_started_in_the_middle(program: Path) -> None:
    script = program.parent / "start-daemon"
    script.write_text(f"#!/bin/sh\ntouch {program.parent}/begun\n")
    run(program)
    threading.Event().wait(0.2)
    assert not (program.parent / "begun").exists()


def test_the_script_starts_the_daemon_of_the_store(program: Path) -> None:
    root = program.parents[1]
    subprocess.run([program.parent / "start-daemon"], env={}, check=True, timeout=60)
    try:
        assert daemon_socket.find(root) is not None
    finally:
        daemon_socket.stop(root)
