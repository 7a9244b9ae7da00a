"""A short run of the harness of a team's machines, and that it can fail. The long one is the tool:
`python tests/harness/chaos_shared.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.chaos_check import Fault, History, Note, count_beside, pauses, read_notes
from tests.support import programs
from tests.support.postgres_server import POSTGRES

TOOL = Path(__file__).parent / "chaos_shared.py"
LOG = """\
10.0 begin 1 m1 - a
10.1 end 1 m1 - a
10.2 begin 2 m2 m1 a
20.2 begin 2 m3 m1 b
20.3 end 2 m3 - b
"""


@programs.needs(POSTGRES, "setpriv", "umount")
def test_machines_that_fail_lose_nothing() -> None:
    faults = ["--kills", "1", "--deaths", "1", "--cuts", "1", "--database-kills", "1"]
    size = [
        "--daemons",
        "2",
        "--threads",
        "3",
        "--seconds",
        "9",
        "--longest",
        "4",
        "--seed",
        "4",
        "--verbose",
    ]
    command = [sys.executable, TOOL, *faults, *size]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed 0" in done.stdout


def notes(folder: Path, text: str = LOG) -> list[Note]:
    (folder / "log").write_text(text)
    return read_notes(folder / "log")


def test_what_holds(tmp_path: Path) -> None:
    found = notes(tmp_path)
    History("t", ["m1", "m3"]).check(found)
    assert count_beside(found, []) == 0


@pytest.mark.parametrize(
    ("marks", "more", "said"),
    [
        (["m1", "m2"], "", "m2 did not run"),
        (["m1", "m3"], "21.0 begin 3 m4 m2 a\n", "came after m3"),
        (["m1"], "21.0 begin 3 m4 m3 a\n", "step 2 is lost"),
        (["m1", "m3", "m5"], "", "m5 did not run"),
    ],
    ids=["half", "two writers", "lost", "unknown"],
)
def test_the_harness_sees(marks: list[str], more: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=said):
        History("t", marks).check(notes(tmp_path, LOG + more))


def test_agents_that_outlive_their_lease(tmp_path: Path) -> None:
    found = notes(tmp_path, LOG + "20.25 end 2 m2 - a\n")
    assert count_beside(found, [Fault("daemon killed", "a", 10.15, 14.0)]) == 1
    for fault in (
        Fault("cut of database", "a", 10.3, 30.0),
        Fault("daemon killed", "b", 11.0, 12.0),
    ):
        with pytest.raises(AssertionError, match="lived on beside"):
            count_beside(found, [fault])


@pytest.mark.parametrize(
    ("fault", "pause"),
    [
        (None, 10.0),
        (Fault("daemon killed", "a", 12.0, 30.0), 8.2),
        (Fault("daemon killed", "b", 12.0, 30.0), 10.0),
        (Fault("database killed", None, 12.0, 15.0), 5.2),
        (Fault("cut of objects", "a", 10.05, 13.0), 7.2),
    ],
    ids=["none", "of its machine", "of another", "database", "objects"],
)
def test_pauses_begin_with_a_fault(fault: Fault | None, pause: float, tmp_path: Path) -> None:
    faults = [] if fault is None else [fault]
    found = pauses(History("t", ["m1", "m3"]), notes(tmp_path), faults)
    assert max(one.seconds for one in found) == pytest.approx(pause)
