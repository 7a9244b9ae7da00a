"""The structure of the code: what may import what, and where each outside library is used.

Each list below is an order: a module imports only modules above it, in its own list or in
the trunk. So the two branches never meet. `casfs.cli` stands above all and nothing
imports it. A module that is in no list fails: give a new one its place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TRUNK = """
    schemas casfs casfs.errors casfs.digest casfs.canonical casfs.log casfs.locks casfs.kernel
    casfs.mount.signals
    casfs.scratch casfs.zstd casfs.groups
    casfs.backend casfs.backend.memo casfs.backend.memory casfs.backend.sqlite
    casfs.backend.files casfs.backend.private
    casfs.backend.objects casfs.backend.rows casfs.backend.sweep casfs.backend.disk
    casfs.backend.seal
    casfs.nodes casfs.nodes.keywords casfs.nodes.schema casfs.nodes.directory casfs.nodes.node
    casfs.nodes.registry
    casfs.batch casfs.store casfs.config casfs.walk
    casfs.trees casfs.trees.tree casfs.trees.matching casfs.trees.textdiff casfs.trees.patch
    casfs.trees.diffstat
    casfs.trees.gitignore casfs.trees.ignore casfs.trees.intake casfs.trees.index
    casfs.trees.readers
    casfs.trees.plan casfs.trees.snapshot
    casfs.trees.fill casfs.trees.sync casfs.trees.restored casfs.trees.restore
    casfs.checkpoint casfs.recording casfs.threads
    casfs.erofs casfs.erofs.layout casfs.erofs.dirents casfs.erofs.xattrs casfs.erofs.writer
    casfs.images.tree casfs.images
    casfs.workspaces casfs.workspaces.layers casfs.workspaces.overlay casfs.workspaces.native
    casfs.workspaces.ways
    casfs.workspaces.record
    casfs.advance
    casfs.workspaces.workspace
    casfs.child
    casfs.actions casfs.actions.outputs casfs.actions.cache casfs.actions.nearest
    casfs.actions.runner
    casfs.plugins casfs.plugins.sources casfs.plugins.transfer
    casfs.upkeep casfs.upkeep.catalogue casfs.upkeep.gc casfs.upkeep.fsck casfs.upkeep.repair
    casfs.upkeep.rehearsal casfs.upkeep.archive casfs.upkeep.search
""".split()
MOUNT = """
    casfs.fuse casfs.fuse.errors casfs.fuse.vnode casfs.fuse.table casfs.fuse.inodes
    casfs.fuse.moves casfs.fuse.reader casfs.fuse.blobs casfs.fuse.trees casfs.fuse.nodes
    casfs.fuse.stats casfs.fuse.running casfs.fuse.threads casfs.fuse.events casfs.fuse.index
    casfs.fuse.views casfs.fuse.session
    casfs.fuse.wire casfs.fuse.negotiate casfs.fuse.pipe casfs.fuse.answers casfs.fuse.verifier
    casfs.fuse.watch casfs.fuse.transport casfs.fuse.told casfs.fuse.ops
    casfs.mount.attach casfs.mount.holders casfs.mount.record casfs.mount.server casfs.mount.ways
    casfs.mount.child casfs.mount casfs.mount.keeper
""".split()
ENGINE = """
    engine engine.moderator engine.moderator.syntax engine.moderator.jsonata
    engine.moderator.conditions
    engine.moderator.worker engine.moderator.workers engine.moderator.rules engine.workflow
    engine.catalog engine.extract engine.marks engine.secrets engine.prompt engine.content
    engine.running
    engine.running.processes engine.running.workspace engine.running.layered engine.models
    engine.models.replies engine.models.chat engine.models.forms engine.models.confined
    engine.models.sandbox engine.agents engine.agents.program engine.agents.command
    engine.agents.hermes engine.agents.cursor engine.models.tools engine.models.reactor
    engine.agents.llm
    engine.agents.react engine.agents.human engine.agents.workflow engine.agents.replay
    engine.threads engine.threads.binding engine.threads.record engine.running.hold
    engine.threads.origin engine.threads.stack engine.threads.journal engine.threads.recall
    engine.running.answer
    engine.running.cached engine.models.extractor engine.running.attempt engine.running.calls
    engine.running.script engine.threads.summary engine.running.hooks engine.running.run
    engine.threads.replay engine.threads.graph engine.control engine.runners engine.operations
    engine.daemon
