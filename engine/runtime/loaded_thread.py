"""A thread as its run has loaded it: what everything that works at its steps shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from casfs.store.store import Store
from casfs.system.log import Log
from casfs.workspaces.desk import Desk
from engine.runtime.calls import ThreadRunner
from engine.runtime.run_services import RunServices
from engine.runtime.thread_config import ThreadConfig
from engine.runtime.thread_head import ThreadHead
from engine.secrets.redaction import redacting_store
from engine.threads.history import ThreadHistory


@dataclass(frozen=True)
class LoadedThread:
    """`store` and `log` redact the thread's secrets; `env`: of its agents; `run_child` runs the
    threads that they call."""

    services: RunServices
    head: ThreadHead
    workspace: Desk
    env: Mapping[str, str]
    run_child: ThreadRunner
    config: ThreadConfig
    store: Store
    log: Log
    history: ThreadHistory


def load(
    services: RunServices,
    head: ThreadHead,
    workspace: Desk,
    env: Mapping[str, str],
    run_child: ThreadRunner,
) -> LoadedThread:
    """Reads a thread, its workflow and its steps. Raises CasfsError for damage."""
    config = ThreadConfig(services.store, head.thread, env=env, extractor=services.extractor)
    store = redacting_store(services.store, config.secrets)
    return LoadedThread(
        services,
        head,
        workspace,
        env=env,
        run_child=run_child,
        config=config,
        store=store,
        log=config.secrets.redacting_log(services.log),
        history=ThreadHistory(store, head.thread, config.start),
    )
