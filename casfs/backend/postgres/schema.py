"""The tables and functions of a shared store in PostgreSQL.

    store        one row: the format, the id, where the objects are
    blobs        as in `casfs.backend.disk`; `type` is the hash of the schema node ('' for META),
                 `data` is NULL where the bytes are member `member` of the pack `pack`
    local_blobs  the blobs that only local trees reach
    packs        the packs in object storage, packs/<name>.pack; each name is used once (salted)
    strays       packs in object storage, or on their way there, that have no row in `packs`, and
                 since when: written before an upload, and by gc with the deletion of a pack
    heads        names, by code point; `running` finds the threads that a daemon may run
    moves        the journal. `id` comes from a sequence, which is not in commit order, so the order
                 is (xid, id), and a move is read once no transaction up to `xid` runs any more;
                 `token` tells a publication whose answer was lost that it has moved its heads
    journal      one row: number and place of the last move that was pruned
    leases       who runs a thread, and until when, by the database's clock
    machines     who uses the store
    quarantine   rows that fsck has taken out as damaged; `pack`: its name
    collecting   one row during a gc; young, marks: of that gc (`casfs.backend.postgres.gc`)

`publish` is one transaction in one round trip. It holds GUARD shared; a transaction during
which no publication may be in flight (gc as it begins, and as it deletes) takes GUARD alone.
"""

from __future__ import annotations

FORMAT = "casfs shared 2"  # of the tables
GUARD = 0x636173667300  # key of an advisory lock

# Blobs do not arrive in the order of their ids, which come from a sequence: the last one that was
# given, once no publication that took one before is in flight.
ARRIVED = f"SELECT last_value FROM casfs.blob_ids, pg_advisory_xact_lock({GUARD})"

TABLES = """
CREATE SCHEMA IF NOT EXISTS casfs;
CREATE TABLE IF NOT EXISTS casfs.store (
  one boolean PRIMARY KEY DEFAULT true CHECK (one), format text NOT NULL, id text NOT NULL,
  objects text NOT NULL, endpoint text, region text);
CREATE TABLE IF NOT EXISTS casfs.packs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name bytea NOT NULL UNIQUE,
  size bigint NOT NULL);
CREATE TABLE IF NOT EXISTS casfs.strays (
  name bytea PRIMARY KEY, size bigint NOT NULL, since timestamptz NOT NULL DEFAULT now());
CREATE SEQUENCE IF NOT EXISTS casfs.blob_ids;
CREATE TABLE IF NOT EXISTS casfs.blobs (
  id bigint PRIMARY KEY, hash bytea NOT NULL UNIQUE, size bigint NOT NULL, type bytea,
  touched bigint NOT NULL, data bytea, pack bigint, member integer);
ALTER TABLE casfs.blobs ALTER hash SET STORAGE MAIN, ALTER type SET STORAGE MAIN,
  ALTER data SET STORAGE MAIN;  -- compressed, but not in rows of another table
CREATE TABLE IF NOT EXISTS casfs.local_blobs (
  hash bytea PRIMARY KEY REFERENCES casfs.blobs (hash) ON DELETE CASCADE);
CREATE INDEX IF NOT EXISTS blobs_by_type ON casfs.blobs (type, id) WHERE type IS NOT NULL;
CREATE INDEX IF NOT EXISTS blobs_by_pack ON casfs.blobs (pack) WHERE pack IS NOT NULL;
CREATE TABLE IF NOT EXISTS casfs.heads (
  name text COLLATE "C" PRIMARY KEY, hash bytea NOT NULL, record text NOT NULL,
  running boolean NOT NULL GENERATED ALWAYS AS
    (name LIKE 'threads/%' AND position('"status":"running"' IN record) > 0) STORED
  ) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS heads_running ON casfs.heads (name) WHERE running;
CREATE TABLE IF NOT EXISTS casfs.uses (name text COLLATE "C" PRIMARY KEY, at bigint NOT NULL);
CREATE TABLE IF NOT EXISTS casfs.moves (
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(), id bigint GENERATED ALWAYS AS IDENTITY,
  name text COLLATE "C" NOT NULL, hash bytea, at bigint NOT NULL,
  token bigint NOT NULL DEFAULT 0, PRIMARY KEY (xid, id));
CREATE TABLE IF NOT EXISTS casfs.journal (
  one boolean PRIMARY KEY DEFAULT true CHECK (one), seq bigint NOT NULL, xid xid8 NOT NULL,
  id bigint NOT NULL);
INSERT INTO casfs.journal (seq, xid, id) VALUES (0, '0', 0) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS casfs.leases (
  thread text COLLATE "C" PRIMARY KEY, owner text NOT NULL, token bigint NOT NULL,
  expires timestamptz NOT NULL) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS leases_by_owner ON casfs.leases (owner);
CREATE TABLE IF NOT EXISTS casfs.machines (
  id text PRIMARY KEY, host text NOT NULL, root text NOT NULL, version text NOT NULL,
  daemon text, seen timestamptz NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS casfs.collecting (
  one boolean PRIMARY KEY DEFAULT true CHECK (one), token bigint NOT NULL, running boolean NOT NULL,
  last bigint NOT NULL, expires timestamptz NOT NULL, owner text NOT NULL);
CREATE TABLE IF NOT EXISTS casfs.quarantine (
  at timestamptz NOT NULL DEFAULT now(), hash bytea NOT NULL, type bytea, data bytea, pack bytea,
  member integer);
CREATE TABLE IF NOT EXISTS casfs.young (id bigint PRIMARY KEY);
CREATE UNLOGGED TABLE IF NOT EXISTS casfs.marks (
  token bigint NOT NULL, id bigint NOT NULL, batch bigint NOT NULL, PRIMARY KEY (token, id));
"""