""".split()
CLI = "casfs.cli"
ABOVE = ("casfs.cli", "casfs.__main__")

LIBRARIES = {
    "blake3": "casfs.digest",
    "click": CLI,
    "httpx2": "engine.models.chat",
    "jsonata": "engine.moderator.jsonata",
    "jsonschema": "casfs.nodes.schema",
    "jsonschema_rs": "casfs.nodes.schema",
    "orjson": "casfs.canonical",
    "pyfuse3": "casfs.fuse.ops",
    "rfc8785": "casfs.canonical",
    "sqlite3": "casfs.backend.sqlite",
    "ulid": "casfs.threads",
    "zstandard": "casfs.zstd",
    "yaml": "engine.extract",
}

# Entry points of processes, and what hands its environment on to a program.
ENVIRONMENT = {"engine.daemon", "engine.agents.program"}


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by name; the demo is data."""
    paths = (path for top in ("casfs", "engine", "schemas") for path in (ROOT / top).rglob("*.py"))
    return {dotted(path): path for path in paths if ROOT / "engine" / "demo" not in path.parents}


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def imports(name: str) -> Iterator[str]:
    """What a module imports, anywhere in it: modules of ours in full, others as written."""
    path = modules()[name]
    for found in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            base = origin(name, found)
            for alias in found.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in modules() else base


def origin(name: str, found: ast.ImportFrom) -> str:
    """The absolute name of the module that a `from … import` names."""
    if found.level == 0:
        return found.module or ""
    parts = name.split(".")
    if modules()[name].name != "__init__.py":
        parts.pop()
    parts = parts[: len(parts) - found.level + 1]
    return ".".join([*parts, found.module] if found.module else parts)


def allowed(name: str) -> set[str]:
    """Every module of ours that this one may import."""
    if name.startswith(ABOVE):
        return set(modules())
    if name in TRUNK:
        return set(TRUNK[: TRUNK.index(name)])
    branch = MOUNT if name in MOUNT else ENGINE
    return {*TRUNK, *branch[: branch.index(name)]}


@pytest.mark.parametrize("name", sorted(modules()))
def test_every_module_has_a_place(name: str) -> None:
    assert name.startswith(ABOVE) or name in [*TRUNK, *MOUNT, *ENGINE], (
        f"{name} is in no list of {Path(__file__).name}"
    )


def test_a_place_is_given_once() -> None:
    places = [*TRUNK, *MOUNT, *ENGINE]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_only_from_above(name: str) -> None:
    ours = {used for used in imports(name) if used in modules()}
    assert ours - allowed(name) == set()


@pytest.mark.parametrize("name", sorted(modules()))
def test_an_outside_library_has_one_place(name: str) -> None:
    used = {top for top in (used.split(".")[0] for used in imports(name)) if top in LIBRARIES}
    assert {top for top in used if not within(name, LIBRARIES[top])} == set()


def test_every_listed_library_is_used_where_it_is_listed() -> None:
    for top, place in LIBRARIES.items():
        users = [name for name in modules() if within(name, place)]
        assert any(within(used, top) for name in users for used in imports(name)), (top, place)


@pytest.mark.parametrize("name", sorted(name for name in modules() if not within(name, CLI)))
def test_the_library_reads_no_environment_and_prints_nothing(name: str) -> None:
    tree = ast.parse(modules()[name].read_text("utf-8"))
    calls = [found.func for found in ast.walk(tree) if isinstance(found, ast.Call)]
    assert not {"print", "input"} & {called.id for called in calls if isinstance(called, ast.Name)}
    if name not in ENVIRONMENT:
        reached = {found.attr for found in ast.walk(tree) if isinstance(found, ast.Attribute)}
        assert not {"environ", "environb", "getenv"} & reached
