"""Threads, which are runs of workflows.

The commands that only read are in `casfs.cli.thread.{list,show,log,past}`.
"""

from __future__ import annotations

import click

from casfs.cli.lazy_group import LazyGroup

MODULES = {
    "start": "thread.start:start",
    "resume": "thread.start:resume",
    "trust": "thread.start:trust",
    "compact": "thread.start:compact",
    "fork": "thread.start:fork",
    "cancel": "thread.stop:cancel",
    "suspend": "thread.stop:suspend",
    "rename": "thread.labels:rename",
    "archive": "thread.labels:archive",
    "pin": "thread.labels:pin",
    "list": "thread.list:list_",
    "show": "thread.show:show",
    "log": "thread.log:log",
    "diff": "thread.changes:diff",
    "apply": "thread.changes:apply",
    "compare": "thread.race:compare",
    "race": "thread.race:race",
    "prompt": "thread.past:prompt",
    "context": "thread.past:context",
    "replay": "thread.past:replay",
    "graph": "thread.past:graph",
    "rm": "thread.past:rm",
    "bisect": "bisect:bisect",
}


@click.group(cls=LazyGroup, modules=MODULES)
def thread() -> None:
    """A thread is one run of a workflow. It is named by its id, a part of that, `--name`, or @last.

    \b
    casfs thread start develop --input "Fix it" --workspace ./project --wait
    casfs thread log 01K2 --follow
    """
