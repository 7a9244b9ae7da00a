"""What an agent is to the engine, and the door it comes in by.

An agent package exports two names through the entry-point group `casfs.agents`:

    package_descriptor   {"name", "capabilities", "configSchema", "schemas"}
    create_agent(config) -> async (AgentContext) -> AgentResult

`configSchema` is a JSON Schema for the config; `schemas` lists the schema documents of the
detail nodes that the agent writes (seed 001 phase 6, seed 002). The entry point's object
may be a module or anything else with these two attributes; nothing has to be inherited.
A property of the config with `"format": "env"` names a variable whose value is a secret
(`engine.secrets`); one with `"format": "agent"` is a further agent, which has to be fit for use
when the thread starts, like this one.

An agent that can go on with what it began keeps in `context.conversation` what it needs for
that: the mapping is empty at a step's first try, and the same one when the prompt comes
again with a correction. The built-in agents come in by the same door. An agent that cannot
do its work raises; the thread is then suspended with the error as the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeAlias

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from casfs import canonical
from casfs.digest import Digest
from casfs.errors import CasfsError, Failed, Invalid, NotFound, Refused
from casfs.nodes.schema import Schema
from casfs.store import Store
from engine.marks import AGENT, marked
from engine.prompt import Prompt
from engine.secrets import NONE, Secrets, named

GROUP, OWN = "casfs.agents", "casfs"
HUMAN, CHILD = "human", "child"  # what an agent may wait for
STRANGE = (Exception, SystemExit)  # what a stranger's code may raise: anything
FORMS = {"configSchema": "an object", "schemas": "a list", "capabilities": "a list"}


async def _nobody(news: object) -> None:
    """Who is not interested in an agent's processes, or in its turns."""


@dataclass(frozen=True)
class Call:
    """A thread that an agent wants to have run for it. `agents`: role name to {name, config,
    version}; `workspace`: the tree it works on, None for the tree of the agent's own step."""

    workflow: str
    input: str
    agents: Mapping[str, Mapping[str, Any]]
    workspace: str | None = None
    max_rounds: int = 100


@dataclass(frozen=True)
class Called:
    """How such a thread ended. `end`: its thread-end; `output`, `meta`, `workspace`: of its last
    step; `tokens`: what it spent."""

    thread: str
    end: str
    return_code: int
    summary: str
    output: str
    meta: Mapping[str, Any]
    workspace: str | None
    tokens: int


async def _no_calls(call: Call) -> Called:
    raise Failed("nobody here can run a thread for an agent")


@dataclass(frozen=True)
class AgentContext:
    """What an agent is given for one step. `workspace` is its alone while it runs."""

    thread: str
    role: str
    step: int
    prompt: Prompt
    workspace: Path | None
    store: Store
    depth: int = 0
    run: str = ""  # unique to this try; processes carry it in CASFS_RUN
    env: Mapping[str, str] = field(default_factory=dict)  # for the processes it starts
    started: Callable[[int], Awaitable[None]] = _nobody  # to be told a process's id
    turn: Callable[[str], Awaitable[None]] = _nobody  # to be told a finished turn's node
    call: Callable[[Call], Awaitable[Called]] = _no_calls  # runs a thread and waits for its end
    answer: str | None = None  # what a human said to the question that was asked
    parent: str | None = None  # where the thread that called this one stood: a step or start
    agent: str = ""  # the agent's own node
    conversation: dict[str, Any] = field(default_factory=dict)  # kept from try to try of a step
    secrets: Secrets = NONE  # what must not be told to a model; `store` hides it by itself


@dataclass(frozen=True)
class AgentResult:
    """`output` is what the extractor reads, `detail` the root of the agent's own record; an
    integer `totalTokens` in it counts against the thread's budget. `workspace`: the tree to
    record, where that is not what the agent left in the directory."""

    output: str
    detail: Digest
    artifacts: tuple[str, ...] = ()
    workspace: str | None = None


