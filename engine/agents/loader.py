"""The loader of agent packages: entry points of the group `casfs.agents` (`casfs.agents`)."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

from casfs import canonical
from casfs.agents import AgentFn, notation
from casfs.agents.acp_profiles import PROFILES
from casfs.agents.notation import AgentSpec
from casfs.errors import CasfsError, Failed, Invalid, NotFound, Refused
from casfs.store.nodes.schema import Schema
from casfs.system import run_command
from casfs.version import VERSION
from engine.agents import worker_client
from engine.agents.worker_processes import WORKER
from engine.processes.limits import faults as limit_faults
from engine.secrets.config_marks import AGENT, ENV, EXPRESSION, VARIABLE, marked_values
from engine.secrets.redaction import variables

ENTRY_POINT_GROUP = "casfs.agents"
BUILTIN_MODULES = "engine.agents."
LIMITS = "limits"  # in the config of any package: for the engine
TURN_TREES = "turnTrees"
IMPORT_TIMEOUT_S = 10.0
MAX_WRITTEN_BYTES = 4 << 20
_found_points: tuple[object, EntryPoints] | None = None
_described: dict[str, tuple[object, Mapping[str, Any], list[str]]] = {}  # by target, stamped
MISSING = re.compile(r'"([^"]+)" is a required property')
DESCRIPTOR_TYPES = {"configSchema": "an object", "schemas": "a list", "capabilities": "a list"}


class _Bounded(io.BytesIO):
    """What a process writes at the import of a package."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MAX_WRITTEN_BYTES:
            raise Failed(f"its import writes more than {MAX_WRITTEN_BYTES >> 20} MiB")
        return super().write(data)


@dataclass(frozen=True)
class Package:
    """An agent package. `version`: of the code that runs; `is_builtin`: it runs in this process,
    others in processes of their own, with the version that is installed then."""

    name: str
    version: str
    descriptor: Mapping[str, Any] = field(repr=False)
    create: Callable[[Mapping[str, Any]], AgentFn] = field(repr=False)
    is_builtin: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its config."""
        return dict(self.descriptor.get("configSchema", {}))

    def check_config(self, config: Any) -> None:
        """Raises Invalid naming the path in the config."""
        for fault in limit_faults(limits(config), f"config.{LIMITS}"):
            raise Invalid(fault)
        if not isinstance(config.get(TURN_TREES, False), bool):
            raise Invalid(f"config.{TURN_TREES}: must be true or false")
        try:
            _config_schema(canonical.encode(self.schema)).check(own_config(config))
        except Invalid as error:
            path, _, fault = str(error).partition(": ")
            path = f"config{path.removeprefix('$')}"
            if missing := MISSING.fullmatch(fault):
                raise Invalid(f"{path}.{missing[1]} is required") from None
            raise Invalid(f"{path}: {fault}") from None
        for text in marked_values(self.schema, config, EXPRESSION):
            from engine.moderator import rules

            if faults := rules.result_errors(text, {}):
                name = next((f".{key}" for key, setting in config.items() if setting is text), "")
                raise Invalid(f"config{name}: {faults[0]}")

    def secret_names(self, config: Any) -> set[str]:
        """Returns the variables that a config names as secrets, those of nested agents included."""
        return self._variables(config, (ENV,))

    def variable_names(self, config: Any) -> set[str]:
        """Returns all environment variables that a config names, secret or not."""
        return self._variables(config, (ENV, VARIABLE))

    def _variables(self, config: Any, formats: Collection[str]) -> set[str]:
        variable_names = variables(self.schema, config, formats)
        for nested in marked_values(self.schema, config, AGENT):
            with suppress(CasfsError):  # reported when the thread starts
                agent = notation.package(nested)
                variable_names |= load(agent["name"])._variables(agent["config"], formats)
        return variable_names

    def nested_agents(self, config: Any) -> Iterator[AgentSpec]:
        """Yields the agents that a config names. Raises Invalid."""
        for nested in marked_values(self.schema, config, AGENT):
            yield notation.package(nested)


def limits(config: Mapping[str, Any]) -> Any:
    """Returns the limits that an agent's config sets for its attempts."""
    return config.get(LIMITS, {})


def own_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a config that is the package's own."""
    return {name: value for name, value in config.items() if name not in (LIMITS, TURN_TREES)}


def names() -> list[str]:
    """Returns the names of all installed agent packages, also of those that do not load."""
    return sorted(_points().names)


def unknown(name: str, profiles: Collection[str] = ()) -> NotFound:
    """Returns the error for a name that no package and no profile has, with the nearest one."""
    known = [*profiles, *names(), *(f"acp:{profile}" for profile in PROFILES)]
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else "see `casfs agent list`"
    return NotFound(f"no agent or profile {name!r}; {hint}")


