"""Measure a store on PostgreSQL and S3 beside pgbench, DBOS, LangGraph, JuiceFS; prints Markdown.

    .venv/bin/python -m benchmarks.scale [--peers PYTHON] [--tree DIR] [--rounds N] [--steps N]
        [--seconds N] [--daemons N] [--threads N] [--blobs N] [PART ...]

Parts: publish steps requests bytes listing. The servers are a PostgreSQL with fsync on and a
SeaweedFS of this machine, new for each part (`tests/support`). `--peers` is the Python of an
environment outside the project with dbos, langgraph, langgraph-checkpoint-postgres and psycopg_pool
(`benchmarks/scale_peers.py`); `juicefs` is looked for beside it.

    publish   PostgresBackend.publish of a step's rows, beside a floor (`benchmarks/scale_floor.py`)
    steps     two daemons with 16 threads each, whose agent needs no time, beside the same floor,
              DBOS and LangGraph, in turn (`benchmarks/scale_steps.py`)
    requests  of a step: statements, round trips, requests to S3
    bytes     of a step and of a blob: rows with their indexes, and WAL
    listing   a second machine mounts a tree (`benchmarks/scale_listing.py`)
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import common, scale_floor, scale_listing, scale_peers, scale_steps
from benchmarks.common import table
from benchmarks.engine_peers import Shape
from benchmarks.engine_runs import run_threads
from casfs.store.store import Store
from tests.support import postgres_server
from tests.support.links import Link
from tests.support.postgres_server import PostgresServer, run_postgres
from tests.support.s3_servers import CREDENTIALS, S3Server, run_seaweedfs
from tests.support.shared_stores import join, make_store

SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",  # no checkpoint within a round
    "shared_preload_libraries": "pg_stat_statements",
}
RACED = ("floor", "langgraph", "dbos")
AT_ONCE = 16  # threads whose steps are weighed
SIZES = """
SELECT relname, pg_total_relation_size(oid) FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'casfs'::regnamespace"""
CALLS = """
SELECT sum(calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query NOT LIKE '%pg_stat_statements%'"""


class Servers:
    def __init__(self, work: Path, postgres: PostgresServer, s3: S3Server, url: str) -> None:
        self.work, self.postgres, self.s3, self.url = work, postgres, s3, url

    def query(self, query: str) -> list[tuple[object, ...]]:
        return self.postgres.execute(query, urlsplit(self.url).path.strip("/"))

    def number(self, query: str) -> float:
        return float(str(self.query(query)[0][0]))

    def sizes(self) -> dict[str, int]:
        """Bytes of each table with its indexes."""
        return {str(name): int(str(size)) for name, size in self.query(SIZES)}

    def processor(self) -> float:
        """Seconds of processor time of PostgreSQL, of those of its processes that are alive."""
        pid = self.postgres.pid
        assert pid is not None
        pids = [pid, *postgres_server.processes_below(pid)]
        return sum(scale_steps.processor(one) for one in pids)


@contextmanager
def servers(work: Path) -> Iterator[Servers]:
    postgres_server.SETTINGS.update(SETTINGS)
    os.environ.update(CREDENTIALS)
    with ExitStack() as stack:
        postgres = stack.enter_context(run_postgres())
        s3 = stack.enter_context(run_seaweedfs(work))
        url = stack.enter_context(postgres.database())
        yield Servers(work, postgres, s3, url)


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


# -- the backend alone ------------------------------------------------------------------------


def publish(work: Path, options: argparse.Namespace) -> None:
    rows = []
    with servers(work) as one:
        make_store(work / "m", one.url, one.s3).close()
        for processes, threads in scale_floor.SHAPES:
            if processes > options.daemons or threads > options.threads * 2:
                continue
            seconds = options.seconds
            floor = scale_floor.pgbench(one.postgres, one.url, seconds, processes * threads)
            rate, spent = scale_floor.publications(work / "m", processes, threads, seconds)
            cells = [f"{rate:,.0f} ({rate / floor:.2f} ×)", f"{spent * 1e6:.0f} µs"]
            rows.append([f"{processes} × {threads}", *cells, f"{floor:,.0f}", load()])
    header = ["processes × threads", "publications/s", "processor of the client", "floor", "load"]
    table("The backend alone", header, rows)


# -- steps ------------------------------------------------------------------------------------


def steps(work: Path, options: argparse.Namespace) -> None:
    daemons, threads = options.daemons, options.threads
    with servers(work) as one:
        roots = [work / f"m{number}" for number in range(daemons)]
        make_store(roots[0], one.url, one.s3).close()
        for root in roots[1:]:
            join(root, one.url).close()
        rows = []
        for _ in range(options.rounds):
            done = scale_steps.run_daemons(roots, one.url, threads, options.steps)
            floor = scale_floor.pgbench(one.postgres, one.url, options.seconds, daemons * threads)
            rates = {"floor": floor, **_peers(one, options)}
            cells = ["–" if name not in rates else _ratio(done.rate, rates[name]) for name in RACED]
            rows.append([f"{done.rate:,.0f}/s", f"{done.processor * 1e6:,.0f} µs", *cells, load()])
    header = ["casfs", "processor of the daemons", *(f"× {name}" for name in RACED), "load"]
    title = f"Steps: {daemons} × {threads} threads × {options.steps}, a row a round"
    table(title, header, rows)


def _ratio(rate: float, other: float) -> str:
    return f"{rate / other:.2f} ({other:,.0f}/s)"


def _peers(one: Servers, options: argparse.Namespace) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for name in ("langgraph", "dbos") if options.peers else ():
        with one.postgres.database() as url:
            run = partial(scale_peers.rate, options.peers, name, url)
            found[name] = run(options.daemons, options.threads, options.steps)
    return found


# -- requests and bytes -----------------------------------------------------------------------


def requests(work: Path, options: argparse.Namespace) -> None:
    """Differences between a run of FEW and one of MANY steps, divided by the steps between."""
    few, many = options.steps + 20, options.steps * 6 + 20
    with servers(work) as one, ExitStack() as stack:
        address = urlsplit(one.url)
        assert address.port is not None
        endpoint = urlsplit(one.s3.endpoint)
        assert endpoint.port is not None
        database = stack.enter_context(Link("127.0.0.1", address.port))
        objects = stack.enter_context(Link("127.0.0.1", endpoint.port))
        url = one.url.replace(str(address.port), str(database.port))
        s3 = S3Server(one.s3.name, f"http://127.0.0.1:{objects.port}")
        one.query("CREATE EXTENSION pg_stat_statements")
        counts = []
        with make_store(work / "m", url, s3) as store:
            for number in (many, few, many):  # the first one warms up
                before = database.round_trips, one.number(CALLS), objects.round_trips
                run_threads(store, Shape(1, number))
                after = database.round_trips, one.number(CALLS), objects.round_trips
                counts.append(
                    [later - earlier for earlier, later in zip(before, after, strict=True)]
                )
        each = [(more - less) / (many - few) for less, more in zip(*counts[1:], strict=True)]
    names = ["round trips to PostgreSQL", "statements", "round trips to S3"]
    rows = [[name, f"{value:.2f}"] for name, value in zip(names, each, strict=True)]
    table(f"Of a step, one thread; {many} steps less {few}", ["", "a step"], rows)


def bytes_stored(work: Path, options: argparse.Namespace) -> None:
    rows, blobs = [], options.blobs
    packed = min(5_000, blobs)  # of one batch
    with servers(work) as one, make_store(work / "m", one.url, one.s3) as store:
        run_threads(store, Shape(1, 5))
        for name, action, count in (
            ("a step (2 KB of text)", partial(_steps, store), AT_ONCE * options.steps * 2),
            ("a blob of 600 bytes, a row", partial(_blobs, store, 600, 10), blobs // 10),
            ("a blob of 2,000 bytes, in a pack", partial(_blobs, store, 2000, packed), blobs),
        ):
            one.query("VACUUM FULL")
            before, wal = one.sizes(), one.number("SELECT pg_current_wal_lsn() - '0/0'")
            action(count)
            used = one.number("SELECT pg_current_wal_lsn() - '0/0'") - wal
            grown = {name: size - before[name] for name, size in one.sizes().items()}
            parts = [f"{grown[key] / count:,.0f}" for key in ("blobs", "moves")]
            rows.append(
                [name, *parts, f"{sum(grown.values()) / count:,.0f}", f"{used / count:,.0f}"]
            )
    table("Bytes in PostgreSQL", ["", "blobs", "journal", "all tables", "WAL"], rows)


def _steps(store: Store, count: int) -> None:
    run_threads(store, Shape(AT_ONCE, count // AT_ONCE, at_once=True))


def _blobs(store: Store, size: int, group: int, count: int) -> None:
    for _ in range(count // group):
        with store.batch() as batch:
            for _ in range(group):
                batch.put(os.urandom(size))


PARTS = {
    "publish": publish,
    "steps": steps,
    "requests": requests,
    "bytes": bytes_stored,
    "listing": scale_listing.listing,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--steps", type=int, default=100, help="Of each thread.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="Of publications, or the floor.")
    parser.add_argument("--daemons", type=int, default=2)
    parser.add_argument("--threads", type=int, default=16, help="Of each daemon.")
    parser.add_argument("--blobs", type=int, default=50_000, help="At least a hundred.")
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    common.unwind_on_signals()
    for part in options.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="casfs-scale-") as folder:
            print(f"\n## {part}: {common.machine(Path(folder))}", flush=True)
            PARTS[part](Path(folder), options)


if __name__ == "__main__":
    main()
