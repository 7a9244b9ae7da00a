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
FIND = "SELECT to_json(s) FROM casfs.store s"
SERVER = """
SELECT current_setting('server_version_num')::int, getdatabaseencoding() = 'UTF8',
  to_regclass('casfs.store') IS NOT NULL"""
MIN_SERVER = 13  # the first with xid8
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
        found = _find(pool, objects)
        if found is None:
            open_storage(objects or "", endpoint=endpoint, region=region).server()
            with pool.transaction() as db:
                db.execute("SELECT pg_advisory_xact_lock(%s)", [MAKING])
                db.execute(TABLES)
                db.execute(PUBLISH)
                values = [FORMAT, secrets.token_hex(16), objects, endpoint, region]
                db.execute(ADD, values)
            found = _find(pool, objects)
        assert found is not None
        DiskBackend.create(root)
        pool.run(JOIN, [machine_id(root), socket.gethostname(), str(root), VERSION])
        return found._replace(endpoint=endpoint or found.endpoint, region=region or found.region)
    finally:
        pool.close()


def find(url: str, objects: str | None) -> Shared | None:
    """Returns the settings of the store that `create` would join, None where it would make one.
    Changes nothing, waits for nothing. Raises as `create`."""
    pool = Pool(url, patience_s=0)
    try:
        return _find(pool, objects)
    finally:
        pool.close()


def _find(pool: Pool, objects: str | None) -> Shared | None:
    ((version, is_utf8, is_made),) = pool.run(SERVER)
    if version < MIN_SERVER * 10_000:
        raise Refused(f"{pool.url}: PostgreSQL {version // 10_000}; needed: {MIN_SERVER} or newer")
    if not is_utf8:
        raise Refused(f"{pool.url}: its encoding is not UTF8; use createdb -E UTF8 -T template0")
    rows = pool.run(FIND) if is_made else []
    if not rows and objects is None:
        raise NotFound(f"{pool.url}: no shared store there; make it with --objects s3://…")
    if not rows:
        return None
    found = rows[0][0]
    if found.get("format") != FORMAT:
        raise Refused(
            f"{pool.url} has format {found.get('format')!r}, this casfs reads {FORMAT!r};"
            " use one version of casfs on all machines"
        )
    if objects is not None and objects.rstrip("/") != found["objects"].rstrip("/"):
        raise Refused(f"{pool.url} keeps its objects at {found['objects']}, not at {objects}")
    return Shared(pool.url, found["objects"], found["endpoint"], found["region"])
