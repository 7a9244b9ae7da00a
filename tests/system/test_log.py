from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from casfs.system import log


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_line_says_what_when_and_who(tmp_path: Path) -> None:
    before = time.time_ns() // 1_000_000
    log.to_file(tmp_path / "x.jsonl")("step", thread="01J", index=3, ok=True, reason=None)
    (line,) = read(tmp_path / "x.jsonl")
    assert before <= line.pop("time") <= time.time_ns() // 1_000_000
    assert line == {
        "pid": os.getpid(),
        "event": "step",
        "thread": "01J",
        "index": 3,
        "ok": True,
        "reason": None,
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Path("/a/b"), "/a/b"),
        (1.5, "1.5"),
        (2**60, str(2**60)),
        (ValueError("why"), "why"),
        ("name \udcff!", "name \ufffd\ufffd\ufffd!"),
        ("\ud800", "\ufffd\ufffd\ufffd"),
        (["list"], "['list']"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_any_value_can_be_logged(tmp_path: Path, value: Any, shown: str) -> None:
    log.to_file(tmp_path / "x.jsonl")("event", value=value)
    assert read(tmp_path / "x.jsonl")[0]["value"] == shown


def test_several_writers_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    writers = [log.to_file(path) for _ in range(4)]

    def work(n: int) -> None:
        for count in range(50):
            writers[n]("event", writer=n, count=count, text="x" * 500)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [(line["writer"], line["count"]) for line in read(path)]
    assert sorted(found) == [(n, count) for n in range(4) for count in range(50)]


def test_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    log.to_file(tmp_path / "x.jsonl")("event")
    assert (tmp_path / "x.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_disk_that_is_full_does_not_end_the_writer() -> None:
    log.to_file(Path("/dev/full"))("event")


def test_the_silent_log_takes_anything(capsys: pytest.CaptureFixture[str]) -> None:
    log.silent("event", value=object())
    assert capsys.readouterr() == ("", "")
