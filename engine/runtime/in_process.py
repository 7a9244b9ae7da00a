"""An operation of the daemon in this process: it runs the thread until that ends or is suspended.

It holds the lock of the store's daemon meanwhile, so no other process runs the same threads. A
process that is killed leaves its thread `running`: the next daemon runs the pending step again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import trio

from casfs.errors import CasfsError, Refused
from casfs.store.store import Store
from casfs.system import daemon_socket
from engine.moderator.evaluator_pool import WorkerPool
from engine.runtime.daemon_requests import Answer, DaemonApi
from engine.runtime.run_services import RunServices
from engine.runtime.supervisor import Supervisor


def request(store: Store, env: Mapping[str, str], op: str, arguments: Mapping[str, Any]) -> Answer:
    """Does `op` and runs the threads that it launches; `env`: of agents. Raises as the operation,
    and Refused where a daemon runs or the store is shared."""
    with ExitStack() as stack:
        stack.callback(os.close, daemon_socket.lock(store.root))
        return trio.run(_run, store, env, op, arguments)


async def _run(
    store: Store, env: Mapping[str, str], op: str, arguments: Mapping[str, Any]
) -> Answer:
    evaluator = WorkerPool()
    supervisor = Supervisor(RunServices(store, evaluator=evaluator), env, limit=1)
    if supervisor.leases is not None:
        raise Refused("the threads of a shared store need `casfs daemon`")
    operation = DaemonApi(store, env, supervisor).find(op)
    assert operation is not None
    failure: CasfsError | None = None
    async with evaluator, trio.open_nursery() as nursery:
        supervisor.nursery = nursery
        try:
            answer = await operation(**arguments)  # the nursery waits for the threads
        except CasfsError as error:  # out of the nursery it would come in a group
            failure = error
    if failure is not None:
        raise failure
    return answer
