"""The tables of `store.db`; `casfs.backend.disk` documents the columns."""

from __future__ import annotations

from pathlib import Path

from casfs.backend.block_maps import IS_MAPPED
from casfs.backend.sqlite_connection import Database

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS blobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  hash BLOB NOT NULL UNIQUE,
  size INTEGER NOT NULL,
  type INTEGER,
  touched INTEGER NOT NULL,
  data BLOB,
  pack INTEGER,
  member INTEGER
);
CREATE TABLE IF NOT EXISTS packs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name BLOB NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  size INTEGER NOT NULL,
  remote TEXT
);
CREATE INDEX IF NOT EXISTS blobs_by_type ON blobs(type) WHERE type IS NOT NULL;
CREATE TABLE IF NOT EXISTS types (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS recompressed (id INTEGER PRIMARY KEY, position INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS local_blobs (hash BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS unmark AFTER DELETE ON blobs
  BEGIN DELETE FROM local_blobs WHERE hash = old.hash; END;
CREATE TABLE IF NOT EXISTS young (id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS collecting (id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS uses (name TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS heads (
  name TEXT PRIMARY KEY,
  hash BLOB NOT NULL,
  record TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS moves (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  hash BLOB,
  at INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS blobs_by_pack ON blobs(pack, member) WHERE pack IS NOT NULL;
CREATE TABLE IF NOT EXISTS patches (
  hash BLOB PRIMARY KEY, blob BLOB NOT NULL, purged INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS patches_by_blob ON patches(blob);
CREATE INDEX IF NOT EXISTS mapped_blobs ON blobs(id) WHERE {IS_MAPPED};
"""


def create(path: Path) -> None:
    """Makes the tables that are not there."""
    Database(path, SCHEMA).close()
