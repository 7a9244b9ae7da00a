"""Secrets: values of environment variables that an agent's config names, values of private files,
what the scanner finds, and their redaction.

The engine gives an agent the secrets of its thread (`AgentContext.secrets`). All that the agent
puts through `AgentContext.store` is redacted by the store; text that it sends elsewhere, such as
to a model, it redacts with `Secrets.redact`. A redacted variable reads `$NAME`, any other secret
`‹secret:KIND:n›`. Trees are left as they are: they are the work.
"""

from __future__ import annotations

import base64
import io
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, BinaryIO
from urllib.parse import quote

from casfs.agents.payload_structure import redact_texts
from casfs.agents.secret_marks import SecretMarks
from casfs.backend.protocols import Backend, Head, HeadName
from casfs.digest import Digest, NodeDigest, NodeHash
from casfs.scanner import Scanner
from casfs.scanner.findings import texts_in
from casfs.scanner.spellings import Span, base64_forms
from casfs.store.nodes.head_kinds import THREADS
from casfs.store.nodes.registry import Registry
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.log import Log

SECRETS_VARIABLE = "CASFS_SECRETS"  # names of variables, for what a step's program puts itself
JSON_VALUES = (str, int, list, type(None))  # others are logged as text
MIN_SECRET_CHARS = 6  # of a variable; shorter values occur in ordinary text
MIN_CHARS_WITHIN_WORDS = 6  # a shorter one counts as a whole word only
NO_NAMES: Mapping[str, str] = {}
SEARCH_CHUNK_BYTES = 1 << 20
PRIVATE = "private"  # the kind of a value in a private file
TREE = "directory"
STEP = "thread-step"
STEP_TEXTS = ("meta",)  # the other fields are hashes and numbers
RECORD_TEXTS = ("reason", "name", "message")
HIGHEST_MARK = "secretMarks"  # in the record of a thread: a later run gives higher numbers
DEFINITIONS = ("agent", "role", "role-schema", "schema", "thread-agents", "workflow")


Forms = Sequence[tuple[str, str]]  # a text that is replaced, and what replaces it


class Secrets:
    """`values`: variable name to value; `private_values`: of private files; `marks`: of all that is
    redacted without a name, by default what a scanner finds that allows nothing. False where it
    holds no value that is long enough to be redacted."""

    def __init__(
        self,
        values: Mapping[str, str],
        private_values: Iterable[str] = (),
        marks: SecretMarks | None = None,
    ) -> None:
        self.values = values
        self.private_values: frozenset[str] = frozenset()
        # All values that are known by now of files that an agent may be writing; the same object
        # while there is none more.
        self.current_values: Callable[[], frozenset[str]] | None = None
        self._seen_values: frozenset[str] | None = None
        self._lock = threading.Lock()
        self.marks = marks or SecretMarks(Scanner())
        self._variables = {value: f"${name}" for name, value in values.items()}
        self._variable_forms = _sorted_forms(self._variables)
        self.add_private(private_values)

    def add_private(self, values: Iterable[str]) -> None:
        """Redacts more values of private files from now on, in every store of these secrets."""
        self.private_values |= frozenset(values)
        private = {
            value: self.marks.mark(PRIVATE, _bytes(value)) for value in sorted(self.private_values)
        }
        short = {value: mark for value, mark in private.items() if len(value) < MIN_SECRET_CHARS}
        self._forms = _sorted_forms({**private, **self._variables}, short)

    def look_again(self) -> None:
        """Redacts the values, too, that have appeared in files since. Called before anything that
        an agent may have read there is kept or shown."""
        if self.current_values is None:
            return
        # A second thread sees no change any more: it waits until the first has added the values.
        with self._lock:
            values = self.current_values()
            if values is not self._seen_values:
                self._seen_values = values
                self.add_private(values)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __or__(self, other: Secrets) -> Secrets:
        """Returns both. What one of them lets through, both do; else the marks are `other`'s."""
        marks = other.marks if self.marks.scanner else self.marks
        values = {**self.values, **other.values}
        both = Secrets(values, self.private_values | other.private_values, marks)
        # At most one of them has files that are written meanwhile: those of the inner thread.
        both.current_values = self.current_values or other.current_values
        return both

    @property
    def names(self) -> list[str]:
        return sorted(self.values)

    def redact(self, text: str) -> str:
        """Replaces every value by `$NAME`, also where it is escaped in JSON, and what the scanner
        finds by its mark."""
        return self.marks.in_text(self.redact_values(text))

    def redact_bytes(self, data: bytes) -> bytes:
        return self.marks.in_bytes(self.redact_values_in_bytes(data))

    def redact_json(self, value: Any) -> Any:
        """Returns a JSON value with every string in it redacted, keys included."""
        return self.marks.in_json(self.redact_values_in_json(value))

    def redact_values(self, text: str) -> str:
        """As `redact`, but without the scanner: for the work, and for what passed it before."""
        return _replaced(text, self._forms)

    def redact_values_in_bytes(self, data: bytes) -> bytes:
        if not self._forms:
            return data
        text = data.decode("utf-8", "surrogateescape")
        replaced = _replaced(text, self._forms)
        return data if replaced == text else replaced.encode("utf-8", "surrogateescape")

    def redact_values_in_json(self, value: Any) -> Any:
        return _replaced_in_json(value, self._forms) if self._forms else value

    def redact_variables_in_json(self, value: Any) -> Any:
        """As `redact_values_in_json`, but only values of variables: for names and definitions, in
        which a value of a private file may be an ordinary word, such as a model's name."""
        return _replaced_in_json(value, self._variable_forms) if self._variable_forms else value

    def begins_at_end(self, data: bytes) -> int:
        """Returns how many bytes at the end of `data` may be the beginning of a secret."""
        forms = [_bytes(value) for value, _ in self._forms]
        longest = max(map(len, forms), default=1) - 1
        ends = (data[-count:] for count in range(min(longest, len(data)), 0, -1))
        known = next((len(end) for end in ends if any(form.startswith(end) for form in forms)), 0)
        return max(known, self.marks.begin_at_end(data))

    def names_in(self, data: bytes) -> list[str]:
        """Returns the variables whose values occur in `data`, sorted."""
        return sorted(
            {name.removeprefix("$") for value, name in self._forms if _bytes(value) in data}
        )

    def names_in_file(self, file: BinaryIO) -> list[str]:
        """Returns the variables whose values occur in a file, read in chunks."""
        longest = max((len(_bytes(value)) for value, _ in self._forms), default=0)
        names: set[str] = set()
        data = b""
        while piece := file.read(SEARCH_CHUNK_BYTES):
            data = data[-longest:] + piece  # a value may cross a chunk border
            names.update(self.names_in(data))
        return sorted(names)

    def redacting_log(self, log: Log) -> Log:
        """Returns a log that redacts the texts of every event."""

        def redacted(event: str, **fields: Any) -> None:
            values = {
                key: value if isinstance(value, JSON_VALUES) else str(value)
                for key, value in fields.items()
            }
            log(event, **{**values, **self.redact_json(values)})

        return redacted


