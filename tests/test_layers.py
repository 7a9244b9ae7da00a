"""The structure of the code: which package may import which, and what no file may be.

PACKAGES is an order: a package imports only what stands above it, so packages form no circle.
The branches above the trunk never import each other. `casfs.cli` stands above all and
nothing imports it. Inside a package no module imports itself by a detour. A package or a
loose module without a place in the list fails: give a new one its place.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TRUNK = """
    schemas casfs.version
    casfs.errors casfs.canonical casfs.digest casfs.payloads casfs.system casfs.config
    casfs.scanner casfs.packs casfs.object_storage
    casfs.backend casfs.backend.postgres
    casfs.store.nodes casfs.store casfs.agents casfs.threads
    casfs.trees casfs.trees.diff casfs.trees.git casfs.trees.snapshot casfs.directories
    casfs.trees.restore
    casfs.checkpoints casfs.exchange casfs.attach casfs.sessions
    casfs.transcripts casfs.rewind casfs.history casfs.review
    casfs.native.erofs casfs.native casfs.workspaces casfs.worktrees casfs.actions casfs.plugins
    casfs.maintenance casfs.remotes
""".split()
BRANCHES = {
    "fuse": "casfs.fuse.views casfs.fuse casfs.fuse.kernel casfs.fuse.pyfuse3 casfs.mount".split(),
    "engine": """
        engine engine.blocking engine.deadlines engine.processes engine.content engine.yaml_values
        engine.output engine.moderator engine.secrets engine.workflow engine.llm
        engine.acp engine.agents engine.threads engine.followers engine.sessions engine.runtime
    """.split(),
    "web": ["casfs.web"],
    "mcp": ["casfs.mcp"],
    "api": "casfs.api casfs.testing casfs".split(),
}
TOP = ("casfs.cli", "casfs.__main__")

LIBRARIES = {
    "acp": "engine.acp.protocol",
    "blake3": "casfs.digest",
    "click": "casfs.cli",
    "httpx2": "engine.llm.client",
    "hypercorn": "casfs.web",
    "hyperscan": "casfs.scanner.hit_finder",
    "jinja2": "casfs.web.rendering",
    "jsonata": "engine.moderator.jsonata",
    "jsonschema": "casfs.store.nodes.schema",
    "jsonschema_rs": "casfs.store.nodes.schema",
    "markdown_it": "casfs.web.markdown",
    "mcp": "casfs.mcp",
    "nh3": "casfs.web.markdown",
    "obstore": "casfs.object_storage.s3",
    "orjson": "casfs.canonical",
    "psycopg": "casfs.backend.postgres.connection",
    "pydantic": "casfs.mcp",
    "pyfuse3": "casfs.fuse.pyfuse3.operations",
    "rfc8785": "casfs.canonical",
    "rich": "casfs.cli.progress",
    "sqlite3": "casfs.backend.sqlite_connection",
    "starlette": "casfs.web",
    "ulid": "casfs.threads.threads",
    "zstandard": "casfs.system.zstd",
    "yaml": "engine.yaml_values",
}

# Entry points of processes, what hands its environment on to a program, and `casfs.open()`,
# which finds the same store as the command line.
ENVIRONMENT = {
    "engine.runtime.daemon",
    "engine.processes.launcher",
    "engine.agents.loader",
    "engine.agents.prepared_worker",
    "engine.agents.program",
    "casfs.api.store",
    "casfs.backend.lazy_packs",  # opened by any read: the size of its cache
    "casfs.trees.snapshot.policy",  # records a directory: the settings of what is recorded
    "casfs.system.sandbox",  # whose it is, for the line of what it refuses
    "casfs.system.cache_directory",  # the user's
    "casfs.object_storage.credentials",  # the S3 client reads the same variables
}

MAX_LINES = 500
MAX_TEST_LINES = 700


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by name; the demo is data."""
    paths = (path for top in ("casfs", "engine", "schemas") for path in (ROOT / top).rglob("*.py"))
    return {dotted(path): path for path in paths if ROOT / "engine" / "demo" not in path.parents}


def package(name: str) -> str:
    """The package of a module. A module that lies loose in a top package is one by itself."""
    parent = name.rpartition(".")[0]
    loose = modules()[name].name == "__init__.py" or parent in ("", "casfs", "engine")
    return name if loose else parent


def within(name: str, place: str) -> bool:
    return name == place or name.startswith(place + ".")


@cache
def imports(name: str) -> frozenset[str]:
    """What a module imports, anywhere in it: modules of ours in full, others as written."""
    return frozenset(_imports(name))


def _imports(name: str) -> Iterator[str]:
    for found in ast.walk(ast.parse(modules()[name].read_text("utf-8"))):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            assert found.level == 0, f"{name}: imports are absolute"
            for alias in found.names:
                inner = f"{found.module}.{alias.name}"
                yield inner if inner in modules() else str(found.module)


