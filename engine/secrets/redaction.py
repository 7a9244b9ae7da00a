"""Redaction of secrets: values of environment variables that an agent's config names.

A config never holds a key, it names a variable; a config schema marks such a property with
`"format": "env"`. The variable's value is then a secret of the whole thread, whichever role it
belongs to, and of the thread's children. It is replaced by `$NAME` in every blob, node and record
that the thread's run or its agents put (`casfs.agents.secrets`), in prompts and tool results
(`Secrets.redact`), and in the log. So a program that prints its key, a model that repeats it and a
user who pasted it into the task are one case.

Files of the workspace are not redacted: they are the work, and are recorded unchanged; a file
that contains a secret is named in the log (`files_with_secrets`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import compress, islice
from pathlib import Path
from typing import Any

from casfs import config
from casfs.agents.secret_marks import SecretMarks
from casfs.agents.secrets import Secrets, redacting_store, secrets_of
from casfs.digest import TreeHash
from casfs.errors import CasfsError
from casfs.scanner import Scanner, scan
from casfs.scanner.private_names import is_private, private_names
from casfs.scanner.private_values import (
    decoded,
    named_strings,
    private_values,
    values_in_command,
)
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.trees import recorded_state, tree
from casfs.trees.recorded_state import RecordedState
from engine.secrets.config_marks import ENV, marked_values
from engine.secrets.private_files import PrivateFiles

ALLOWED = "snapshot.allow"
MAX_PRIVATE_BYTES = 1 << 20  # of a file whose values are looked for
WORD = re.compile(r"[^\s'\"<>;&|()=]+")  # of a command
MAX_WORK_FILE_BYTES = 64 << 10  # of a file that is searched for values as words
MAX_WORK_BYTES = 16 << 20  # that are searched for words; that are read at once
READ_FILES = 200

__all__ = ["files_with_secrets", "from_env", "redacting_store", "secrets_of", "variables"]


def from_env(
    names: Iterable[str],
    env: Mapping[str, str],
    marks: SecretMarks | None = None,
) -> Secrets:
    """Returns the secrets of the variables that are set. `marks`: as `new_marks`."""
    values = {name: env[name] for name in names if env.get(name)}
    return Secrets(values, marks=marks)


def values_in_private_files(
    store: Store, state: RecordedState, words: dict[str, bool]
) -> list[str]:
    """Returns the values in the private files of a state, which an agent may print: what the
    scanner finds in them, and of those that are private by their names every value, but words of
    the work whose names do not say that they are secrets. `words`: what is known of such; it
    grows."""
    return _values(store, state.tree, _recorded_contents(store, state), words)


class ValuesInDirectory:
    """The same of the private files in a directory in which an agent works: all values that
    were there at any time. A call looks at what has changed. `root`: its work, where that is
    known."""

    def __init__(
        self, store: Store, directory: Path, root: TreeHash | None, words: dict[str, bool]
    ) -> None:
        self._store = store
        self._root = root
        self._words = words
        self._files = PrivateFiles(directory, MAX_PRIVATE_BYTES)
        self._values: frozenset[str] = frozenset()

    def __call__(self) -> frozenset[str]:
        values = _values(self._store, self._root, self._files.changed(), self._words)
        if not self._values.issuperset(values):
            self._values |= frozenset(values)
        return self._values


def values_in_call(arguments: Any) -> list[str]:
    """Returns the values that a tool call is about to write into a private file, by its tool or in
    a command that names one: no look has seen them when its beginning is recorded."""
    texts = [text[:MAX_PRIVATE_BYTES] for _, text in named_strings(arguments)]
    words = (
        word.encode("utf-8", "surrogateescape") for text in texts for word in WORD.findall(text)
    )
    if not private_names(word.rpartition(b"/")[2] for word in words):
        return []
    return [value for text in texts for value in values_in_command(text)]


def _recorded_contents(store: Store, state: RecordedState) -> Iterator[tuple[bytes, bytes]]:
    for path, entry in recorded_state.local_paths(store, state.tree, state.full):
        if isinstance(entry, File) and entry.digest.size_bytes <= MAX_PRIVATE_BYTES:
            with suppress(CasfsError):  # purged, or damaged
                yield path.rpartition(b"/")[2], store.get(entry.digest.hash)


def _values(
    store: Store,
    root: TreeHash | None,
    contents: Iterable[tuple[bytes, bytes]],
    words: dict[str, bool],
) -> list[str]:
    values: list[str] = []
    doubtful: list[str] = []
    for name, data in contents:
        for finding in scan(data):
            secret = finding.secret.decode("utf-8", "replace")
            values += [secret, *(line for line in secret.split("\n") if len(line) >= 16)]
        if is_private(name):
            for value in private_values(decoded(data)):
                (values if value.is_secret else doubtful).append(value.text)
    unknown = {value for value in doubtful if value not in words}
    if root is not None and unknown:
        in_work = _words_of_work(store, root, unknown)
        words |= {value: value in in_work for value in unknown}
    return [*values, *(value for value in doubtful if not words.get(value))]


def _words_of_work(store: Store, root: TreeHash, values: set[str]) -> set[str]:
    """Returns which of these values a file of the work has as a word. Looks at text files up to a
    limit: a value that is not seen is taken for a secret."""
    left = MAX_WORK_BYTES
    missing = set(values)
    words = set[str]()
    files = (entry for _, entry in tree.walk(store, root) if isinstance(entry, File))
    while missing and left > 0 and (batch := list(islice(files, READ_FILES))):
        is_small = [file.digest.size_bytes <= MAX_WORK_FILE_BYTES for file in batch]
        small = [file.digest.hash for file in compress(batch, is_small)]
        try:
            contents = [data or b"" for data in store.blobs.get_many(small)]
        except CasfsError:  # one is purged, or damaged
            continue
        left -= sum(map(len, contents))
        pattern = re.compile(
            rb"(?<![\w-])(?:%b)(?![\w-])" % b"|".join(re.escape(word.encode()) for word in missing)
        )
        for data in contents:
            words |= {match.decode() for match in pattern.findall(data)}
        missing -= words
    return words


def new_marks(
    store: Store, env: Mapping[str, str], allows_all: bool = False, highest: int = 0
) -> SecretMarks:
    """Returns the marks of all that the scanner finds, but for what the store's settings allow;
    of nothing where all is allowed. `highest`: as SecretMarks. Raises Invalid for faulty
    settings."""
    if allows_all:
        return SecretMarks(None, highest)
    settings = config.values(store.root, env)
    return SecretMarks(Scanner(settings.get(ALLOWED, ())), highest)


def variables(schema: Any, config: Any, formats: Collection[str] = (ENV,)) -> set[str]:
    """Returns the variables that a config names, by its schema: as secrets, or by other marks."""
    names = (name for format in formats for name in marked_values(schema, config, format))
    return {name for name in names if isinstance(name, str)}


def files_with_secrets(
    store: Store, secrets: Secrets, before: TreeHash | None, after: TreeHash
) -> Iterator[tuple[str, list[str]]]:
    """Yields (path, names of variables) of each file that changed between two trees and contains
    a secret."""
    if not secrets:
        return
    for change in tree.diff(store, before, after):
        new = change.new
        if isinstance(new, File):
            if isinstance(change.old, File) and change.old.digest == new.digest:
                continue
            with store.blobs.open(new.digest.hash) as file:
                names = secrets.names_in_file(file)
            if names:
                yield printable(change.path), names
