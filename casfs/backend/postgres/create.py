"""Makes or joins a shared store: its tables, and this machine's directory."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from casfs.backend.disk import DiskBackend
from casfs.backend.postgres.backend import machine_id
from casfs.backend.postgres.connection import Pool
from casfs.backend.postgres.schema import PUBLISH, TABLES
from casfs.config import Shared
from casfs.errors import NotFound, Refused
from casfs.object_storage.location import open_storage
from casfs.version import VERSION

FORMAT = "casfs shared 1"  # of the tables
MAKING = 0x636173667301  # key of an advisory lock
ADD = """
INSERT INTO casfs.store (format, id, objects, endpoint, region) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING"""
FIND = "SELECT format, objects, endpoint, region FROM casfs.store"
JOIN = """
INSERT INTO casfs.machines (id, host, root, version) VALUES (%s, %s, %s, %s)
ON CONFLICT (id) DO UPDATE
SET host = excluded.host, root = excluded.root, version = excluded.version, seen = now()"""


def create(
    root: Path, url: str, objects: str | None, endpoint: str | None, region: str | None
) -> Shared:
    """Makes the tables, or joins the store that is there; returns its settings. `objects` is
    needed for a new store only. Raises NotFound, Refused, Unreachable, AccessDenied, Invalid."""
    pool = Pool(url)
    try:
        found = _find(pool)
        if found is None:
            if objects is None:
                raise NotFound(f"{url}: no shared store there; make it with --objects s3://…")
            open_storage(objects, endpoint=endpoint, region=region).server()
            with pool.transaction() as db:
                db.execute("SELECT pg_advisory_xact_lock(%s)", [MAKING])
                db.execute(TABLES)
                db.execute(PUBLISH)
                values = [FORMAT, secrets.token_hex(16), objects, endpoint, region]
                db.execute(ADD, values)
            found = _find(pool)
        assert found is not None
        format, *place = found
        if format != FORMAT:
            raise Refused(f"{url} has format {format!r}, this casfs reads {FORMAT!r}")
        if objects is not None and objects.rstrip("/") != place[0].rstrip("/"):
            raise Refused(f"{url} keeps its objects at {place[0]}, not at {objects}")
        DiskBackend.create(root)
        pool.run(JOIN, [machine_id(root), socket.gethostname(), str(root), VERSION])
        return Shared(url, place[0], endpoint or place[1], region or place[2])
    finally:
        pool.close()


def _find(pool: Pool) -> tuple[str, ...] | None:
    ((table,),) = pool.run("SELECT to_regclass('casfs.store')")
    rows = pool.run(FIND) if table else []
    return rows[0] if rows else None
