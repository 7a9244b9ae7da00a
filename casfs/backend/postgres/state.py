"""What `casfs status` shows of a shared store. Nothing is waited for: what does not answer has a
fault."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from casfs.backend.postgres.connection import Pool
from casfs.config import Shared
from casfs.errors import CasfsError
from casfs.object_storage.location import open_storage

PATIENCE_S = 2.0  # for object storage
STATE = """
SELECT split_part(current_setting('server_version'), ' ', 1), json_build_object(
  'unreadMoves', (SELECT count(*) FROM casfs.moves
    WHERE xid >= pg_snapshot_xmin(pg_current_snapshot())),
  'oldestTransactionS', (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL)
), (SELECT coalesce(json_agg(m ORDER BY m."seenAt" DESC), '[]') FROM (
  SELECT id, host, root AS store, version,
    CASE WHEN seen > now() - interval '30 s' THEN daemon END AS daemon,
    (extract(epoch FROM seen) * 1000)::bigint AS "seenAt", id = %s AS here,
    (SELECT count(*) FROM casfs.leases l WHERE l.owner = daemon AND expires > now()) AS running
  FROM casfs.machines) m)"""


def state(settings: Shared, machine: str) -> dict[str, Any]:
    database: dict[str, Any] = {"url": settings.url, "version": None, "roundTripMs": None}
    objects = {"url": settings.objects}
    report: dict[str, Any] = {"database": database, "objects": objects, "lag": None, "machines": []}
    with closing(Pool(settings.url, patience_s=0)) as pool, _fault(database):
        pool.run("SELECT 1")  # connects
        begin = time.monotonic()
        pool.run("SELECT 1")
        database["roundTripMs"] = round((time.monotonic() - begin) * 1000, 2)
        ((database["version"], report["lag"], report["machines"]),) = pool.run(STATE, [machine])
    with _fault(objects):
        _, url, endpoint, region = settings
        storage = open_storage(url, endpoint=endpoint, region=region, patience_s=PATIENCE_S)
        storage.head("casfs-probe")
    return report


@contextmanager
def _fault(server: dict[str, Any]) -> Iterator[None]:
    server["fault"] = None
    try:
        yield
    except CasfsError as error:
        server["fault"] = str(error)
