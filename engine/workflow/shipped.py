"""The workflows that come with casfs, in `engine/workflows/`.

`install` registers each name once in a store: one that the user has changed or removed stays so.
Which names it has registered stands in the store's file `shipped-workflows`, a name a line. One
that it has put there itself is brought up to date.
"""

from __future__ import annotations

from importlib import resources

from casfs.store.store import Store
from casfs.system.files import replacing
from engine.workflow import file, registry
from engine.workflow.file import WorkflowFile

NOTE = "shipped-workflows"
TEMPLATE = "hello.yaml"


def files() -> dict[str, bytes]:
    """Returns the content of each file, by its name."""
    folder = resources.files("engine").joinpath("workflows")
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {name: contents[name] for name in sorted(contents) if name.endswith(file.ENDINGS)}


def install(store: Store, *, again: bool = False) -> None:
    """Registers the shipped workflows in a store on disk; `again`: also those removed by the user,
    and in place of ones changed by the user."""
    note = store.root / NOTE
    known = note.read_text("utf-8").split() if note.exists() else []
    for name, data in files().items():
        shipped = file.read(data, name)
        if _is_wanted(store, shipped, known=known, again=again):
            registry.add(store, shipped.definition, shipped.agents, builtin=True)
    names = {name.rpartition(".")[0] for name in files()}
    if not names <= set(known):
        with replacing(note, durable=True) as out:
            out.write("".join(f"{name}\n" for name in sorted({*known, *names})).encode())


def _is_wanted(store: Store, shipped: WorkflowFile, known: list[str], again: bool) -> bool:
    name = shipped.definition["name"]
    head = store.heads.get(registry.head_name(name))
    if head is None:
        return again or name not in known
    return again or bool(head.record.get("builtin"))
