"""A remote of a store: its settings, its object storage, and the local copy of its log."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, Self

from casfs import canonical, config
from casfs.errors import Conflict, Corrupt, Invalid, NotFound, Refused
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.location import open_storage
from casfs.object_storage.retrying import parallel
from casfs.packs.layout import MAX_INDEX_BYTES, TRAILER
from casfs.remotes import log
from casfs.remotes.log import Entry, Pack
from casfs.remotes.state import FILE, State
from casfs.system.config_edit import with_table
from casfs.system.files import os_errors, replacing

DIRECTORY = "remotes"  # of a store: a directory for each remote
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
MAX_SMALL_BYTES = 4096  # of `casfs-remote` and `log/latest`
MAX_AHEAD = 16  # entries that are read at once
MAX_TRIES = 50


class Settings(NamedTuple):
    """`[remotes.NAME]` in the store's config.toml. Credentials are elsewhere. `trusted`: what it
    brings may run, as it is one's own (`casfs.exchange.arrivals`)."""

    url: str
    endpoint: str | None = None
    region: str | None = None
    trusted: bool = False

    def storage(self) -> ObjectStorage:
        return open_storage(self.url, endpoint=self.endpoint, region=self.region)


def listing(root: Path) -> dict[str, Settings]:
    """Returns the remotes of the store at `root`. Raises Invalid naming the file."""
    remotes = {}
    for name, table in config.remotes(root).items():
        types = {key: bool if key == "trusted" else str for key in Settings._fields}
        is_known = all(isinstance(value, types.get(key, ())) for key, value in table.items())
        if not NAME.fullmatch(name) or name == config.IMPORT or not is_known or "url" not in table:
            where = f"{root / config.FILE}: [remotes.{name}]"
            raise Invalid(
                f"{where} must hold url, and may hold endpoint and region, as texts, and trusted"
            )
        remotes[name] = Settings(**dict(table))  # type: ignore[arg-type]
    return remotes


def get(root: Path, name: str) -> Settings:
    """Returns the settings of a remote of the store at `root`. Raises NotFound."""
    if (settings := listing(root).get(name)) is None:
        raise NotFound(f"no remote {name!r}; see `casfs remote list`")
    return settings


def check_name(name: str) -> None:
    """Raises Invalid."""
    if not NAME.fullmatch(name) or name == config.IMPORT:
        raise Invalid(
            f"invalid name of a remote {name[:80]!r}: use 1 to 32 of a-z, 0-9, _ and -, and not"
            f" {config.IMPORT!r}"
        )


def save(root: Path, name: str, settings: Settings | None) -> None:
    """Writes the settings of a remote to config.toml; None removes them."""
    check_name(name)
    path = root / config.FILE
    text = path.read_text("utf-8") if path.exists() else ""
    values = {} if settings is None else settings._asdict()
    new_text = with_table(
        text, f"remotes.{name}", {key: setting for key, setting in values.items() if setting}
    )
    with os_errors(f"cannot write {path}"), replacing(path) as file:
        file.write(new_text.encode())


def create(storage: ObjectStorage) -> None:
    """Makes an object storage a remote, unless it is one. Raises Conflict (another format)."""
    identity = {"format": log.FORMAT, "id": secrets.token_hex(16)}
    if not storage.put_if_absent(log.IDENTITY, canonical.encode(identity)):
        check(storage)


def check(storage: ObjectStorage) -> None:
    """Raises NotFound (no remote there), Conflict (another format)."""
    try:
        value = canonical.parse(storage.get(log.IDENTITY, MAX_SMALL_BYTES))
    except NotFound:
        raise NotFound(f"no remote at {storage.url}; `casfs remote add` makes one") from None
    except Invalid:
        value = None
    if not isinstance(value, dict) or value.get("format") != log.FORMAT:
        raise Conflict(f"{storage.url} does not have the format {log.FORMAT!r}; use another URL")


