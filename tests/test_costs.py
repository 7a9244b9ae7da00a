"""What commands, a step and checkpoints cost, held by counts.

`tests/costs.json` has them, by version of Python. A group that has grown by more than TOLERANCE
fails, and what has grown in it is named. `tests/run.sh tests/test_costs.py --update-costs` writes
new ones, so that the diff of a change says what it makes dearer. What looking at a mounted tree
costs is held exactly by `tests/mount/test_budgets.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from casfs.checkpoints.create import create
from casfs.store.store import Store
from tests.support.costs import Group, modules, system_calls
from tests.support.engine import ONE, begin, says
from tests.support.new_store import init_store
from tests.support.programs import needs

COSTS = Path(__file__).parent / "costs.json"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TOLERANCE = 1.02
GROWN = 5  # causes that a failure names
COMMANDS = [  # THREAD, HASH and DIRECTORY are replaced
    "action list",
    "agent list",
    "blame DIRECTORY/file",
    "cat work:file",
    "checkpoint create --help",
    "checkpoint diff work work",
    "checkpoint list",
    "config",
    "diff work work",
    "get HASH",
    "heads",
    "help status",
    "log work",
    "ls work",
    "mark seen",
    "node get HASH",
    "plugin list",
    "refs HASH",
    "remote list",
    "schema list",
    "search needle",
    "stats",
    "status",
    "status DIRECTORY",
    "thread cancel THREAD",
    "thread list",
    "thread log THREAD",
    "thread show THREAD",
    "workflow list",
    "workflow show sample",
    "workspace list",
    "--help",
    "--version",
]

Costs = dict[str, dict[str, Group]]  # by measure, group and cause


def measured(measure: str, folder: Path) -> dict[str, Group]:
    command = [sys.executable, "-m", "tests.support.costs", measure, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    groups: dict[str, Group] = json.loads(done.stdout.splitlines()[-1])
    return groups


def recorded() -> dict[str, Costs]:
    costs: dict[str, Costs] = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    return costs


def check(measure: str, groups: Mapping[str, Group], *, update: bool) -> None:
    """Compares with what is recorded, or records it."""
    costs = recorded()
    if update:
        costs.setdefault(PYTHON, {})[measure] = dict(groups)
        COSTS.write_text(json.dumps(costs, indent=1, sort_keys=True) + "\n")
        return
    if PYTHON not in costs:
        pytest.skip(f"no costs of Python {PYTHON} are recorded")
    assert groups.keys() == costs[PYTHON][measure].keys()
    grown = [
        line
        for name, group in groups.items()
        for line in growth(name, costs[PYTHON][measure][name], group)
    ]
    assert not grown, "\n".join(grown)


def growth(name: str, before: Group, now: Group) -> list[str]:
    """Returns a line for the group if it has grown, and for each of the causes that grew most."""
    total, limit = sum(now.values()), sum(before.values()) * TOLERANCE
    if total <= limit:
        return []
    added = {cause: number - before.get(cause, 0) for cause, number in now.items()}
    most = sorted(added, key=lambda cause: -added[cause])[:GROWN]
    causes = ", ".join(f"{cause} +{added[cause]:.2f}" for cause in most if added[cause] > 0)
    return [f"{name}: {sum(before.values()):.2f} -> {total:.2f}: {causes}"]


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-costs"))


@pytest.mark.parametrize("measure", ["step", "checkpoints"])
def test_calls_statements_pages_and_bytes(measure: str, tmp_path: Path, update: bool) -> None:
    check(measure, measured(measure, tmp_path), update=update)


@needs("strace")
def test_system_calls(tmp_path: Path, update: bool) -> None:
    check("system calls", system_calls(tmp_path), update=update)


def test_modules_of_commands(tmp_path: Path, update: bool) -> None:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "file").write_text("needle\n")
    with init_store(tmp_path / "store") as store:
        known = planted(store, directory)
    groups = {}
    for command in COMMANDS:
        words = [
            known.get(word, word).replace("DIRECTORY", str(directory)) for word in command.split()
        ]
        groups[command] = modules(tmp_path / "store", *words)
    check("modules", groups, update=update)


def planted(store: Store, directory: Path) -> dict[str, str]:
    """Records the directory and begins a thread; returns the words that stand for them."""
    checkpoint = create(store, "work", directory).checkpoint
    thread = begin(store, ONE, {"a": says({})}, workspace=str(checkpoint.root))
    return {"THREAD": thread.id, "HASH": str(checkpoint.root)}


def test_what_has_grown_is_named() -> None:
    before = {"casfs/store/store.py": 50.0, "casfs/node.py": 50.0}
    assert growth("calls", before, {**before, "casfs/node.py": 52.0}) == []
    assert growth("calls", before, {**before, "casfs/node.py": 52.1, "new.py": 1.0}) == [
        "calls: 100.00 -> 103.10: casfs/node.py +2.10, new.py +1.00"
    ]
    assert growth("calls", before, {"casfs/store/store.py": 99.0}) == []