def of_step(env: Mapping[str, str]) -> Secrets:
    """Returns the secrets of the step in whose program `env` is the environment."""
    names = filter(None, env.get(SECRETS_VARIABLE, "").split(","))
    return Secrets({name: env[name] for name in names if env.get(name)})


def _sorted_forms(names: Mapping[str, str], short: Mapping[str, str] = NO_NAMES) -> Forms:
    """Returns the forms of all values that are long enough, longest first; `names`: value to what
    replaces it; `short`: those that count as they stand, however long."""
    forms = {
        form: name
        for value, name in names.items()
        if len(value) >= MIN_SECRET_CHARS
        for form in _forms(value)
    }
    return sorted({**short, **forms}.items(), key=lambda pair: -len(pair[0]))


def _replaced(text: str, forms: Forms) -> str:
    for form, name in forms:
        if form in text:
            text = text.replace(form, name) if _is_long(form) else _word(form).sub(name, text)
    if len(text) < MIN_SECRET_CHARS or not forms:
        return text
    data = text.encode("utf-8", "surrogatepass")
    replaced = _replaced_in_readings(data, forms)
    return text if replaced is data else replaced.decode("utf-8", "surrogatepass")


def _is_long(form: str) -> bool:
    """Returns whether a value is replaced within a word, too."""
    return len(form) >= MIN_CHARS_WITHIN_WORDS


@cache
def _word(form: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(form)}(?!\w)")


def _replaced_in_readings(data: bytes, forms: Forms) -> bytes:
    """Replaces a value that a text has in another spelling: coloured, in base64, in UTF-16."""
    spans: dict[Span, str] = {}
    for wrapped in texts_in(data) if forms else ():
        if not wrapped.readings:  # as it stands it was replaced before
            continue
        for form, name in filter(lambda pair: _is_long(pair[0]), forms):
            value = _bytes(form)
            offset = wrapped.data.find(value)
            while offset >= 0:
                spans.setdefault(wrapped.span(offset, offset + len(value)), name)
                offset = wrapped.data.find(value, offset + len(value))
    end = len(data)
    for start, stop in sorted(spans, reverse=True):
        if stop <= end:  # else it is a part of the one before
            data = data[:start] + spans[start, stop].encode() + data[stop:]
            end = start
    return data