def ours(name: str) -> set[str]:
    return {used for used in imports(name) if used in modules()}


def allowed(place: str) -> set[str]:
    """The packages that a package may import, itself among them."""
    below = {"api": [*TRUNK, *BRANCHES["engine"]]}  # as the CLI it works without a daemon
    orders = ([*below.get(name, TRUNK), *branch] for name, branch in BRANCHES.items())
    for order in ([*TRUNK], *orders):
        if place in order:
            return set(order[: order.index(place) + 1])
    raise AssertionError(f"{place} is in no list of {Path(__file__).name}")


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_package_imports_only_from_above(name: str) -> None:
    if not any(within(name, top) for top in TOP):
        used = {package(used) for used in ours(name)}
        assert used - allowed(package(name)) == set()


def test_a_place_is_given_once_and_to_what_exists() -> None:
    places = [*TRUNK, *(place for branch in BRANCHES.values() for place in branch)]
    assert sorted(places) == sorted(set(places))
    assert set(places) - {package(name) for name in modules()} == set()


def test_every_package_is_in_the_wheel() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    assert set(built["packages"]) == packages


def test_no_module_imports_itself_by_a_detour() -> None:
    """Also where the package order cannot tell: inside a package, and above the branches."""
    try:
        TopologicalSorter({name: ours(name) - {name} for name in modules()}).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_file_holds_one_idea(name: str) -> None:
    assert lines(modules()[name]) <= MAX_LINES


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.rglob("*.py")), ids=str)
def test_a_test_file_is_bounded(path: Path) -> None:
    assert lines(path) <= MAX_TEST_LINES


@pytest.mark.parametrize("name", sorted(modules()))
def test_an_outside_library_has_one_place(name: str) -> None:
    used = {top for top in (used.split(".")[0] for used in imports(name)) if top in LIBRARIES}
    assert {top for top in used if not within(name, LIBRARIES[top])} == set()


def test_every_listed_library_is_used_where_it_is_listed() -> None:
    for top, place in LIBRARIES.items():
        users = [name for name in modules() if within(name, place)]
        assert any(within(used, top) for name in users for used in imports(name)), (top, place)


@pytest.mark.parametrize("name", sorted(n for n in modules() if not within(n, "casfs.cli")))
def test_the_library_reads_no_environment_and_prints_nothing(name: str) -> None:
    tree = ast.parse(modules()[name].read_text("utf-8"))
    calls = [found.func for found in ast.walk(tree) if isinstance(found, ast.Call)]
    assert not {"print", "input"} & {called.id for called in calls if isinstance(called, ast.Name)}
    if name not in ENVIRONMENT:
        reached = {found.attr for found in ast.walk(tree) if isinstance(found, ast.Attribute)}
        assert not {"environ", "environb", "getenv"} & reached


# Names that say nothing of what they stand for. Exempt are names of options and of JSON fields.
VAGUE_NAMES = set(
    "found one given more made place at thing rest others here now asked told".split()
)

VAGUE_EXEMPT = {
    "casfs.api.threads": {"at"},
    "casfs.cli.thread.start": {"at"},
    "casfs.payloads": {"more"},
    "engine.runtime.thread_requests": {"at"},
    "engine.threads.reroute": {"now"},
}


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_name_says_what_it_is(name: str) -> None:
    bound: set[str] = set()
    for node in ast.walk(ast.parse(modules()[name].read_text("utf-8"))):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    vague = bound & VAGUE_NAMES
    assert vague - VAGUE_EXEMPT.get(name, set()) == set()


MAX_PARAMETERS = 6  # without `self`; more travel together, as an object
# The Python API takes its options by name; of the others no two take the same.
MANY_PARAMETERS = {
    "casfs.actions.key": {"request"},
    "casfs.api.checkpoints": {"create"},
    "casfs.api.threads": {"fork", "start"},
    "casfs.api.trees": {"restore"},
    "casfs.fuse.session": {"__init__"},
    "casfs.native.erofs.writer": {"_inode"},
    "casfs.trees.git.private_objects": {"__init__"},
    "casfs.trees.restore.apply": {"apply"},
    "casfs.trees.snapshot.ignore": {"of"},
    "casfs.trees.snapshot.walker": {"__init__"},
    "casfs.workspaces.lifecycle": {"open"},
    "casfs.workspaces.overlay_snapshot": {"snapshot"},
    "engine.processes.subprocesses": {"run"},
    "engine.threads.transitions": {"finish_step"},
}


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_function_has_few_parameters(name: str) -> None:
    many: set[str] = set()
    for node in ast.walk(ast.parse(modules()[name].read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            if len(names) > MAX_PARAMETERS + 1:
                many.add(node.name)
    assert many == MANY_PARAMETERS.get(name, set())