class AgentFailed(Failed):
    """The agent did not do its work; `detail` is the record of how far it came, if any."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.detail = detail


class Waiting(CasfsError):
    """The agent cannot go on before something else has happened: no failure, and no try is
    counted. The thread rests until it is resumed, then the agent is asked again. `cause`:
    HUMAN or CHILD; `question`: a content node for whoever is to answer."""

    def __init__(self, cause: str, reason: str, question: str | None = None) -> None:
        super().__init__(reason)
        self.cause = cause
        self.question = question


AgentFn: TypeAlias = Callable[[AgentContext], Awaitable[AgentResult]]


@dataclass(frozen=True)
class Package:
    """An installed agent package."""

    name: str
    version: str
    descriptor: Mapping[str, Any] = field(repr=False)
    create: Callable[[Mapping[str, Any]], AgentFn] = field(repr=False)

    @property
    def schema(self) -> dict[str, Any]:
        """Of its configs."""
        return dict(self.descriptor.get("configSchema", {}))

    def check_config(self, config: Any) -> None:
        """Raises Invalid naming the path in the config."""
        try:
            Schema(self.schema).check(config)
        except Invalid as error:
            raise Invalid(f"agent {self.name}: config {error}") from None

    def secret_names(self, config: Any) -> set[str]:
        """The variables that a config names, and those of the agents that it names."""
        found = named(self.schema, config)
        for name, _, below in self.further(config):
            with suppress(CasfsError):  # it is said when the thread starts
                found |= load(name).secret_names(below)
        return found

    def further(self, config: Any) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """(name, version, config) of the agents that a config names in its turn."""
        for one in marked(self.schema, config, AGENT):
            if isinstance(one, Mapping) and isinstance(one.get("name"), str):
                yield one["name"], one.get("version", ""), one.get("config", {})


def names() -> list[str]:
    """The names of all installed agent packages, whether they load or not."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load(name: str) -> Package:
    """Raises NotFound where no package has that name, Failed where it does not load, or its
    descriptor is none."""
    points = sorted(entry_points(group=GROUP, name=name), key=_stranger)
    if not points:
        raise NotFound(f"no agent {name!r} is installed; see `casfs agent list`")
    point = points[0]
    try:
        door = point.load()
        package = Package(name, _version(point), dict(door.package_descriptor), door.create_agent)
        _check(package)
    except CasfsError as error:
        raise Failed(f"agent {name}: does not load: {error}") from error
    except STRANGE as error:
        raise Failed(f"agent {name}: does not load: {type(error).__name__}: {error}") from error
    return package


def _stranger(point: EntryPoint) -> bool:
    """Is it somebody else's? Nobody takes the place of a built-in agent."""
    return point.dist is None or point.dist.name != OWN


def _check(package: Package) -> None:
    """Raises Invalid for a descriptor that nothing could be done with."""
    canonical.encode(package.descriptor)
    if not callable(package.create):
        raise Invalid("create_agent cannot be called")
    for key, form in FORMS.items():
        kind = Mapping if form == "an object" else list | tuple
        if key in package.descriptor and not isinstance(package.descriptor[key], kind):
            raise Invalid(f"package_descriptor.{key} must be {form}")
    try:
        Schema(package.schema)
    except Invalid as error:
        raise Invalid(f"package_descriptor.configSchema: {error}") from None


def resolve(name: str, version: str, config: Mapping[str, Any]) -> Package:
    """The installed package that satisfies a PEP 440 specifier ("" is any) and whose config
    schema accepts `config`; so must the agents that it names. Raises NotFound, Invalid, Refused
    (the version), Failed."""
    package = load(name)
    try:
        wanted = SpecifierSet(version)
    except InvalidSpecifier:
        raise Invalid(f"agent {name}: {version!r} is no PEP 440 version specifier") from None
    if not wanted.contains(package.version, prereleases=True):
        raise Refused(f"agent {name}: version {package.version} is installed, not {version}")
    package.check_config(dict(config))
    for further in package.further(config):
        resolve(*further)
    return package


def _version(point: EntryPoint) -> str:
    return point.dist.version if point.dist is not None else "0"
