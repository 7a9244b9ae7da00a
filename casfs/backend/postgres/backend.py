"""The shared backend: rows in PostgreSQL, packs in object storage, a cache on each machine.

A machine's directory is a disk store of its own that holds the cache (rows, `objects/`, and sparse
mirrors of packs) and what is local in any case: sockets, logs, workspaces, `config.toml` with the
table [shared]. Deleting it loses nothing but what runs on that machine. Invariants as in
`casfs.backend.protocols`: object storage first, then one transaction for rows and heads.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from casfs import config
from casfs.backend.disk import DiskBackend
from casfs.backend.postgres import publication, replica
from casfs.backend.postgres.blobs import PostgresBlobs
from casfs.backend.postgres.cache import Cache
from casfs.backend.postgres.connection import Expired, Pool
from casfs.backend.postgres.gc import SharedMarkSweep
from casfs.backend.postgres.heads import PostgresHeads
from casfs.backend.postgres.leases import PostgresLeases
from casfs.backend.postgres.publication import Call, Placed
from casfs.backend.postgres.schema import FORMAT
from casfs.backend.postgres.state import state
from casfs.backend.postgres.uploads import Pack, Uploads
from casfs.backend.protocols import Publication, Staged, Swap, discard
from casfs.errors import CasfsError, Failed, Invalid
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.location import open_storage
from casfs.system.files import replacing

MACHINE_FILE = "machine"  # the id of this machine
RETRIES = 3  # of a publication whose uploads gc had deleted before its transaction


class PostgresBackend:
    def __init__(self, root: Path, settings: config.Shared) -> None:
        """`root`: this machine's directory. Nothing is asked of a server yet."""
        self.root = root
        self.settings = settings
        self.machine = machine_id(root)
        self.pool = Pool(settings.url, format=FORMAT)
        self.local = DiskBackend(root, synchronous="NORMAL")  # all of it can be brought again
        self._cache = cache = Cache(root, self.local)
        self.blobs = PostgresBlobs(self.pool, cache, self._storage)
        self.heads = PostgresHeads(self.pool, self.machine)
        self._replica: replica.Replica | None = None
        self.uploads = Uploads(self.pool, self._storage, cache=cache, root=root)

    @classmethod
    def open(cls, root: Path) -> Self:
        """Raises Invalid where the table [shared] is missing."""
        settings = config.shared(root)
        if settings is None:
            raise Invalid(f"{root / config.FILE}: no table [shared]; run `casfs init` again")
        return cls(root, settings)

    def _storage(self) -> ObjectStorage:
        settings = self.settings
        return open_storage(settings.objects, endpoint=settings.endpoint, region=settings.region)

    def publish(
        self,
        staged: Iterable[Staged],
        swaps: Iterable[Swap] = (),
        require: Collection[str] = (),
        local: Collection[str] = (),
    ) -> set[str]:
        (result,) = self.publish_group(
            [Publication(list(staged), list(swaps), require=require, local=local)]
        )
        if isinstance(result, BaseException):
            raise result
        return result

    def publish_group(self, group: Sequence[Publication]) -> list[set[str] | BaseException]:
        results = self._publish_group(group)
        for _ in range(RETRIES):
            expired = [n for n, result in enumerate(results) if isinstance(result, Expired)]
            if not expired:
                break
            again = self._publish_group([group[n] for n in expired])
            for number, result in zip(expired, again, strict=True):
                results[number] = result
        return results

    def _publish_group(self, group: Sequence[Publication]) -> list[set[str] | BaseException]:
        results: list[set[str] | BaseException] = [set()] * len(group)
        calls: dict[int, Call] = {}
        packs: dict[int, list[Pack]] = {}
        placements: dict[int, Placed] = {}
        directory = self.local.blobs.staging_directory() / secrets.token_hex(8)
        try:
            for number, submission in enumerate(group):
                try:
                    placed, packs[number] = self.uploads.place(
                        self.heads.stored(submission), directory
                    )
                    calls[number] = publication.arguments(placed)
                    placements[number] = placed
                except Exception as error:
                    results[number] = error
            done = self._publish([*calls.values()]) if calls else []
            for number, result in zip(calls, done, strict=True):
                results[number] = result
                if isinstance(result, set):
                    self.heads.note_moves(calls[number].moves)
                    self._cache.note_published(placements[number].rows)
                    discard(group[number].staged)
                    with suppress(CasfsError, OSError):  # it is published, cached or not
                        self.uploads.keep(packs[number], group[number].local)
            return results
        finally:
            with suppress(FileNotFoundError):  # renamed: an upload that was given up makes no more
                shutil.rmtree(directory.rename(f"{directory}.done"), ignore_errors=True)

    def _publish(self, calls: list[Call]) -> Sequence[set[str] | BaseException]:
        try:
            return publication.publish(self.pool, calls)
        except Exception as error:
            return [error] * len(calls)

    def collection(self) -> SharedMarkSweep:
        self._cache.forget_published()
        return SharedMarkSweep(self.pool, self._storage, self.machine)

    def version(self) -> int:
        return self.heads.version() if self.heads.replica is None else self.local.version()

    def follow(self) -> None:
        """Also has reads that need the database fail soon."""
        self.pool.patience_s = replica.PATIENCE_S
        self.pool.pause_s = replica.PAUSE_S
        self._replica = replica.Replica(self.pool, self.local.heads, self.root)
        self._replica.start()
        self.heads.replica = self.local.heads

    def leases(self, owner: str) -> PostgresLeases:
        return PostgresLeases(
            self.pool, self.heads, blobs=self.blobs, machine=self.machine, owner=owner
        )

    def state(self) -> dict[str, Any]:
        return state(self.settings, self.machine)

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
        self.pool.close()
        self.local.close()


def machine_id(root: Path) -> str:
    """Returns the id of the machine whose directory is `root`, made at the first call."""
    path = root / MACHINE_FILE
    try:
        if not path.exists():
            with replacing(path, durable=True) as out:
                out.write(secrets.token_hex(8).encode())
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"cannot read {path}: {error}") from None
