"""A command that is interrupted leaves nothing behind, whenever the signal comes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.system import run_command
from casfs.system.signals import deferred
from tests.support.engine import alive, until


class Ended(BaseException):
    """Raised by a signal's handler, as the command line does."""


@pytest.fixture
def raising() -> Iterator[None]:
    def end(*_: object) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("raising")
def test_a_signal_while_the_command_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    popen = subprocess.Popen

    def start_and_signal(*arguments: Any, **options: Any) -> Any:
        process = popen(*arguments, **options)
        started.append(process.pid)
        signal.raise_signal(signal.SIGTERM)
        return process

    monkeypatch.setattr(run_command.subprocess, "Popen", start_and_signal)
    with pytest.raises(Ended):
        run_command.run(
            ["sleep", "600"],
            cwd=tmp_path, env=dict(os.environ), timeout=None, stdout=[], stderr=[],
        )  # fmt: skip
    until(lambda: not alive(started[0]), "the end of the command")


@pytest.mark.usefixtures("raising")
def test_signals_are_handled_at_the_end() -> None:
    done = []

    def work() -> None:
        with deferred():
            signal.raise_signal(signal.SIGTERM)
            done.append("all")

    with pytest.raises(Ended):
        work()
    assert done == ["all"]
    with pytest.raises(Ended):
        signal.raise_signal(signal.SIGTERM)
