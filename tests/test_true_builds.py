"""What is recorded and made anew builds right: real tools, whose programs say what they were
built from. Longer and at random: `python tests/harness/true_builds.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint, create
from casfs.directories.operations import Intent, Verb
from casfs.store.store import Store
from casfs.threads.threads import ENDED
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.apply import apply
from casfs.trees.restore.options import RestoreOptions
from casfs.trees.restore.restore import restore
from casfs.workspaces import lifecycle, strategies
from casfs.workspaces.desk import Desk
from engine.runtime.workspace import COPYING, Workspaces
from tests.engine.runtime.test_local_resume import whole
from tests.mount.test_workspaces import EACH, opened, run
from tests.support import programs
from tests.support.builds import TOOLS, Tool
from tests.support.desks import OVER_IMAGES
from tests.support.engine import Cli, begin, carry_on, fork, loop, says
from tests.support.restores import take_back_last
from tests.support.served import serving, unmounted_after
from tests.support.strategies import skip_without

HARNESS = Path(__file__).parent / "harness" / "true_builds.py"
NAMED = {tool.name: tool for tool in TOOLS}
ALL = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
QUICK = pytest.mark.parametrize(
    "tool",
    [NAMED[name] for name in ("make with cat", "ninja", "python")],
    ids=lambda tool: tool.name,
)


@pytest.fixture
def project(tmp_path: Path, tool: Tool) -> Path:
    programs.require(*tool.programs)
    return tool.create(tmp_path / "project")


def recorded(store: Store, project: Path) -> RecordedState:
    """The state of the next checkpoint."""
    return checkpoint.recorded(store, create.create(store, "p", project).checkpoint)


def built_twice(store: Store, tool: Tool, project: Path) -> tuple[RecordedState, RecordedState]:
    """Returns two states that were recorded right after a build, with an edit between."""
    tool.make(project)
    first = recorded(store, project)
    tool.edit(project, tool.edited[0], "7")
    assert tool.make(project)
    return first, recorded(store, project)


def check(tool: Tool, place: Path, folder: Path, *, is_idle: bool) -> None:
    """Builds, and again after an edit; `is_idle`: there is nothing to build at first."""
    is_built = tool.make(place)
    if (place / tool.output).exists() and is_idle:
        assert not is_built, "it did not change, and was built again"
    assert tool.says(place) == tool.says_when_clean(place, folder / "clean")
    tool.edit(place, tool.edited[1], "8")
    assert tool.make(place)
    assert tool.says(place) == tool.says_when_clean(place, folder / "clean")
    assert "8" in tool.says(place)


# -- checkpoints ------------------------------------------------------------------------------


@ALL
def test_restored_over_a_built_directory(
    disk_store: Store, project: Path, tool: Tool, tmp_path: Path
) -> None:
    first, second = built_twice(disk_store, tool, project)
    is_recorded = tree.find(disk_store, first.tree, tool.output.encode()) is not None
    restore(disk_store, first, project)
    tool.make(project)
    assert tool.says(project) == tool.says_when_clean(project, tmp_path / "clean")
    assert "7" not in tool.says(project)
    restore(disk_store, second, project, RestoreOptions(force=True))
    assert "7" in tool.says_when_clean(project, tmp_path / "clean")
    check(tool, project, tmp_path, is_idle=is_recorded and tool.trusts_order)


@QUICK
def test_restored_into_nothing(
    disk_store: Store, project: Path, tool: Tool, tmp_path: Path
) -> None:
    for number, state in enumerate(built_twice(disk_store, tool, project)):
        restore(disk_store, state, tmp_path / f"{number}")
        check(tool, tmp_path / f"{number}", tmp_path, is_idle=tool.name != "python")


@QUICK
def test_undone(disk_store: Store, project: Path, tool: Tool, tmp_path: Path) -> None:
    first, _ = built_twice(disk_store, tool, project)
    tool.edit(project, tool.edited[2], "9")
    options = RestoreOptions(force=True, operation=Intent(Verb.RESTORE, "first"))
    restore(disk_store, first, project, options)
    tool.make(project)
    take_back_last(disk_store, project)
    tool.make(project)
    assert sorted(tool.says(project)) == ["0", "7", "9"]
    assert tool.says(project) == tool.says_when_clean(project, tmp_path / "clean")


@ALL
def test_applied_to_a_built_directory(
    disk_store: Store, project: Path, tool: Tool, tmp_path: Path
) -> None:
    (project / ".casfsignore").write_text(f"{tool.output}\n*.o\n.ninja*\n*.tsbuildinfo\n")
    first, second = built_twice(disk_store, tool, project)
    restore(disk_store, first, project)
    tool.make(project)
    apply(disk_store, first, second, project, label="it")
    assert tool.make(project)
    assert "7" in tool.says(project)
    check(tool, project, tmp_path, is_idle=True)


def test_restored_when_the_clock_went_back(disk_store: Store, tmp_path: Path) -> None:
    """What is built from files of the future is always built again, or never: it is said."""
    tool = NAMED["make with cat"]
    project = tool.create(tmp_path / "project")
    first, _ = built_twice(disk_store, tool, project)
    later = (project / "main.c").stat().st_mtime_ns + 3600 * 10**9
    os.utime(project / "main.c", ns=(later, later))
    done = restore(disk_store, first, project)
    assert done.outcome.from_future
    assert (project / "common.h").stat().st_mtime_ns > later


@pytest.mark.parametrize("year", [-20_000_000_000, -1, 0, 4_300_000_000, 15_000_000_000])
def test_any_time_comes_back(disk_store: Store, tmp_path: Path, year: int) -> None:
    """Those that the file system can have: of ext4 from 1901 to 2446."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_text("f")
    os.utime(source / "f", ns=(0, year * 10**9 + 7))
    kept = (source / "f").stat().st_mtime_ns
    restore(disk_store, recorded(disk_store, source), tmp_path / "back")
    assert (tmp_path / "back/f").stat().st_mtime_ns == kept


