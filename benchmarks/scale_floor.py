"""The floor of `benchmarks.scale`: pgbench with one statement a step; and publications by the
backend alone, the same rows from Python.

A step has four rows, of ROW_BYTES, the swap of its thread's head and an entry of the journal. The
floor's tables have no more than their keys; its statement is prepared, its payload a constant.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.protocols import META, Head, HeadName, Staged, Swap
from casfs.digest import Digest, NodeHash, hash_bytes
from casfs.errors import Failed
from tests.support.postgres_server import PostgresServer, binary

ROW_BYTES = (2178, 1100, 400, 300)  # of a step's text, of the step, of two more nodes
RECORD_BYTES = 494
REQUIRED = 10  # nodes that a step refers to
CLIENTS = 32

TABLES = """
CREATE SCHEMA floor;
CREATE TABLE floor.blobs (hash bytea PRIMARY KEY, data text) WITH (toast_tuple_target = 8160);
CREATE TABLE floor.heads (name text PRIMARY KEY, hash bytea, version bigint, record text)
  WITH (fillfactor = 70);
CREATE TABLE floor.moves (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text,
  hash bytea, at timestamptz DEFAULT now());
INSERT INTO floor.heads SELECT 'threads/' || n, '', 0, '' FROM generate_series(0, 99) n
"""
ROWS = ", ".join(
    rf"(sha256(int8send(:seed::bigint + {n})), :data{n}::text)" for n, _ in enumerate(ROW_BYTES)
)
STEP = rf"""\set seed random(1, 9000000000000000000)
\set version :version + 1
WITH b AS (INSERT INTO floor.blobs (hash, data) VALUES {ROWS}), h AS (UPDATE floor.heads SET hash = sha256(int8send(:seed::bigint)), version = :version::bigint, record = :record::text WHERE name = 'threads/' || :client_id::text AND version = :version::bigint - 1 RETURNING name, hash) INSERT INTO floor.moves (name, hash) SELECT name, hash FROM h;
"""  # noqa: E501  (pgbench ends a command of \set at the line's end)
RATE = re.compile(r"tps = ([0-9.]+)")


def pgbench(server: PostgresServer, url: str, seconds: float, clients: int = CLIENTS) -> float:
    """Returns the steps per second of the floor."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS floor CASCADE")
        db.execute(TABLES.encode())
    script = server.directory / "step.sql"
    script.write_text(STEP)
    texts = {f"data{n}": size for n, size in enumerate(ROW_BYTES)} | {"record": RECORD_BYTES}
    values = {name: random.randbytes(size // 2).hex() for name, size in texts.items()}
    command = [binary("pgbench"), "-n", "-M", "prepared", "-c", clients, "-j", 2, "-f", script]
    command += ["-T", round(seconds), "-D", "version=0"]
    command += [part for name, text in values.items() for part in ("-D", f"{name}={text}")]
    done = subprocess.run([*map(str, command), url], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"pgbench: {done.stderr[-500:]}")
    with psycopg.connect(url) as db:
        ((moves, blobs),) = db.execute(
            "SELECT (SELECT count(*) FROM floor.moves), (SELECT count(*) FROM floor.blobs)"
        ).fetchall()
    assert moves * len(ROW_BYTES) == blobs, "a head was not moved"
    return float(RATE.findall(done.stdout)[-1])


# -- the backend alone ------------------------------------------------------------------------


def publications(root: Path, processes: int, threads: int, seconds: float) -> tuple[float, float]:
    """Returns the publications per second of so many processes with so many threads each, and the
    processor time in them per publication, in seconds."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    arguments = (root, threads, seconds, barrier, results)
    workers = [context.Process(target=_publish, args=arguments) for _ in range(processes)]
    for one in workers:
        one.start()
    found = [results.get(timeout=seconds + 60) for _ in workers]
    for one in workers:
        one.join()
    count = sum(count for count, _ in found)
    return count / seconds, sum(spent for _, spent in found) / count


def _publish(root: Path, count: int, seconds: float, barrier: Any, results: Any) -> None:
    backend = PostgresBackend.open(root)
    kind = _new_node(backend, 100, META)
    required = [_new_node(backend, 100, kind).hash for _ in range(REQUIRED)]
    done: list[int] = []
    ends = [0.0]

    def run() -> None:
        name, old, number = HeadName(f"threads/{os.urandom(8).hex()}"), None, 0
        for turn in range(1_000_000):
            staged = [_staged(size, kind) for size in ROW_BYTES]
            new = Head(
                NodeHash(staged[0].digest.hash), {"x": random.randbytes(RECORD_BYTES // 2).hex()}
            )
            backend.publish(staged, [Swap(name, old, new)], required)
            old = new
            if turn == 4:
                started.wait()
            elif turn > 4:
                if time.monotonic() > ends[0]:
                    break
                number += 1
        done.append(number)

    def begin() -> None:
        barrier.wait()
        ends[:] = [time.monotonic() + seconds, time.process_time()]

    started = threading.Barrier(count, begin)
    workers = [threading.Thread(target=run) for _ in range(count)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    results.put((sum(done), time.process_time() - ends[1]))
    backend.close()


def _new_node(backend: PostgresBackend, size: int, kind: Any) -> Any:
    one = _staged(size, kind)
    backend.publish([one])
    return one.digest.hash if kind == META else one.digest


def _staged(size: int, kind: str) -> Staged:
    data = random.randbytes(size // 2).hex().encode()
    return Staged(Digest(hash_bytes(data), len(data)), data, type=kind)


SHAPES: Sequence[tuple[int, int]] = ((1, 1), (1, 8), (1, 16), (1, 32), (2, 4), (2, 8), (2, 16))
