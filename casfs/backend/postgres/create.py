"""Makes or joins a shared store: its tables, and this machine's directory."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from casfs.backend.disk import DiskBackend
from casfs.backend.postgres.backend import machine_id
from casfs.backend.postgres.connection import Pool
from casfs.backend.postgres.schema import FORMAT, PUBLISH, TABLES
from casfs.config import Shared
from casfs.errors import NotFound, Refused
from casfs.object_storage.location import open_storage
from casfs.version import VERSION

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
# A dump has the transaction ids of another server. Moves of ids to come would never be read.
RESTART_JOURNAL = """
WITH old AS (SELECT count(*) AS count FROM casfs.moves),
gone AS (DELETE FROM casfs.moves WHERE EXISTS (
  SELECT FROM casfs.moves WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())) RETURNING id)
UPDATE casfs.journal SET seq = seq + old.count, xid = '0', id = 0 FROM old
WHERE EXISTS (SELECT FROM gone)"""


def create(root: Path, wanted: Shared) -> Shared:
    """Makes the tables, or joins the store that is there; returns its settings. `wanted.objects` is
    "" or that store's. Raises NotFound, Refused, Unreachable, AccessDenied, Invalid."""
    pool = Pool(wanted.url)
    try:
        settings = _find(pool, wanted)
        if settings is None:
            open_storage(wanted.objects, endpoint=wanted.endpoint, region=wanted.region).server()
            with pool.transaction() as db:
                db.execute("SELECT pg_advisory_xact_lock(%s)", [MAKING])
                db.execute(TABLES)
                db.execute(PUBLISH)
                db.execute(ADD, [FORMAT, secrets.token_hex(16), *wanted[1:]])
            settings = _find(pool, wanted)
        assert settings is not None
        DiskBackend.create(root)
        pool.run(RESTART_JOURNAL)
        pool.run(JOIN, [machine_id(root), socket.gethostname(), str(root), VERSION])
        return settings
    finally:
        pool.close()


def find(wanted: Shared) -> Shared | None:
    """Returns the settings of the store that `create` would join, None where it would make one.
    Changes nothing, waits for nothing. Raises as `create`."""
    pool = Pool(wanted.url, patience_s=0)
    try:
        return _find(pool, wanted)
    finally:
        pool.close()


def _find(pool: Pool, wanted: Shared) -> Shared | None:
    url, objects, endpoint, region = wanted
    ((version, is_utf8, is_made),) = pool.run(SERVER)
    if version < MIN_SERVER * 10_000:
        raise Refused(f"{url}: PostgreSQL {version // 10_000}; needed: {MIN_SERVER} or newer")
    if not is_utf8:
        raise Refused(f"{url}: its encoding is not UTF8; use createdb -E UTF8 -T template0")
    rows = pool.run(FIND) if is_made else []
    if not rows and not objects:
        raise NotFound(f"{url}: no shared store there; make it with --objects s3://…")
    if not rows:
        return None
    settings = rows[0][0]
    if (format := settings.get("format")) != FORMAT:
        raise Refused(f"{url} has format {format!r}, this casfs reads {FORMAT!r}")
    if objects and objects.rstrip("/") != settings["objects"].rstrip("/"):
        raise Refused(f"{url} keeps its objects at {settings['objects']}, not at {objects}")
    return Shared(
        url,
        settings["objects"],
        endpoint=endpoint or settings["endpoint"],
        region=region or settings["region"],
    )