def test_a_record_without_times_is_dated_as_it_is_written(
    disk_store: Store, tmp_path: Path
) -> None:
    tool = NAMED["make with cat"]
    project = tool.create(tmp_path / "project")
    first, second = (RecordedState(state.tree) for state in built_twice(disk_store, tool, project))
    restore(disk_store, first, project)
    restore(disk_store, second, tmp_path / "new")
    for place in (project, tmp_path / "new"):
        tool.edit(place, "a.c", "8")
        assert tool.make(place)
        assert "8" in tool.says(place)
    assert recorded(disk_store, tmp_path / "new").times is not None


# -- threads ----------------------------------------------------------------------------------


KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(COPYING, id="copy"),
        pytest.param(OVER_IMAGES, id="overlay", marks=skip_without(strategies.NATIVE)),
    ],
)


@pytest.fixture
def workspaces(disk_store: Store) -> Iterator[list[Desk]]:
    """Removed after the test."""
    made: list[Desk] = []
    yield made
    for one in made:
        one.remove()


@KINDS
@ALL
def test_steps_of_a_thread(
    disk_store: Store,
    project: Path,
    tool: Tool,
    kind: Workspaces,
    workspaces: list[Desk],
    tmp_path: Path,
) -> None:
    def begun(state: RecordedState) -> Desk:
        """As a new process begins a step: after a kill, and of a fork."""
        folder = disk_store.root / "workspaces" / f"{len(workspaces)}"
        workspaces.append(Desk(disk_store, folder, preferred=kind.preferred))
        workspaces[-1].reset(state)
        return workspaces[-1]

    work = begun(whole(disk_store, project))
    assert tool.make(work.path)
    built = work.record()
    work.reset(built)
    tool.edit(work.path, tool.edited[0], "7")
    edited = work.record()
    work.reset(edited)
    assert tool.make(work.path), "the tester runs the old program"
    assert "7" in tool.says(work.path)
    again = work.record()
    work.reset(edited)  # a retry
    assert tool.make(work.path)
    assert tool.says(work.path) == tool.says_when_clean(work.path, tmp_path / "clean")
    work.reset(built)
    assert not tool.make(work.path)
    assert "7" not in tool.says(work.path)
    for state, value in ((built, "0"), (again, "7")):
        other = begun(state)
        assert not tool.make(other.path)
        assert value in tool.says(other.path)
        check(tool, other.path, tmp_path, is_idle=True)


