"""Two machines of one shared store in one test: directories of their own, and for the second links
to both servers that can be cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from casfs.checkpoints.create import create
from casfs.digest import TreeHash
from casfs.store.store import Store
from tests.support.fault_proxy import FaultProxy
from tests.support.links import Link
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import make_store


@dataclass
class Team:
    """`database`, `objects`: the links of `second`."""

    first: Store
    second: Store
    database: Link
    objects: FaultProxy

    def checkpoint(self, directory: Path, name: str = "t") -> TreeHash:
        """The root of a checkpoint that the first machine makes."""
        return create(self.first, name, directory).checkpoint.root


@contextmanager
def team(folder: Path, database: str, s3: S3Server) -> Iterator[Team]:
    url = urlsplit(database)
    with (
        Link("127.0.0.1", url.port or 0) as link,
        FaultProxy(s3.endpoint) as proxy,
        make_store(folder / "first", database, s3) as first,
    ):
        linked = url._replace(netloc=f"{url.username}@{link.host}:{link.port}").geturl()
        with Store.init_shared(folder / "second", linked, endpoint=proxy.endpoint) as second:
            yield Team(first, second, link, proxy)


def write_files(directory: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


def read_files(directory: Path) -> dict[str, bytes]:
    """All files below, by name."""
    found = {}
    for folder, _, names in os.walk(directory, onerror=_fail):
        for name in names:
            path = Path(folder) / name
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def _fail(error: OSError) -> None:
    raise error
