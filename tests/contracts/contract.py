"""What the conformance suites share."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, cast

from casfs.backend.protocols import Backend, Head, HeadName, Staged, Swap
from casfs.digest import NodeHash

Factory = Callable[[], Backend]  # returns a new empty backend
Check = Callable[[Factory], None]
ABSENT = cast(NodeHash, "0f" * 32)  # a hash that is not stored


def checks(module: Mapping[str, Any]) -> list[Check]:
    """Returns the checks that a module defines, in their order: its functions of `make_backend`."""
    functions = [one for one in module.values() if hasattr(one, "__annotations__")]
    return [one for one in functions if "make_backend" in one.__annotations__]


def stage(backend: Backend, data: bytes, type: str | None = None) -> Staged:
    return backend.blobs.stage(io.BytesIO(data))._replace(type=type)


def put(backend: Backend, data: bytes, type: str | None = None) -> NodeHash:
    staged = stage(backend, data, type)
    backend.publish([staged])
    return NodeHash(staged.digest.hash)


def swap(name: str, old: Head | None, new: Head | None) -> Swap:
    return Swap(HeadName(name), old, new)


def get(backend: Backend, name: str) -> Head | None:
    return backend.heads.get(HeadName(name))


def create(backend: Backend, name: str, hash: NodeHash, **record: object) -> Head:
    head = Head(hash, record)
    backend.publish([], [swap(name, None, head)])
    return head