@KINDS
async def test_a_workflow_in_which_one_builds_and_one_edits(
    disk_store: Store, tmp_path: Path, kind: Workspaces
) -> None:
    """The tester runs what the coder wrote; so does that of a fork."""
    tool, said = NAMED["make with cat"], tmp_path / "said"
    project = tool.create(tmp_path / "project")
    script = (
        "if [ -e turn ]; then rm turn; sed -i s/value=./value=7/ a.c;"
        f" else touch turn; make prog; grep -o value=. prog | tr '\\n' ' ' >>{said}; fi"
    )
    made = begin(disk_store, loop(3), {"a": says({}, script)}, whole(disk_store, project))
    ended = await carry_on(disk_store, made, workspaces=kind)
    assert ended.status == ENDED, ended.record["reason"]
    before, after = "value=0 value=0 value=0 ", "value=7 value=0 value=0 "
    assert said.read_text() == before + after
    await carry_on(disk_store, fork(disk_store, ended, 1), workspaces=kind)
    assert said.read_text() == before + after + after


# -- mounts and workspaces --------------------------------------------------------------------


@QUICK
def test_copied_out_of_a_mount(
    disk_store: Store, project: Path, tool: Tool, tmp_path: Path
) -> None:
    tool.make(project)
    made = create.create(disk_store, "p", project).checkpoint
    with serving(disk_store, tmp_path / "mnt") as mount:
        subprocess.run(
            ["cp", "-a", mount.path / "trees/p" / made.id, tmp_path / "copy"], check=True
        )
    check(tool, tmp_path / "copy", tmp_path, is_idle=tool.name != "python")


@EACH
def test_in_an_open_workspace(disk_store: Store, tmp_path: Path, strategy: str) -> None:
    tool = NAMED["make with cat"]
    first, second = built_twice(disk_store, tool, tool.create(tmp_path / "project"))
    with (
        serving(disk_store, tmp_path / "mnt") as mount,
        unmounted_after(tmp_path / "work") as folder,
    ):
        for state, value in ((first, "0"), (second, "7")):
            path = folder / f"w{value}"
            made = opened(mount, path, strategy, state)
            assert "is up to date" in run(path, "make prog")
            script = "sed -i s/value=./value=8/ a.c && make prog && cat prog"
            assert "value=8" in (said := run(path, script))
            assert f'COMMON "value={value}"' in said
            lifecycle.close(disk_store, made, force=True)


# -- at random --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count"), [("make with cat", 6), ("ninja", 3), ("python", 3), ("cargo", 1)]
)
def test_sequences_at_random(name: str, count: int) -> None:
    programs.require(*NAMED[name].programs)
    done = subprocess.run(
        [sys.executable, HARNESS, "--sequences", str(count), "--tool", name, "--seed", "77"],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"sequences {count}, untrue 0" in done.stdout


def test_bisect_builds_each_version(cli: Cli, tmp_path: Path) -> None:
    """Also one that was recorded after an edit, and before it was built."""
    tool = NAMED["make with cat"]
    project = tool.create(tmp_path / "project")
    tool.make(project)
    made = []
    for name, value in (("main.c", "1"), ("common.h", "2"), ("a.c", "7"), ("main.c", "3")):
        tool.edit(project, name, value)
        made.append(cli("checkpoint", "create", "p", project).word)
    check = "make prog >/dev/null && ! grep -q value=7 prog"
    found = cli("bisect", "p", "--json", "--", "sh", "-c", check).json["found"]
    assert [one["version"]["revision"] for one in found] == [f"p@{made[2]}"]