def _replaced_in_json(value: Any, forms: Forms) -> Any:
    if isinstance(value, str):
        return _replaced(value, forms)
    if isinstance(value, Mapping):
        return {
            _replaced(key, forms): _replaced_in_json(member, forms) for key, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [_replaced_in_json(item, forms) for item in value]
    return value


def _forms(value: str) -> set[str]:
    """Returns the forms in which a value occurs in text: plain, inside a JSON string and a URL, in
    base64, and for a value of several lines, in a diff."""
    in_json = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    in_url = {quote(value, safe="", errors="replace"), quote(value, errors="replace")}
    alone = base64.b64encode(_bytes(value)).decode().rstrip("=")
    in_base64 = {alone, *(form.decode() for form in base64_forms(_bytes(value)))}
    in_diff = (value.replace("\n", f"\n{mark}") for mark in "+- ")
    return {value, *in_json, *in_url, *in_base64, *in_diff}


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


NO_SECRETS = Secrets({})


def redacting_store(store: Store, secrets: Secrets) -> Store:
    """Returns a view of `store` that redacts, also what `store` redacts already."""
    return RedactingStore(store, secrets)


class RedactingStore(Store):
    """A store whose writes are redacted; reads are not."""

    def __init__(self, store: Store, secrets: Secrets) -> None:
        super().__init__(store.backend, store.root)
        self.registry = store.registry
        self.cache = store.cache
        self.purged = store.purged
        is_first = not isinstance(store, RedactingStore)
        self.secrets = secrets if is_first else secrets_of(store) | secrets

    def batch(self) -> Batch:
        return _RedactingBatch(self.backend, self.registry, self.secrets)


def secrets_of(store: Store) -> Secrets:
    """Returns the secrets that a store redacts."""
    return store.secrets if isinstance(store, RedactingStore) else NO_SECRETS


def put_work(batch: Batch, data: bytes) -> Digest:
    """Puts what shows files of a tree, such as a patch: what the scanner finds in it stays."""
    return batch.put_work(data) if isinstance(batch, _RedactingBatch) else batch.put(data)


def put_structure(batch: Batch, type: str, payload: Mapping[str, Any]) -> NodeDigest:
    """Puts a node of what casfs compares: paths, kinds, references, no text that anybody wrote. A
    value of an `.env` is often a word of these, and redacted they would mean nothing."""
    if isinstance(batch, _RedactingBatch):
        return batch.put_structure(type, payload)
    return batch.put_known(type, payload)


class _RedactingBatch(Batch):
    _is_structure = False
    _has_looked = False

    def __init__(self, backend: Backend, registry: Registry, secrets: Secrets) -> None:
        super().__init__(backend, registry)
        self._secrets = secrets

    def put_stream(self, source: BinaryIO) -> Digest:
        """Unlike other batches, this one reads the whole stream into memory."""
        if not self._has_looked:
            self._look_again()
        return super().put_stream(io.BytesIO(self._secrets.redact_bytes(source.read())))

    def put_structure(self, type: str, payload: Mapping[str, Any]) -> NodeDigest:
        self._is_structure = True
        try:
            return self.put_known(type, payload)
        finally:
            self._is_structure = False

    def put_node(self, type: str, payload: Any) -> NodeDigest:
        if self._is_structure or type == TREE:
            return super().put_node(type, payload)
        # With a mark in it, a definition would not work any more.
        has_marks = type != STEP and type not in DEFINITIONS
        if has_marks and not self._has_looked:
            self._look_again()
        redact = self._secrets.redact_json if has_marks else self._secrets.redact_variables_in_json
        payload = redact_texts(lambda: self._type(type)[1].document, payload, redact, type)
        if type == STEP:
            payload = self._in_fields(payload, STEP_TEXTS)
        return super().put_node(type, payload)

    def _look_again(self) -> None:
        # Once: what a batch puts was there when it began.
        self._has_looked = True
        self._secrets.look_again()

    def _in_fields(self, value: Any, texts: Collection[str]) -> dict[str, Any]:
        """Redacts the fields of an object that hold free text: the scanner takes longer to look for
        texts in all of it than to scan these."""
        fields = {name: self._secrets.redact_json(value[name]) for name in texts if value.get(name)}
        return {**value, **fields}

    def put_work(self, data: bytes) -> Digest:
        return super().put_stream(io.BytesIO(self._secrets.redact_values_in_bytes(data)))

    def move(self, name: HeadName, old: Head, hash: NodeHash, record: Mapping[str, Any]) -> Head:
        highest = max(self._secrets.marks.highest, record.get(HIGHEST_MARK, 0))
        if name.startswith(THREADS) and highest:
            record = {**record, HIGHEST_MARK: highest}
        known = self._secrets.redact_variables_in_json(record)
        return super().move(name, old, hash, self._in_fields(known, RECORD_TEXTS))