# Arguments of a publication: hashes (and sizes, types, data, packs, members) of its blobs, in the
# order in which they arrive; what it needs; its swaps; what is local. An absent old or new head is
# NULL. It may be run again. It is to be run again (40001) where a later transaction has overtaken
# it: else the journal would have a head's moves in another order than they happened. Plans are
# generic and use indexes: to plan anew for each array costs as much as all else.
PUBLISH = f"""
CREATE OR REPLACE FUNCTION casfs.publish_one(
  now_s bigint, now_ms bigint, tolerance bigint,
  hashes bytea[], sizes bigint[], types bytea[], datas bytea[], in_packs bytea[], members int[],
  needs bytea[], new_packs bytea[], new_sizes bigint[],
  names text[], old_hashes bytea[], old_records text[], new_hashes bytea[], new_records text[],
  tokens bigint[], local bytea[]
) RETURNS bytea[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  known bytea[];
  added bytea[];
  gone bytea;
  made bigint[];
  count int;
  is_old boolean;
BEGIN
  PERFORM pg_advisory_xact_lock_shared({GUARD});
  SELECT count(*), bool_or(touched < now_s - tolerance) INTO count, is_old
    FROM casfs.blobs WHERE hash = ANY(needs);
  IF count < cardinality(needs) THEN
    SELECT n.hash INTO gone FROM unnest(needs) n(hash)
      WHERE NOT EXISTS (SELECT FROM casfs.blobs b WHERE b.hash = n.hash) ORDER BY 1 LIMIT 1;
    RAISE EXCEPTION USING ERRCODE = 'CF404', MESSAGE = encode(gone, 'hex');
  END IF;
  IF is_old THEN
    UPDATE casfs.blobs SET touched = now_s WHERE id IN (SELECT id FROM casfs.blobs
      WHERE hash = ANY(needs) AND touched < now_s - tolerance ORDER BY hash FOR NO KEY UPDATE);
  END IF;
  IF cardinality(new_packs) > 0 THEN
    DELETE FROM casfs.strays WHERE name = ANY(new_packs) AND since > '-infinity';
    GET DIAGNOSTICS count = ROW_COUNT;
    IF count + (SELECT count(*) FROM casfs.packs WHERE name = ANY(new_packs))
        <> cardinality(new_packs) THEN
      RAISE EXCEPTION USING ERRCODE = 'CF410', MESSAGE = encode(new_packs[1], 'hex');
    END IF;
    WITH added AS (INSERT INTO casfs.packs (name, size)
      SELECT * FROM unnest(new_packs, new_sizes) ON CONFLICT DO NOTHING RETURNING id)
      SELECT array_agg(id) INTO made FROM added;
  END IF;
  known := '{{}}';
  FOR pass IN 1 .. 2 LOOP
    WITH stored AS (
      INSERT INTO casfs.blobs (id, hash, size, type, touched, data, pack, member)
        SELECT i.id, i.hash, i.size, i.type, now_s, i.data,
          (SELECT p.id FROM casfs.packs p WHERE p.name = i.pack), i.member
        FROM (SELECT nextval('casfs.blob_ids') AS id, n.* FROM unnest(
            hashes, sizes, types, datas, in_packs, members
          ) n(hash, size, type, data, pack, member)
          WHERE data IS NOT NULL OR pack IS NOT NULL) i
        ORDER BY i.hash ON CONFLICT DO NOTHING RETURNING hash
    ) SELECT coalesce(array_agg(hash), '{{}}') INTO added FROM stored;
    EXIT WHEN pass = 2 OR cardinality(added) = cardinality(hashes);
    known := ARRAY(SELECT unnest(hashes) EXCEPT SELECT unnest(added));
    UPDATE casfs.blobs SET touched = now_s WHERE id IN (SELECT id FROM casfs.blobs
      WHERE hash = ANY(known) AND touched < now_s - tolerance ORDER BY hash FOR NO KEY UPDATE);
    DELETE FROM casfs.blobs b USING unnest(hashes, types) n(hash, type)
      WHERE b.hash = n.hash AND b.hash = ANY(known)
      AND b.type IS NULL AND n.type IS NOT NULL;
    EXIT WHEN NOT FOUND;
    DELETE FROM casfs.blobs WHERE hash = ANY(added);  -- all again: a node is behind its references
  END LOOP;
  IF cardinality(known) > 0 THEN  -- come without bytes, since they were found stored
    SELECT n.hash INTO gone FROM unnest(hashes, datas, in_packs) n(hash, data, pack)
      WHERE n.data IS NULL AND n.pack IS NULL
      AND NOT EXISTS (SELECT FROM casfs.blobs b WHERE b.hash = n.hash) LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'CF410', MESSAGE = encode(gone, 'hex');
    END IF;
  END IF;
  DELETE FROM casfs.local_blobs WHERE hash IN (
    (SELECT unnest(known) UNION SELECT unnest(needs)) EXCEPT SELECT unnest(local));
  IF cardinality(local) > 0 THEN
    INSERT INTO casfs.local_blobs SELECT l.hash FROM unnest(local) l(hash)
      WHERE l.hash = ANY(hashes) AND l.hash <> ALL(known) ON CONFLICT DO NOTHING;
  END IF;
  IF made IS NOT NULL THEN
    WITH unused AS (DELETE FROM casfs.packs p WHERE p.id = ANY(made)
      AND NOT EXISTS (SELECT FROM casfs.blobs b WHERE b.pack = p.id) RETURNING name, size)
      INSERT INTO casfs.strays (name, size) SELECT * FROM unused;
  END IF;
  FOR i IN 1 .. cardinality(names) LOOP
    IF old_hashes[i] IS NULL THEN
      INSERT INTO casfs.heads (name, hash, record)
        VALUES (names[i], new_hashes[i], new_records[i]) ON CONFLICT DO NOTHING;
    ELSIF new_hashes[i] IS NULL THEN
      DELETE FROM casfs.heads
        WHERE name = names[i] AND hash = old_hashes[i] AND record = old_records[i];
    ELSE
      UPDATE casfs.heads SET hash = new_hashes[i], record = new_records[i]
        WHERE name = names[i] AND hash = old_hashes[i] AND record = old_records[i];
    END IF;
    GET DIAGNOSTICS count = ROW_COUNT;
    IF count <> 1 THEN
      RAISE EXCEPTION USING ERRCODE = 'CF409', MESSAGE = names[i];
    END IF;
    IF new_hashes[i] IS NULL THEN
      DELETE FROM casfs.uses WHERE name = names[i];
    END IF;
    INSERT INTO casfs.moves (name, hash, at, token)
      VALUES (names[i], new_hashes[i], now_ms, tokens[i]);
  END LOOP;
  IF cardinality(names) > 0 AND EXISTS (SELECT FROM casfs.moves m
      WHERE m.xid > pg_current_xact_id() AND m.name = ANY(names)) THEN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'a later transaction moved its heads before';
  END IF;
  IF EXISTS (SELECT FROM casfs.collecting WHERE running) THEN
    INSERT INTO casfs.young SELECT id FROM casfs.blobs
      WHERE hash = ANY(hashes || needs) AND id <= (SELECT last FROM casfs.collecting)
      ORDER BY id ON CONFLICT DO NOTHING;
  END IF;
  RETURN known;
END $$;

CREATE OR REPLACE FUNCTION casfs.publish_try(
  now_s bigint, now_ms bigint, tolerance bigint,
  hashes bytea[], sizes bigint[], types bytea[], datas bytea[], in_packs bytea[], members int[],
  needs bytea[], new_packs bytea[], new_sizes bigint[],
  names text[], old_hashes bytea[], old_records text[], new_hashes bytea[], new_records text[],
  tokens bigint[], local bytea[], OUT known bytea[], OUT state text, OUT message text
) LANGUAGE plpgsql AS $$
BEGIN
  known := casfs.publish_one(now_s, now_ms, tolerance, hashes, sizes, types, datas,
    in_packs, members, needs, new_packs, new_sizes, names, old_hashes, old_records,
    new_hashes, new_records, tokens, local);
EXCEPTION WHEN SQLSTATE 'CF404' OR SQLSTATE 'CF409' OR SQLSTATE 'CF410' THEN
  known := '{{}}';
  state := SQLSTATE;
  message := SQLERRM;
END $$;

CREATE OR REPLACE FUNCTION casfs.prune_moves(keep bigint) RETURNS void LANGUAGE sql AS $$
  WITH old AS (
    SELECT xid, id FROM casfs.moves WHERE xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY xid DESC, id DESC OFFSET keep
  ), held AS (SELECT seq FROM casfs.journal FOR UPDATE SKIP LOCKED),
  gone AS (
    DELETE FROM casfs.moves m USING old WHERE m.xid = old.xid AND m.id = old.id
    AND EXISTS (SELECT FROM held) RETURNING m.xid, m.id
  ), last AS (
    SELECT count(*) OVER () AS count, xid, id FROM gone ORDER BY xid DESC, id DESC LIMIT 1
  )
  UPDATE casfs.journal j SET seq = j.seq + last.count, xid = last.xid, id = last.id FROM last
$$;
"""
