"""Settings and their precedence: flag > environment > the store's `config.toml` > the
user's `config.toml` > default.

The files may also hold agent profiles, `[agents.NAME]`, which `casfs.agents.notation` reads, and
the store's file its remotes, `[remotes.NAME]` (`casfs.remotes.remote`).

Settings are few and flat (`runs.limit`): a number, a text or a list of texts. In TOML the
part before the dot is a table; in the environment a list is written as in TOML.
The environment is passed in, not read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from casfs.errors import Failed, Invalid, NotFound

FILE = "config.toml"
AGENTS = "agents"  # tables of tables
REMOTES = "remotes"
IMPORT = "import"  # where the heads of an archive are from; no remote has this name
SHARED = "shared"  # the place of a shared store; all other tables hold settings


class Setting(NamedTuple):
    """A known setting: its name, default (of the same type), help, and a number's minimum."""

    name: str
    default: Any
    help: str
    minimum: int = 0

    @property
    def variable(self) -> str:
        """`runs.limit` is CASFS_RUNS_LIMIT in the environment."""
        return "CASFS_" + self.name.replace(".", "_").upper()


class Value(NamedTuple):
    setting: Setting
    value: Any
    origin: str


SETTINGS = (
    Setting("runs.limit", 8, "threads (runs of workflows) that the daemon runs at once", minimum=1),
    Setting(
        "runs.keep_waiting",
        900,
        "seconds for which an agent that asks a person keeps its process (0 = it is ended)",
    ),
    Setting("runs.max_workspace", 20 << 30, "bytes of a thread's workspace (0 = no limit)"),
    Setting("attach.max_size", 20 << 30, "bytes of an attached agent's directory (0 = no limit)"),
    Setting(
        "attach.max_turn_trees",
        10 << 30,
        "bytes of trees of tool calls in an attached directory; the oldest go first (0 = no limit)",
    ),
    Setting("mount.transport", "builtin", "FUSE implementation: builtin or libfuse"),
    Setting(
        "mount.native", "auto", "native mounts of trees that are walked, for root: auto or off"
    ),
    Setting("gc.grace_s", 86400, "seconds of grace before an unreferenced blob is deleted"),
    Setting("gc.max_size", 0, "bytes of content above which cache is evicted (0 = no limit)"),
    Setting("gc.max_inodes", 0, "maximum number of object files (0 = no limit)"),
    Setting("gc.keep_checkpoints", 0, "checkpoints to keep per name (0 = all)"),
    Setting("cache.max_size", 10 << 30, "bytes of disk for frames of lazy packs (0 = no limit)"),
    Setting("pack.older_than", "", "age of blobs that the daemon packs, like 30d (empty = none)"),
    Setting("extractor.url", "", "base URL of the chat-completions API used for extraction"),
    Setting("extractor.model", "", "extraction model; empty = no model is called"),
    Setting("extractor.key_env", "", "environment variable that holds the API key"),
    Setting("limits.memory", "", "of an attempt, like 2G (empty = no limit)"),
    Setting("limits.processes", 0, "of an attempt, threads included (0 = no limit)"),
    Setting("limits.cpu_s", 0, "seconds of processor time of an attempt (0 = no limit)"),
    Setting(
        "limits.network", default=True, help="whether the programs of an attempt have a network"
    ),
    Setting(
        "limits.enforce", default=True, help="whether an attempt fails where a limit cannot be held"
    ),
    Setting("snapshot.work", [], "patterns of paths that are recorded though they look private"),
    Setting("snapshot.private", [], "patterns of paths that are kept here, as .env is"),
    Setting("snapshot.allow", [], "wrong alarms: PATH:LINE, or the hash of a secret or a file"),
    Setting("actions.cacheable", [], "command prefixes whose results are cached"),
)


def store_root(flag: str | None, env: Mapping[str, str]) -> Value:
    """Returns the store's directory: --store, CASFS_STORE, else below the user's data directory."""
    setting = Setting("store", "", "the directory of the store")
    if flag:
        return Value(setting, Path(flag).absolute(), "--store")
    if env.get("CASFS_STORE"):
        return Value(setting, Path(env["CASFS_STORE"]).absolute(), "CASFS_STORE")
    if env.get("XDG_DATA_HOME"):
        return Value(setting, Path(env["XDG_DATA_HOME"]).absolute() / "casfs", "XDG_DATA_HOME")
    return Value(setting, _home(env) / ".local/share/casfs", "default")


