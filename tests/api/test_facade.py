"""`import casfs`: every public name is there, typed, documented, and loaded only when used."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import casfs
import casfs.api.store

ROOT = Path(__file__).resolve().parents[2]


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_the_import_loads_nothing_else() -> None:
    code = "import casfs, sys; print([m for m in sys.modules if m.startswith('casfs.')])"
    assert python(code).strip() == "['casfs.version']"


def test_a_submodule_is_imported_without_the_api() -> None:
    code = "from casfs import canonical, errors; import sys; print('casfs.api' in sys.modules)"
    assert python(code).strip() == "False"


def test_every_public_name_is_there() -> None:
    code = "from casfs import *; import casfs; print({*casfs.__all__} - {*globals()})"
    assert python(code).strip() == "set()"
    assert set(casfs.__all__) <= set(dir(casfs))


def test_names_are_sorted_and_others_are_refused() -> None:
    assert casfs.__all__ == sorted(set(casfs.__all__))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        casfs.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_top_level_errors_are_those_a_library_call_raises() -> None:
    classes = {name for name, one in vars(casfs.errors).items() if isinstance(one, type)}
    assert classes - set(casfs.__all__) == {"Suspended", "Usage"}  # of the command line


SAMPLE = """
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import casfs
from casfs import agents, testing

with casfs.init(Path("store")) as store:
    digest: casfs.Digest = store.put(b"hello")
    data: bytes = store.get(digest)
    node: casfs.Node[Any] = store.node(store.put_node("content", {"text": "", "artifacts": []}))
    refs: list[casfs.Ref] = store.refs(node)
    stream: BinaryIO = store.stream(digest.hash)
    made: casfs.Checkpoint = store.checkpoints.create("work", ".", warn=print)
    at: datetime = made.created_at
    names: list[str] = store.checkpoints.names()
    entries: list[casfs.Entry] = store.trees.ls(made, Path("src"))
    file: BinaryIO = store.trees.open("work", "a.txt")
    changes: list[casfs.Change] = list(store.trees.diff(None, made))
    done: casfs.Restored = store.trees.restore(made, "again")
    thread: casfs.Thread = store.threads.start("w", "Do it.", {"a": casfs.Agent("command")})
    steps: list[casfs.Step] = store.threads.steps(thread.id)
    with store.batch() as batch:
        some: casfs.Batch = batch
    reached: list[str] = list(store.walk(digest, node.hash))


def create_agent(config: dict[str, str]) -> agents.AgentFn:
    async def agent(context: agents.AgentContext) -> agents.AgentResult:
        return agents.AgentResult("", context.store.put(b""))

    return agent


run: testing.AgentRun = testing.run_agent(create_agent, {})
try:
    casfs.open("nowhere")
except casfs.NotFound as error:
    code: int = error.exit_code
reveal_type(casfs.open)
store.put("text")
casfs.nothing
"""
SWAPPED = """
from casfs.backend.protocols import HeadName
from casfs.digest import BlobHash, NodeHash, TreeHash
from casfs.store.store import Store
from casfs.threads.threads import ThreadId, head_name
from casfs.trees import tree


def use(store: Store, thread: ThreadId, blob: BlobHash, node: NodeHash, root: TreeHash) -> None:
    store.get(root)
    tree.load(store, root)
    tree.load(store, thread)
    tree.load(store, node)
    tree.load(store, blob)
    tree.load(store, "0" * 64)
    head_name(root)
    name: HeadName = thread
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment into which the wheel was installed, without dependencies."""
    base = tmp_path_factory.mktemp("wheel")
    source = base / "source"
    source.mkdir()
    for name in ("casfs", "engine", "schemas"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    venv = [sys.executable, "-m", "venv", "--without-pip", str(base / "venv")]
    subprocess.run(venv, check=True)
    (site,) = (base / "venv/lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    done = subprocess.run([*pip, *options, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return base / "venv/bin/python"


def mypy(installed: Path, folder: Path, sample: str) -> list[str]:
    (folder / "sample.py").write_text(sample)
    cache = f"--cache-dir={installed.parent / 'mypy'}"
    options = ["--strict", "--config-file=", cache, f"--python-executable={installed}"]
    command = [sys.executable, "-m", "mypy", *options, "sample.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_users_file_is_checked_against_the_installed_types(
    installed: Path, tmp_path: Path
) -> None:
    last = SAMPLE.count("\n")
    assert mypy(installed, tmp_path, SAMPLE) == [
        f"sample.py:{last - 2}: note: Revealed type is "
        '"def (root: str | os.PathLike[str] | None =) -> casfs.api.store.Store"',
        f'sample.py:{last - 1}: error: Argument 1 to "put" of "Store" has incompatible type "str"; '
        'expected "bytes"  [arg-type]',
        f'sample.py:{last}: error: Module has no attribute "nothing"  [attr-defined]',
        "Found 2 errors in 1 file (checked 1 source file)",
    ]


def test_a_hash_a_head_name_and_a_thread_id_are_not_mixed_up(
    installed: Path, tmp_path: Path
) -> None:
    first = SWAPPED.splitlines().index("    tree.load(store, thread)") + 1
    load = 'error: Argument 2 to "load" has incompatible type'
    assert mypy(installed, tmp_path, SWAPPED) == [
        *(
            f'sample.py:{first + line}: {load} "{type}"; expected "TreeHash"  [arg-type]'
            for line, type in enumerate(("ThreadId", "NodeHash", "BlobHash", "str"))
        ),
        f'sample.py:{first + 4}: error: Argument 1 to "head_name" has incompatible type "TreeHash";'
        ' expected "ThreadId"  [arg-type]',
        f"sample.py:{first + 5}: error: Incompatible types in assignment (expression has type"
        ' "ThreadId", variable has type "HeadName")  [assignment]',
        "Found 6 errors in 1 file (checked 1 source file)",
    ]


def test_the_wheel_holds_all_that_the_api_loads(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site,) = (installed.parents[1] / "lib").glob("python*/site-packages")
    monkeypatch.setenv("PYTHONPATH", str(site))  # before the checkout; "" is the directory
    monkeypatch.chdir(tmp_path)
    code = "from casfs import *; print(Store.memory().put(b'x').hash, casfs.__file__)"
    hash, file = python(f"import casfs; {code}").split()
    assert len(hash) == 64
    assert Path(file).is_relative_to(site)
