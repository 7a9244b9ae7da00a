"""Makes stores: on this disk, or in a database that machines share."""

from __future__ import annotations

from pathlib import Path

import click

from casfs import config
from casfs.cli.common import server_options, store_root
from casfs.cli.output import echo_result, json_option
from casfs.errors import Usage
from casfs.store.store import FORMAT, Store
from casfs.system import reserve


@click.command()
@click.argument("url", required=False)
@click.option("--objects", metavar="URL", help="Of a new shared store: s3://… or file:///DIR.")
@server_options
@click.option("--workflows", is_flag=True, help="Restore shipped workflows changed or removed.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@json_option
def init(
    url: str | None, objects: str | None, endpoint: str | None,
    region: str | None, workflows: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Make a store with the shipped workflows, or update an existing one.

    With the URL of a PostgreSQL database, make a store that machines share, or join it; --store
    is this machine's directory. Passwords and keys come from the environment (PGPASSWORD,
    AWS_ACCESS_KEY_ID and so on) or the usual files, and are not recorded.

    \b
    casfs init
    casfs init --dry-run
    casfs init postgresql://db.example.org/casfs --objects s3://team/casfs
    casfs init postgresql://db.example.org/casfs
    """
    from engine.workflow import shipped

    path = store_root()
    if url is None and (objects or endpoint or region):
        raise Usage("--objects, --endpoint and --region belong to postgresql://HOST/DATABASE")
    wanted = (
        config.Shared(url, objects or "", endpoint=endpoint, region=region)
        if url
        else config.shared(path)
    )
    if wanted is not None:
        _init_shared(path, wanted, workflows=workflows, dry_run=dry_run)
    elif dry_run:
        _show_plan(path)
    else:
        with Store.init(path) as store:
            shipped.install(store, again=workflows)
            names = store.registry.names()
        reserve.allocate(path)
        echo_result({"store": str(path), "types": names}, f"{path}")


def _init_shared(path: Path, wanted: config.Shared, workflows: bool, dry_run: bool) -> None:
    from casfs.object_storage.location import open_storage
    from casfs.object_storage.probe import probe
    from engine.workflow import shipped

    existing = Store.check_shared(path, wanted)
    shared = existing or wanted
    storage = open_storage(shared.objects, endpoint=shared.endpoint, region=shared.region)
    value = {"store": str(path), "shared": {**shared._asdict(), "joined": existing is not None}}
    verb = "join" if existing else "make"
    where = f"{shared.url}, objects at {shared.objects}"
    if dry_run:
        line = f"{path} would {verb} the shared store at {where}"
        echo_result({**value, "dryRun": True}, line)
        return
    if existing is None:
        probe(storage)
    else:
        storage.head("casfs-probe")  # Raises where this machine has no access
    with Store.init_shared(path, *wanted) as store:
        if existing is None or workflows or (path / shipped.NOTE).exists():
            shipped.install(store, again=workflows)
        value["types"] = store.registry.names()
    reserve.allocate(path)
    echo_result(value, f"{path} {verb}s the shared store at {where}")


def _show_plan(path: Path) -> None:
    """Prints what `init` would do."""
    existing_format = Store.check_init(path)
    line = f"{path}: would be made, with format {FORMAT!r}"
    if existing_format:
        line = f"{path}: format {existing_format!r}; built-in types and workflows would be updated"
    echo_result({"store": str(path), "dryRun": True, "format": existing_format}, line)
