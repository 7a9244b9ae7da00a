"""casfs: everything an agent team produces, content-addressed and shown as files.

The names in `__all__` are the public API (docs/python.md). Each is imported when it is first
used, so `import casfs` and the command line stay fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from casfs.version import VERSION

if TYPE_CHECKING:
    from casfs import agents, errors, payloads, testing
    from casfs.api.actions import Actions
    from casfs.api.checkpoints import Checkpoints
    from casfs.api.plugins import Plugins
    from casfs.api.store import Store, init, open
    from casfs.api.threads import Threads
    from casfs.api.trees import Trees
    from casfs.api.values import (
        ActionResult,
        Agent,
        Change,
        Checkpoint,
        Entry,
        Restored,
        Step,
        Thread,
        Workflow,
    )
    from casfs.api.workflows import Workflows
    from casfs.digest import Digest
    from casfs.errors import (
        AccessDenied,
        CasfsError,
        Conflict,
        Corrupt,
        CorruptBlob,
        DaemonUnreachable,
        Failed,
        Invalid,
        NoDaemon,
        NotFound,
        Purged,
        Refused,
        Unreachable,
    )
    from casfs.plugins.registry import Plugin
    from casfs.store.nodes.node import Node
    from casfs.store.nodes.ref_collectors import Ref
    from casfs.store.write_batch import Batch

__version__ = VERSION
__all__ = [
    "AccessDenied",
    "ActionResult",
    "Actions",
    "Agent",
    "Batch",
    "CasfsError",
    "Change",
    "Checkpoint",
    "Checkpoints",
    "Conflict",
    "Corrupt",
    "CorruptBlob",
    "DaemonUnreachable",
    "Digest",
    "Entry",
    "Failed",
    "Invalid",
    "NoDaemon",
    "Node",
    "NotFound",
    "Plugin",
    "Plugins",
    "Purged",
    "Ref",
    "Refused",
    "Restored",
    "Step",
    "Store",
    "Thread",
    "Threads",
    "Trees",
    "Unreachable",
    "Workflow",
    "Workflows",
    "agents",
    "errors",
    "init",
    "open",
    "payloads",
    "testing",
]

MODULES = ("agents", "errors", "payloads", "testing")
HOMES = {
    "casfs.api.actions": ("Actions",),
    "casfs.api.checkpoints": ("Checkpoints",),
    "casfs.api.plugins": ("Plugins",),
    "casfs.api.store": ("Store", "init", "open"),
    "casfs.api.threads": ("Threads",),
    "casfs.api.trees": ("Trees",),
    "casfs.api.values": (
        "ActionResult Agent Change Checkpoint Entry Restored Step Thread Workflow".split()
    ),
    "casfs.api.workflows": ("Workflows",),
    "casfs.digest": ("Digest",),
    "casfs.store.nodes.node": ("Node",),
    "casfs.store.nodes.schema": ("Ref",),
    "casfs.plugins.registry": ("Plugin",),
    "casfs.store.write_batch": ("Batch",),
}


if not TYPE_CHECKING:  # for a checker there are the imports above, and no other name

    def __getattr__(name: str) -> object:
        """Imports a name of the API (PEP 562); one without a home here is an error class."""
        if name not in __all__:
            raise AttributeError(f"module 'casfs' has no attribute {name!r}")
        from importlib import import_module

        if name in MODULES:
            return import_module(f"casfs.{name}")
        home = next((home for home, names in HOMES.items() if name in names), "casfs.errors")
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
