"""What must hold after the run of chaos_shared.py, and what is measured of it.

Each run of an agent has a mark, and notes outside the store when it begins, with the mark of the
step before, and when it ends. The next step begins only when the one before is recorded: so the
mark that it names was acknowledged, by whichever daemon.

- every machine reads the same history: steps 1 to n, none lost, doubled or half, its trees whole;
- each acknowledged mark is that of the recorded step of its index: nothing that was acknowledged
  is lost, and no two daemons recorded the same step;
- the agent of every recorded step ran, to its end;
- where a machine was cut off, its agents had ended when another machine ran their step;
- every thread went on within the TTL and `SLACK_S` after each fault, if a machine was sound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from casfs.store.graph import walk
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ENDED, Thread
from tests.support.engine import steps

LARGE, MARKS = "large", "marks"
AWAY = ("cut of objects", "cut of both", "database killed")  # as long as they last
OUTLIVED = ("daemon killed", "daemon stopped", "machine stopped")


class Fault(NamedTuple):
    """What was done to a machine, and when. `machine` is None for the database itself."""

    kind: str
    machine: str | None
    begin: float
    end: float


class Note(NamedTuple):
    """A line of an agent's log. `before`: the mark of the step before."""

    at: float
    what: str
    step: int
    mark: str
    before: str
    machine: str


@dataclass
class History:
    """A thread as it is recorded: the mark of each step."""

    id: str
    marks: list[str]

    def check(self, notes: list[Note]) -> None:
        by_mark: dict[str, set[str]] = {}
        for note in notes:
            by_mark.setdefault(note.mark, set()).add(note.what)
            if note.what == "begin" and note.step > 1:
                assert note.step - 2 < len(self.marks), f"{self.id}: step {note.step - 1} is lost"
                recorded = self.marks[note.step - 2]
                assert note.before == recorded, f"{self.id}: {note} came after {recorded}"
        for mark in self.marks:
            assert by_mark.get(mark) == {"begin", "end"}, f"{self.id}: {mark} did not run"


class Pause(NamedTuple):
    """How long a thread stood still, until when, and what had hit it since its last sign."""

    seconds: float
    thread: str
    until: float
    faults: list[Fault]


@dataclass
class Measures:
    steps: int = 0
    repeated: int = 0
    beside: int = 0
    pauses: list[Pause] = field(default_factory=list)


def read_notes(log: Path) -> list[Note]:
    found = []
    for line in log.read_text().splitlines():
        at, what, step, mark, before, machine = line.split()
        found.append(Note(float(at), what, int(step), mark, before, machine))
    return sorted(found)


def read_history(store: Store, thread: Thread, whole: bool) -> History:
    """Reads a thread as a machine sees it. `whole`: also each step's tree, and all it reaches."""
    assert (thread.status, thread.record["intent"]) == (ENDED, None), thread.record
    found = steps(store, thread)
    assert [step["index"] for step in found] == [*range(1, len(found) + 1)], "a gap"
    marks = [str(step["meta"]["mark"]) for step in found]
    for count, step in enumerate(found, 1):
        if whole or count == len(found):
            files = {one["name"]: one for one in store.node(step["workspace"]).payload["files"]}
            kept = store.get(files[MARKS]["digest"]["hash"]).decode().split()
            assert kept == marks[:count], f"{thread.id}: step {count} has the files of others"
            if LARGE in files:
                large = files[LARGE]["digest"]
                assert len(store.get(large["hash"])) == large["size_bytes"]
    if whole:
        assert [*walk(store, [thread.hash])]
    return History(thread.id, marks)


def check_machines(roots: Iterable[Path], logs: Path, faults: list[Fault]) -> Measures:
    """Checks all threads on all machines. Raises AssertionError."""
    measures, known = Measures(), dict[str, History]()
    for number, root in enumerate(roots):
        found: dict[str, History] = {}
        with Store.open(root) as store:
            for thread in threads.list_threads(store):
                found[thread.id] = read_history(store, thread, whole=not number)
        assert {*found} == {log.name for log in logs.iterdir() if log.name != "stop"}
        known = known or found
        assert found == known, "machines read different histories"
    for id, history in known.items():
        notes = read_notes(logs / id)
        history.check(notes)
        measures.steps += len(history.marks)
        measures.repeated += sum(note.what == "begin" for note in notes) - len(history.marks)
        measures.beside += count_beside(notes, faults)
        measures.pauses += pauses(history, notes, faults)
    return measures


def count_beside(notes: list[Note], faults: list[Fault]) -> int:
    """How many agents of a killed or stopped daemon outlived their lease, which no one could
    prevent. Raises AssertionError where the daemon was only cut off."""
    newest, count = None, 0
    for note in notes:
        if note.what == "begin":
            newest = note
        elif newest is not None and note.mark != newest.mark:
            began = next(one.at for one in notes if one.mark == note.mark)
            excused = any(
                fault.kind in OUTLIVED
                and fault.machine == note.machine
                and began - 1 <= fault.begin <= note.at
                for fault in faults
            )
            assert excused, f"{note} lived on beside {newest}"
            count += 1
    return count


def pauses(history: History, notes: list[Note], faults: list[Fault]) -> list[Pause]:
    """Finds how long it took until an agent began, from the last note or the last fault on that hit
    the machine which ran the thread, or all. The time in which the database was down, or the
    objects were cut off there, is left out."""
    times = [note.at for note in notes]

    def hits(fault: Fault) -> bool:
        last = bisect_right(times, fault.begin) - 1
        return fault.machine is None or (last >= 0 and notes[last].machine == fault.machine)

    found = list[Pause]()
    hit = [fault for fault in faults if hits(fault)]
    for before, note in pairwise(notes):
        if note.what != "begin":
            continue
        start = before.at
        within = [fault for fault in hit if fault.begin < note.at and fault.end > before.at]
        for fault in within:
            if before.at < fault.begin:
                start = max(start, fault.begin)
            if fault.kind in AWAY:
                start = max(start, min(fault.end, note.at))
        found.append(Pause(note.at - start, history.id, note.at, within))
    return found