def user_file(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CONFIG_HOME")
    return (Path(base) if base else _home(env) / ".config") / "casfs" / FILE


def load(root: Path, env: Mapping[str, str]) -> list[Value]:
    """Returns every setting with its value and origin. Raises Invalid naming file and setting."""
    files = [(path, _read(path)) for path in (root / FILE, user_file(env))]
    return [_lookup(setting, env, files) for setting in SETTINGS]


def values(root: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """As `load`, the values only."""
    return {setting_value.setting.name: setting_value.value for setting_value in load(root, env)}


def agents(root: Path, env: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    """Returns the agent profiles, `[agents.NAME]` in the files: what each holds, and its file. The
    store's file has precedence over the user's. Raises Invalid."""
    files = (user_file(env), root / FILE)
    return {
        name: profile for path in files for name, profile in _agents(_tables(path), path).items()
    }


def agents_file(data: bytes, path: Path) -> dict[str, tuple[object, str]]:
    """As `agents`, of the content of a file that holds nothing else. Raises Invalid."""
    tables = parsed(data, path)
    if other := [name for name in tables if name != AGENTS]:
        raise Invalid(f"{path}: {other[0]}: only [agents.NAME] tables are read here")
    return _agents(tables, path)


def remotes(root: Path) -> dict[str, dict[str, object]]:
    """Returns the remotes in the store's file: what each table holds. Raises Invalid."""
    tables = _group(_tables(root / FILE), REMOTES, root / FILE)
    return {name: value if isinstance(value, dict) else {} for name, value in tables.items()}


class Shared(NamedTuple):
    """The table [shared] of a machine's directory: the database and the objects of a shared store.
    Credentials are elsewhere."""

    url: str
    objects: str
    endpoint: str | None = None
    region: str | None = None


def shared(root: Path) -> Shared | None:
    """Returns where the store's content is; None for a store on this disk. Raises Invalid."""
    path = root / FILE
    table = _tables(path).get(SHARED)
    if table is None:
        return None
    texts = table if isinstance(table, dict) else {}
    if not {"url", "objects"} <= texts.keys() <= {*Shared._fields} or not all(
        isinstance(text, str) for text in texts.values()
    ):
        raise Invalid(f"{path}: [shared] must hold url and objects, and may hold endpoint, region")
    return Shared(**texts)


def _agents(tables: dict[str, Any], path: Path) -> dict[str, tuple[object, str]]:
    return {name: (profile, str(path)) for name, profile in _group(tables, AGENTS, path).items()}


def _group(tables: dict[str, Any], group: str, path: Path) -> dict[str, object]:
    group_tables = tables.get(group, {})
    if not isinstance(group_tables, dict):
        raise Invalid(f"{path}: {group} must hold tables, [{group}.NAME]")
    return group_tables


def _lookup(
    setting: Setting, env: Mapping[str, str], files: list[tuple[Path, dict[str, Any]]]
) -> Value:
    if setting.variable in env:
        return Value(
            setting, parse(setting, env[setting.variable], setting.variable), setting.variable
        )
    for path, values in files:
        if setting.name in values:
            return Value(setting, _typed(setting, values[setting.name], str(path)), str(path))
    return Value(setting, setting.default, "default")


def _tables(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None
    return parsed(data, path)


def parsed(data: bytes, path: Path) -> dict[str, Any]:
    """Returns the content of a TOML file. Raises Invalid."""
    import tomllib  # most stores have no such file

    try:
        return tomllib.loads(data.decode("utf-8"))
    except ValueError as error:
        raise Invalid(f"{path}: not TOML: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    known = {setting.name for setting in SETTINGS}
    flat: dict[str, Any] = {}
    for table, values in _tables(path).items():
        if table in (AGENTS, REMOTES, SHARED):
            continue
        pairs = values.items() if isinstance(values, dict) else [("", values)]
        flat |= {f"{table}.{key}".rstrip("."): value for key, value in pairs}
    for name in flat:
        if name not in known:
            raise Invalid(f"{path}: no setting {name!r}; see `casfs config`")
    return flat


def setting(name: str) -> Setting:
    """Raises NotFound."""
    for known_setting in SETTINGS:
        if known_setting.name == name:
            return known_setting
    raise NotFound(f"no setting {name!r}; see `casfs config`")


def parse(setting: Setting, text: str, where: str) -> Any:
    """Returns the value that a text stands for, in the environment or on a command line. Raises
    Invalid naming `where`."""
    if isinstance(setting.default, bool):
        if text not in ("true", "false"):
            raise Invalid(f"{where}: {text!r} is not true or false")
        return text == "true"
    if isinstance(setting.default, int):
        try:
            return _typed(setting, int(text), where)
        except ValueError:
            raise Invalid(f"{where}: {text!r} is not a whole number") from None
    if isinstance(setting.default, list):
        import tomllib

        try:
            return _typed(setting, tomllib.loads(f"value = {text}")["value"], where)
        except tomllib.TOMLDecodeError:
            raise Invalid(f'{where}: {text!r} is not a list, like ["a", "b"]') from None
    return text


def _typed(setting: Setting, value: Any, where: str) -> Any:
    if type(value) is not type(setting.default):
        kind = type(setting.default).__name__
        raise Invalid(f"{where}: {setting.name} must be of type {kind}, is {value!r}")
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        raise Invalid(f"{where}: {setting.name} must be a list of strings, is {value!r}")
    if isinstance(value, int) and value < setting.minimum:
        raise Invalid(f"{where}: {setting.name} must be {setting.minimum} or more, is {value}")
    return value


def _home(env: Mapping[str, str]) -> Path:
    return Path(env["HOME"]) if env.get("HOME") else Path.home()