def load(name: str) -> Package:
    """Loads an agent package. Raises NotFound where none has that name, Failed where it does not
    load or its descriptor is invalid."""
    points = sorted(_points().select(name=name), key=_is_third_party)
    if not points:
        raise unknown(name)
    try:
        package = _third_party(points[0]) if _is_third_party(points[0]) else _builtin(points[0])
        check(package)
    except CasfsError as error:
        raise Failed(f"agent {name}: does not load: {error}") from error
    return package


def _points() -> EntryPoints:
    """Returns the installed agent packages. Among a hundred distributions that takes 30 ms, several
    times a step, so it is done again only once a directory of the import path has changed."""
    global _found_points
    stamp = tuple((path, _changed_at(path)) for path in sys.path)
    if _found_points is None or _found_points[0] != stamp:
        _found_points = stamp, entry_points(group=ENTRY_POINT_GROUP)
    return _found_points[1]


def _changed_at(path: str) -> int | None:
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return None


@lru_cache(maxsize=64)
def _config_schema(document: bytes) -> Schema:
    """Returns a compiled configSchema, by its canonical JSON. Raises Invalid."""
    return Schema(canonical.decode(document), new=True)


def _builtin(point: EntryPoint) -> Package:
    module = point.load()
    return Package(
        point.name, VERSION, descriptor=module.package_descriptor, create=module.create_agent
    )


def _third_party(point: EntryPoint) -> Package:
    """Returns a package with the descriptor that a process of its own has read; this one never
    imports its code. Raises Failed."""
    version = _version(point)
    name = None if point.dist is None else point.dist.name
    stamp, descriptor, files = _described.get(point.value, ((), {}, []))
    if stamp != (version, _stamp(files)):
        descriptor, files = _describe(point.value)
        _described[point.value] = (version, _stamp(files)), descriptor, files
    create = partial(worker_client.create_agent, point, (name, version))
    return Package(point.name, version, descriptor=descriptor, create=create, is_builtin=False)


def _describe(target: str) -> tuple[Mapping[str, Any], list[str]]:
    """Asks a process for a package's descriptor and files: an import that hangs, exits or crashes
    ends that process and not this one. Raises Failed."""
    path = json.dumps([os.path.abspath(directory) for directory in sys.path])
    answer = _Bounded()
    said = _Bounded()
    ended = run_command.run(
        [*WORKER, target, path],
        cwd=Path("/"),
        env=os.environ,
        timeout=IMPORT_TIMEOUT_S,
        stdout=(answer,),
        stderr=(said,),
    )
    if ended.timed_out:
        raise Failed(f"its import takes longer than {IMPORT_TIMEOUT_S:g} s")
    try:
        description = canonical.parse(answer.getvalue())
        if "error" in description:
            raise Failed(str(description["error"]))
        return dict(description["descriptor"]), [str(file) for file in description["files"]]
    except (Invalid, LookupError, TypeError, ValueError):
        lines = said.getvalue().decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "nothing on stderr")
        reason = f"its import ends the process (exit code {ended.exit_code}): {last}"
        raise Failed(reason) from None


def _stamp(files: Iterable[str]) -> list[float]:
    return [os.path.getmtime(file) for file in files if os.path.exists(file)]


def _is_third_party(point: EntryPoint) -> bool:
    """Sorts built-in agents first: no other package can replace one."""
    return not point.value.startswith(BUILTIN_MODULES)


def check(package: Package) -> None:
    """Raises Invalid for an unusable descriptor."""
    canonical.encode(package.descriptor)
    for key, form in DESCRIPTOR_TYPES.items():
        kind = Mapping if form == "an object" else list | tuple
        if key in package.descriptor and not isinstance(package.descriptor[key], kind):
            raise Invalid(f"package_descriptor.{key} must be {form}")
    try:
        _config_schema(canonical.encode(package.schema))
    except Invalid as error:
        raise Invalid(f"package_descriptor.configSchema: {error}") from None


def resolve(name: str, version: str, config: Mapping[str, Any]) -> Package:
    """Returns the installed package, which must satisfy a PEP 440 specifier ("" is any) and accept
    `config`; so must its nested agents. Raises NotFound, Invalid, Refused (the version), Failed."""
    package = load(name)
    # As the engine pins it: such a specifier is read without the library, which is slow to import.
    if version not in ("", f"=={package.version}"):
        _check_version(package, version)
    package.check_config(dict(config))
    for nested in package.nested_agents(config):
        resolve(nested["name"], nested["version"], nested["config"])
    return package


def _check_version(package: Package, version: str) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        wanted = SpecifierSet(version)
    except InvalidSpecifier:
        raise Invalid(
            f"agent {package.name}: {version!r} is not a PEP 440 version specifier"
        ) from None
    if not wanted.contains(package.version, prereleases=True):
        raise Refused(
            f"agent {package.name}: version {package.version} is installed, not {version}"
        )


def _version(point: EntryPoint) -> str:
    return point.dist.version if point.dist is not None else "0"
