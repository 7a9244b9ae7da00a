"""Open workspaces: opened, committed, discarded, closed, in each strategy that there is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint, create
from casfs.errors import Conflict, Failed, Invalid, NotFound, Refused
from casfs.maintenance import gc
from casfs.mount.mount_points import unmount
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Properties
from casfs.store.store import Store
from casfs.system.store_mounts import mounted
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle, overlay_mount, registry, strategies
from casfs.workspaces.commit import commit_workspace, is_dirty
from casfs.workspaces.registry import Workspace
from tests.support.engine import Cli
from tests.support.helpers import LARGE, Program, put_tree, read_tree, take, write_tree
from tests.support.maintenance import age
from tests.support.served import Mount, serving, unmounted_after
from tests.support.strategies import able, skip_without

SAMPLE = {"a": {"f": b"one", "g": b"two" * 1000}, "run": Program(b"#!"), "empty": {}}
CHANGED = {**SAMPLE, "a": {"f": b"changed", "new": b"new"}}
CHANGE = "rm a/g && printf changed >a/f && printf new >a/new"


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount overlays")
NATIVELY = skip_without(strategies.NATIVE)
EACH = pytest.mark.parametrize("strategy", [able(name) for name in strategies.STRATEGIES])


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """Where workspaces are opened."""
    with unmounted_after(tmp_path / "work") as folder:
        yield folder


def trees(mount: Mount) -> Callable[[DatedTree], Path]:
    return lambda root: mount.path / "trees" / root.name


def opened(
    mount: Mount, path: Path, strategy: str, root: str | RecordedState | None = None, **more: object
) -> Workspace:
    state = root or put_tree(mount.store, SAMPLE)
    return lifecycle.open(
        mount.store,
        RecordedState(state) if isinstance(state, str) else state,
        path,
        strategies.STRATEGIES[strategy],
        trees(mount),
        **more,
    )  # type: ignore[arg-type]


def run(path: Path, script: str) -> str:
    """A command in a workspace."""
    command = ["sh", "-c", script]
    return subprocess.run(command, cwd=path, capture_output=True, text=True, check=True).stdout


def left(mount: Mount) -> list[str]:
    heads = [name for name, _ in mount.store.heads.list(registry.HEADS)]
    return heads + os.listdir(mount.store.root / "workspaces")


@EACH
def test_a_life(mount: Mount, work: Path, strategy: str) -> None:
    store, path = mount.store, work / "w"
    first = opened(mount, path, strategy)
    assert run(path, "cat a/f; ls") == "onea\nempty\nrun\n"
    assert not is_dirty(store, first)
    run(path, CHANGE)
    assert is_dirty(store, first)
    with pytest.raises(Refused, match="not committed"):
        lifecycle.close(store, first)
    made = commit_workspace(store, registry.find(store, path))
    assert made.root == put_tree(store, CHANGED)
    assert made.checkpoint is None
    assert commit_workspace(store, registry.find(store, path)).root == made.root
    run(path, "mkdir more; mv a more; chmod -x run")
    second = registry.find(store, path)
    assert second.root == made.root
    third = commit_workspace(store, second)
    assert third.root == put_tree(store, {"more": {"a": CHANGED["a"]}, "run": b"#!", "empty": {}})
    lifecycle.close(store, registry.find(store, path))
    assert not path.exists()
    assert left(mount) == []
    assert not overlay_mount.is_mounted(path)


@EACH
def test_discard_goes_back_to_the_last_commit(mount: Mount, work: Path, strategy: str) -> None:
    store, path = mount.store, work / "w"
    opened(mount, path, strategy)
    run(path, CHANGE)
    committed = commit_workspace(store, registry.find(store, path)).root
    run(path, "rm -r a run; mkdir -p x/y; touch x/y/z; chmod 0 x/y")
    found = lifecycle.discard(store, registry.find(store, path), trees(mount))
    assert found.root == found.record["base"] == committed
    assert not is_dirty(store, found)
    assert run(path, "cat a/f a/new; ls") == "changednewa\nempty\nrun\n"
    run(path, "rm -r a")
    assert commit_workspace(store, found).root == put_tree(
        store, {"run": Program(b"#!"), "empty": {}}
    )
    lifecycle.close(store, registry.find(store, path))
    assert left(mount) == []


@EACH
def test_closing_by_force_loses_changes(mount: Mount, work: Path, strategy: str) -> None:
    path = work / "w"
    path.mkdir()
    opened(mount, path, strategy)
    run(path, CHANGE)
    lifecycle.close(mount.store, registry.find(mount.store, path), force=True)
    assert os.listdir(path) == [], "it was there before, so it stays"
    assert left(mount) == []


@EACH
def test_the_directory_is_the_tree(mount: Mount, work: Path, strategy: str) -> None:
    path = work / "w"
    found = opened(mount, path, strategy)
    assert take(mount.store, path) == found.root
    assert found.state == "open"
    write_tree(path / "a", {"f": b"by hand"})
    assert commit_workspace(mount.store, found).root == take(mount.store, path)


@EACH
def test_a_checkpoint_goes_on(mount: Mount, work: Path, strategy: str, tmp_path: Path) -> None:
    store, path = mount.store, work / "w"
    source = write_tree(tmp_path / "source", SAMPLE)
    origin = create.create(store, "ws", source).checkpoint
    opened(mount, path, strategy, origin.root, origin=origin)
    run(path, CHANGE)
    made = commit_workspace(store, registry.find(store, path), "better")
    one = made.checkpoint
    assert one is not None
    assert checkpoint.listing(store, "ws") == [origin, one]
    assert (one.root, one.message) == (made.root, "better")
    node = store.node(one.hash, "checkpoint").payload
    assert node["previous"] == origin.hash
    assert node["changed_files"] == ["a/f", "a/g", "a/new"]
    assert node["stats"] == {"files": 3, "bytes": 12, "added": 1, "modified": 1, "deleted": 1}
    assert commit_workspace(store, registry.find(store, path)).checkpoint is None
    create.create(store, "ws", source)
    run(path, "rm a/new")
    last = commit_workspace(store, registry.find(store, path)).checkpoint
    assert last is not None
    node = store.node(last.hash, "checkpoint").payload
    assert node["stats"] == {"files": 2, "bytes": 9, "added": 0, "modified": 1, "deleted": 1}
    lifecycle.close(store, registry.find(store, path))


@pytest.mark.parametrize(
    "strategy", [able(strategies.NATIVE), able(strategies.OVERLAY), able(strategies.FUSE)]
)
def test_read_only(mount: Mount, work: Path, strategy: str) -> None:
    path = work / "w"
    found = opened(mount, path, strategy, read_only=True)
    assert read_tree(path) == read_tree(mount.path / "trees" / found.root)
    with pytest.raises(OSError, match="Read-only"):
        (path / "a/f").write_text("no")
    for refused in (
        lambda: commit_workspace(mount.store, found),
        lambda: lifecycle.discard(mount.store, found, trees(mount)),
    ):
        with pytest.raises(Refused, match="read-only"):
            refused()
    lifecycle.close(mount.store, found)
    assert left(mount) == []


def test_a_copy_cannot_be_read_only(mount: Mount, work: Path) -> None:
    with pytest.raises(Refused, match="read-only"):
        opened(mount, work / "w", strategies.COPY, read_only=True)


@EACH
def test_gc_keeps_what_a_workspace_stands_on(mount: Mount, work: Path, strategy: str) -> None:
    store, path = mount.store, work / "w"
    found = opened(mount, path, strategy)
    run(path, CHANGE)
    committed = commit_workspace(store, found).root
    age(store)
    gc.collect(store)
    assert list(tree.walk(store, found.root))
    assert list(tree.walk(store, committed))
    lifecycle.close(store, registry.find(store, path))
    age(store)
    gc.collect(store)
    with pytest.raises(NotFound):
        store.get(committed)


@EACH
def test_preserved_times_and_modes_survive(mount: Mount, work: Path, strategy: str) -> None:
    store, path = mount.store, work / "w"
    with store.batch() as batch:
        kept = File(b"kept", batch.put(b"kept"), False, Properties((5, 7), 0o600))
        root = batch.put_node("directory", directory.encode([kept], Properties((9, 0), 0o750)))
    found = opened(mount, path, strategy, root.hash)
    assert not is_dirty(store, found)
    (path / "new").write_text("new")
    (path / "new").chmod(0o640)
    made = tree.load(store, commit_workspace(store, found).root)
    assert made[b"kept"] == kept
    properties = made[b"new"].properties  # type: ignore[union-attr]
    assert properties is not None
    assert properties.unix_mode == 0o640
    assert properties.mtime == divmod((path / "new").stat().st_mtime_ns, 1_000_000_000)


# -- what goes wrong ----------------------------------------------------------------------


def test_directories_that_will_not_do(mount: Mount, work: Path) -> None:
    (work / "file").touch()
    write_tree(work / "full", {"x": b""})
    for path, reason in (
        (work / "file", "is not a directory"),
        (work / "full", "not empty"),
        (mount.store.root / "w", "in one another"),
        (mount.store.root.parent, "in one another"),
    ):
        with pytest.raises(Refused, match=reason):
            opened(mount, path, strategies.COPY)
    with pytest.raises(Invalid, match="UTF-8"):
        opened(mount, work / os.fsdecode(b"caf\xe9"), strategies.COPY)
    with pytest.raises(NotFound):
        opened(mount, work / "w", strategies.COPY, "0f" * 32)
    with pytest.raises(NotFound, match="not an open workspace"):
        registry.find(mount.store, work)
    assert left(mount) == []


@AS_ROOT
def test_what_cannot_be_mounted_leaves_nothing(mount: Mount, work: Path) -> None:
    root = put_tree(mount.store, SAMPLE)
    strategy = strategies.STRATEGIES[strategies.OVERLAY]
    with pytest.raises(Failed, match="cannot mount"):
        lifecycle.open(
            mount.store, RecordedState(root), work / "w", strategy, lambda root: work / "none"
        )
    assert left(mount) == []
    assert os.listdir(work) == []


@EACH
def test_a_directory_is_one_workspace(mount: Mount, work: Path, strategy: str) -> None:
    found = opened(mount, work / "w", strategy)
    with pytest.raises(Conflict, match="workspace already"):
        opened(mount, work / "w", strategy)
    assert registry.listing(mount.store) == [found]
    lifecycle.close(mount.store, found)


@pytest.mark.parametrize(
    "strategy", [able(strategies.NATIVE), able(strategies.OVERLAY), able(strategies.FUSE)]
)
def test_one_that_is_in_use_stays_open(mount: Mount, work: Path, strategy: str) -> None:
    found = opened(mount, work / "w", strategy)
    with (found.path / "a/f").open():
        for end in (
            lambda: lifecycle.close(mount.store, found),
            lambda: lifecycle.discard(mount.store, found, trees(mount)),
        ):
            with pytest.raises(Refused, match="busy"):
                end()
    assert found.state == "open"
    lifecycle.close(mount.store, found)


@pytest.mark.parametrize(
    "strategy", [able(strategies.NATIVE), able(strategies.OVERLAY), able(strategies.FUSE)]
)
def test_after_a_reboot_it_is_mounted_again(mount: Mount, work: Path, strategy: str) -> None:
    path = work / "w"
    found = opened(mount, path, strategy)
    run(path, CHANGE)
    lifecycle.detach(found)
    assert found.state == "unmounted"
    assert os.listdir(path) == []
    with pytest.raises(Conflict, match="close it first"):
        opened(mount, path, strategy, put_tree(mount.store, {}))
    with pytest.raises(Refused, match="open it again"):
        registry.check_open(found)
    opened(mount, path, strategy)
    assert take(mount.store, path) == put_tree(mount.store, CHANGED)
    lifecycle.detach(found)
    assert commit_workspace(mount.store, found).root == put_tree(mount.store, CHANGED)
    lifecycle.close(mount.store, registry.find(mount.store, path))


@pytest.mark.parametrize("strategy", [able(strategies.OVERLAY)])
def test_when_the_mount_dies_nothing_is_lost(
    disk_store: Store, tmp_path: Path, work: Path, strategy: str
) -> None:
    path = work / "w"
    with serving(disk_store, tmp_path / "mnt") as mount:
        opened(mount, path, strategy)
        run(path, CHANGE)
        mount.kill()
    with pytest.raises(OSError, match="endpoint"):
        os.listdir(path)
    with serving(disk_store, tmp_path / "mnt2") as mount:
        opened(mount, path, strategy)
        assert take(disk_store, path) == put_tree(disk_store, CHANGED)
        found = registry.find(disk_store, path)
        lifecycle.close(disk_store, found, force=True)


@pytest.mark.parametrize("strategy", [able(strategies.OVERLAY)])
def test_an_unmounted_mount_serves_until_the_overlay_is_gone(
    mount: Mount, work: Path, strategy: str
) -> None:
    found = opened(mount, work / "w", strategy)
    unmount(mount.path)
    assert (found.path / "a/f").read_bytes() == b"one"
    lifecycle.close(mount.store, found)
    assert mount.supervisor.wait(60) == 0


# -- the command line ---------------------------------------------------------------------


@EACH
def test_the_command_line(cli: Cli, work: Path, tmp_path: Path, strategy: str) -> None:
    source, path = write_tree(tmp_path / "source", SAMPLE), work / "w"
    cli("checkpoint", "create", "ws", source)
    said = cli("workspace", "open", "ws", path, "--backend", strategy)
    assert f"backend: {strategy}" in said.text
    (listed,) = cli("workspace", "list", "--json").json
    assert (listed["directory"], listed["root"], listed["backend"]) == (
        str(path),
        said.word,
        strategy,
    )
    assert listed["state"] == "open"
    run(path, CHANGE)
    assert "not committed" in cli("workspace", "close", path, code=4).err
    made = cli("workspace", "commit", path, "-m", "done")
    with Store.open(cli.root) as store:
        assert made.word == put_tree(store, CHANGED)
    assert made.text.split()[1].startswith("ws@")
    assert len(cli("checkpoint", "list", "ws", "--json").json) == 2
    assert cli("workspace", "discard", path, "--json").json["root"] == made.word
    shown = cli("status", "--json").json["mounts"]
    assert len(shown) == strategies.STRATEGIES[strategy].over_fuse, "the workspaces' own mount"
    cli("workspace", "close", path)
    assert cli("workspace", "list").out == b""
    assert "not an open workspace" in cli("workspace", "commit", path, code=3).err
    assert cli("status", "--json").json["mounts"] == [], "it ends with the last one"


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        pytest.param((), strategies.NATIVE, id="best", marks=NATIVELY),
        pytest.param(
            ("--backend", strategies.NATIVE), strategies.NATIVE, id="native", marks=NATIVELY
        ),
        pytest.param(("--backend", "overlay"), strategies.OVERLAY, id="overlay", marks=AS_ROOT),
        pytest.param(("--backend", "copy"), strategies.COPY, id="copy"),
    ],
)
def test_the_backend_is_chosen_and_printed(
    cli: Cli, work: Path, tmp_path: Path, options: tuple[str, ...], strategy: str, read_only: bool
) -> None:
    path = work / "w"
    cli("checkpoint", "create", "ws", write_tree(tmp_path / "source", SAMPLE))
    command = ("workspace", "open", "ws", path, *options, *["--read-only"] * read_only)
    if read_only and strategy == strategies.COPY:
        assert "cannot be read-only" in cli(*command, code=4).err
        return
    assert f"backend: {strategy}\n" in cli(*command).text
    (listed,) = cli("workspace", "list", "--json").json
    assert (listed["backend"], listed["readOnly"]) == (strategy, read_only)
    if read_only:
        assert "is read-only" in cli("workspace", "commit", path, code=4).err
    else:
        (path / "empty/new").touch()
        root = cli("workspace", "commit", path).word
        with Store.open(cli.root) as store:
            assert root == put_tree(store, {**SAMPLE, "empty": {"new": b""}})
    cli("workspace", "close", path)


@pytest.mark.parametrize("strategy", [able(strategies.NATIVE), able(strategies.OVERLAY)])
def test_new_modes_and_places_cost_no_content(mount: Mount, work: Path, strategy: str) -> None:
    """The upper has marks for them, and a commit understands those."""
    tree = {"d": {"big": LARGE, "more": LARGE[1:]}, "big": LARGE}
    found = opened(mount, work / "w", strategy, put_tree(mount.store, tree))
    run(found.path, "chmod +x big; mv big d/moved; chmod -x d/moved; chmod +x d/more; mv d e")
    made = commit_workspace(mount.store, found)
    moved = {"e": {"big": LARGE, "more": Program(LARGE[1:]), "moved": LARGE}}
    assert made.root == put_tree(mount.store, moved)
    assert (made.report.read, made.report.read_bytes) == (0, 0)
    lifecycle.close(mount.store, registry.find(mount.store, found.path))


def test_by_hash_there_is_no_checkpoint(cli: Cli, work: Path, tmp_path: Path) -> None:
    root = cli("tree", "build", write_tree(tmp_path / "source", SAMPLE)).word
    assert cli("workspace", "open", root[:12], work / "w").word == root
    made = cli("workspace", "commit", work / "w", "--json").json
    assert (made["root"], made["checkpoint"]) == (root, None)
    cli("workspace", "close", work / "w")


@pytest.mark.parametrize(
    "strategy", [able(strategies.NATIVE), able(strategies.OVERLAY), able(strategies.FUSE)]
)
def test_umount_keeps_a_workspace(cli: Cli, work: Path, tmp_path: Path, strategy: str) -> None:
    path = work / "w"
    cli("checkpoint", "create", "ws", write_tree(tmp_path / "source", SAMPLE))
    cli("workspace", "open", "ws", path, "--backend", strategy)
    (path / "new").write_text("new")
    cli("umount", path)
    assert "no casfs mount" in cli("umount", path, code=3).err
    assert cli("workspace", "list", "--json").json[0]["state"] == "unmounted"
    cli("workspace", "open", "ws", path)
    assert (path / "new").read_text() == "new"
    cli("workspace", "close", path, "--force")


@AS_ROOT
def test_a_mount_that_is_there_is_used(cli: Cli, work: Path, tmp_path: Path) -> None:
    cli("checkpoint", "create", "ws", write_tree(tmp_path / "source", SAMPLE))
    (tmp_path / "mnt").mkdir()
    cli("mount", tmp_path / "mnt")
    cli("workspace", "open", "ws", work / "w", "--backend", "overlay", "--read-only")
    assert mounted(cli.root) == [tmp_path / "mnt"]
    assert read_tree(work / "w") == read_tree(tmp_path / "source")
    cli("workspace", "close", work / "w")
