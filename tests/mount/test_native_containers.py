"""Containers on trees that the kernel shows alone: bound into one, and as the root of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.checkpoints import create
from casfs.store.store import Store
from casfs.system.store_mounts import mounted
from tests.mount.test_containers import (
    BUILT,
    PROJECT,
    committed,
    run,
)
from tests.support.containers import Container, Crun, Podman, a_system, ready
from tests.support.helpers import put_tree, read_tree, write_tree
from tests.support.native import needs_native
from tests.support.served import unmounted_after

pytestmark = needs_native


@pytest.fixture(params=[Podman, Crun])
def podman(request: pytest.FixtureRequest, runtime_dir: Path) -> Iterator[Container]:
    with ready(request.param, runtime_dir) as made:
        yield made


@pytest.fixture
def place(disk_store: Store, tmp_path: Path) -> Iterator[Path]:
    """Where trees are mounted, of a store with a system and a project."""
    for name, tree in (("system", a_system()), ("work", PROJECT)):
        folder = write_tree(tmp_path / name, tree)
        create.create(disk_store, name, folder, options=create.CreateOptions(defaults=False))
    with unmounted_after(tmp_path / "place") as folder:
        yield folder


def shown(store: Store, name: str, place: Path) -> Path:
    run(store, "tree", "mount", name, place / name)
    return place / name


def test_as_the_root_and_as_a_volume(disk_store: Store, place: Path, podman: Container) -> None:
    system, work = (shown(disk_store, name, place) for name in ("system", "work"))
    before = read_tree(system)
    done = podman(system, "cat /src/words; touch /src/new /new", ro={"/src": work})
    assert done.stdout.split() == ["one", "two", "three"], done.stderr
    assert done.returncode != 0
    assert done.stderr.count("Read-only file system") == 2
    assert read_tree(system) == before
    assert mounted(disk_store.root) == [], "no process of ours serves it"
    for path in (system, work):
        assert "goes on" not in run(disk_store, "tree", "umount", path)


def test_a_build_in_a_writable_one(disk_store: Store, place: Path, podman: Container) -> None:
    system, work = shown(disk_store, "system", place), place / "w"
    assert "backend: erofs-overlay" in run(disk_store, "workspace", "open", "work", work)
    done = podman(system, "cd /job && ./build && ls", rw={"/job": work})
    assert (done.returncode, done.stdout.split()) == (0, ["build", "loud", "out", "words"])
    assert committed(disk_store, work) == put_tree(disk_store, BUILT)


def test_a_writable_root(disk_store: Store, place: Path, podman: Container) -> None:
    writable = place / "w"
    run(disk_store, "workspace", "open", "system", writable)
    assert podman(writable, "ls /", rw={"/job": writable}).returncode == 0
    assert podman(writable, "echo new >/job/new", rw={"/job": writable}).returncode == 0
    root = committed(disk_store, writable)
    run(disk_store, "tree", "mount", root, place / "again")
    assert (place / "again/new").read_text() == "new\n"


def test_an_overlay_of_podman_over_it(disk_store: Store, place: Path, podman: Container) -> None:
    system = shown(disk_store, "system", place)
    before = read_tree(system)
    done = podman(f"{system}:O", "touch /new && ls /new")
    if done.returncode != 0:
        pytest.skip(f"this kernel stacks no overlay over it: {' '.join(done.stderr.split())}")
    assert done.stdout == "/new\n"
    assert read_tree(system) == before


def test_it_needs_nothing_of_ours(disk_store: Store, place: Path, podman: Container) -> None:
    """No process serves it, so none can be killed; not even the database is read."""
    system = shown(disk_store, "system", place)
    disk_store.close()
    hidden = disk_store.root / "store.db"
    os.rename(hidden, hidden.with_name("away"))
    try:
        assert podman(system, "ls /").returncode == 0
    finally:
        os.rename(hidden.with_name("away"), hidden)
