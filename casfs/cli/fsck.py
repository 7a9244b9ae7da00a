"""The integrity check and its repairs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from casfs.backend.derived import total_stored
from casfs.backend.protocols import Total
from casfs.cli.common import open_store, store_root
from casfs.cli.json_values import record
from casfs.cli.output import echo, echo_json, echo_line, json_option, wants_json
from casfs.cli.progress import progress
from casfs.errors import CasfsError, Failed, NotFound, Usage
from casfs.store.store import Store
from casfs.system.log import FSCK_LOG, to_file

if TYPE_CHECKING:
    from casfs.maintenance.fsck import Report


@click.command()
@click.option(
    "--repair-from", "source", metavar="STORE|DIR", help="Where to look for lost content."
)
@click.option("--sample", metavar="N%", help="Read a random part of the blobs only.")
@json_option
def fsck(source: str | None, sample: str | None) -> int:
    """Read and check everything; exit 1 when there are faults.

    Damaged bytes are moved to quarantine/ in the store. With --repair-from, lost content is
    searched by its hash in another store, or in every file below a directory.

    \b
    casfs fsck
    casfs fsck --repair-from ../backup
    casfs fsck --sample 1%
    """
    from casfs.maintenance import fsck as checker
    from casfs.maintenance import repair

    if source is not None and not Path(source).is_dir():
        raise NotFound(f"no store and no directory {source}")
    share = _share(sample)
    with open_store() as store:

        def check() -> Report:
            total = _total(store)
            blobs = round(total.blobs * share)
            size = round(total.bytes * share)
            with progress("checking", "blobs", total=blobs, total_bytes=size) as update:
                return checker.check(store, progress=update, sample=share)

        report = check()
        repaired = list[str]()
        if source is not None:
            report, repaired = repair.repair_all(store, report, source=Path(source), check=check)
        with suppress(OSError):
            log = to_file(store_root() / "log" / FSCK_LOG)
            counts = {"blobs": report.blobs, "nodes": report.nodes, "bytes": report.bytes}
            log("checked", faults=len(report.faults), **counts)
    print_report(report, repaired)
    return Failed.exit_code if report.faults else 0


def _share(text: str | None) -> float:
    """Returns the share that a percentage stands for. Raises Usage."""
    with suppress(ValueError):
        share = 1.0 if text is None else float(text.removesuffix("%")) / 100
        if 0 < share <= 1:
            return share
    raise Usage(f"--sample {text}: not a percentage above 0 and up to 100, as in 1%")


def _total(store: Store) -> Total:
    """Returns what is stored; nothing where the SQLite file is too damaged to count it."""
    try:
        return total_stored(store.blobs)
    except CasfsError:
        return Total()


def print_report(report: Report, repaired: list[str]) -> None:
    if wants_json():
        echo_json({**record(report), "repaired": repaired})
        return
    for hash in repaired:
        echo(f"repaired {hash}")
    for fault in report.faults:
        echo_line(f"{fault.kind}: {fault.message}")
        for name in fault.takes:
            echo_line(f"    affects {name}")
    for hash in report.quarantined:
        echo(f"quarantined {hash}")
    checked = f"{report.blobs} blobs, {report.nodes} of them nodes, {report.bytes} bytes"
    if report.remote:
        checked += f" ({report.remote} blobs are in a remote and were not read)"
    fault_count = len(report.faults)
    echo(f"{checked}: {fault_count or 'no'} fault{'' if fault_count == 1 else 's'}")