class Remote:
    """An open remote. `state` is as new as the last `catch_up`."""

    def __init__(
        self, name: str, storage: ObjectStorage, directory: Path, *, is_trusted: bool = False
    ) -> None:
        self.name = name
        self.storage = storage
        self.is_trusted = is_trusted
        self.state = State(directory / FILE)

    @classmethod
    def open(cls, root: Path, name: str) -> Self:
        """Opens a remote of the store at `root`. Raises NotFound."""
        settings = get(root, name)
        directory = root / DIRECTORY / name
        return cls(name, settings.storage(), directory, is_trusted=settings.trusted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.state.close()

    def catch_up(self, *, accept_rollback: bool = False) -> None:
        """Reads the entries since the last time: two requests where there are none. Raises Refused
        where the last entry is gone or another one; `accept_rollback`: begins anew then. Raises
        Corrupt, NotFound."""
        number, id = self.state.position()
        last = None
        new = [*parallel(partial(self.entry, number + offset) for offset in range(2))]
        if number:
            last, *new = new
        if number and (last is None or last["id"] != id):
            check(self.storage)  # NotFound where the remote itself is gone
            if not accept_rollback:
                seen = "missing" if last is None else f"{last['id'][:8]}…"
                raise Refused(
                    f"{self.storage.url}: its log was rolled back or replaced: entry {number} was"
                    f" {str(id)[:8]}… when it was last read, and is {seen} now. If that is meant,"
                    f" `casfs pull {self.name} --accept-rollback`"
                )
            self.state.clear()
            number = 0
        if not number:
            check(self.storage)
            number, new = self._beginning()
            id = None
        while entries := [
            entry for entry in takewhile(lambda next_entry: next_entry is not None, new) if entry
        ]:
            for entry in entries:
                if entry["after"] != id and (id or entry["all"] is None):
                    raise Corrupt(f"{self.storage.url}: an entry of its log is not the next one")
                id = entry["id"]
            if not self.state.apply(number + 1, entries):
                return self.catch_up()  # another process has
            number += len(entries)
            ahead = min(2 * len(new), MAX_AHEAD) if len(entries) == len(new) else 0
            new = [*parallel(partial(self.entry, number + 1 + offset) for offset in range(ahead))]
        return None

    def _beginning(self) -> tuple[int, list[Entry | None]]:
        """Returns the entry to begin with, and the number before it."""
        try:
            hint = self.storage.get(log.LATEST, MAX_SMALL_BYTES)
        except NotFound:
            hint = b""
        if hint.isdigit() and len(hint) <= 16:
            start = int(hint) // log.SNAPSHOT_INTERVAL * log.SNAPSHOT_INTERVAL
            entry = self.entry(start)
            if entry is not None and entry["all"] is not None:
                return start - 1, [entry]
        return 0, [self.entry(1)]

    def entry(self, number: int) -> Entry | None:
        try:
            return log.decode(number, self.storage.get(log.key(number))) if number else None
        except NotFound:
            return None

    def append(self, fill: Callable[[Entry], None]) -> int:
        """Appends the entry that `fill` completes for the state as it is then; once more where
        another writer was faster. Returns its number. Raises what `fill` raises, and Conflict."""
        for _ in range(MAX_TRIES):
            number, id = self.state.position()
            number += 1
            entry = log.new_entry(secrets.token_hex(16), id)
            fill(entry)
            if number % log.SNAPSHOT_INTERVAL == 0:
                entry["all"] = self.state.snapshot()
            if self.storage.put_if_absent(log.key(number), log.encode(entry)):
                self.state.apply(number, [entry])
                if number % log.HINT_INTERVAL == 0:
                    self.storage.put(log.LATEST, str(number).encode())
                return number
            self.catch_up()
        raise Conflict(f"{self.storage.url}: too many writers at once; try again")

    def load_indexes(self) -> None:
        """Reads those indexes of live packs that are not here yet."""
        for name, data in parallel(partial(self._index, pack) for pack in self.state.unindexed()):
            self.state.add_index(name, data)

    def _index(self, pack: Pack) -> tuple[str, bytes]:
        size = pack.size - pack.offset - TRAILER.size
        if not 0 < size <= MAX_INDEX_BYTES:
            raise Corrupt(f"{self.storage.url}: pack {pack.name} cannot have that index")
        return pack.name, self.storage.get_range(log.pack_key(pack.name), pack.offset, size)
