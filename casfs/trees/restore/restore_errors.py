"""What a person is told of a restore that ended in the middle: where, why, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from casfs.directories.operations import REVERSALS
from casfs.errors import CasfsError, Failed
from casfs.system.paths import printable
from casfs.trees.restore.options import RestoreResult
from casfs.trees.restore.target import Target
from casfs.trees.restore.write import WriteProgress

MAX_NAMED = 3


@contextmanager
def errors_named(target: Target, progress: WriteProgress, result: RestoreResult) -> Iterator[None]:
    """Turns an OSError into Failed with one line that names the path; each error that comes after
    the first write says what to do about that."""
    try:
        yield
    except OSError as error:
        where = printable(b"/".join(progress.path))
        location = f" at {where}" if where else ""
        message = f"cannot restore to {target}{location}: {error.strerror}"
        raise Failed(message + _next_step(result)) from error
    # The depth of a snapshot is bounded, that of a tree from elsewhere is not.
    except RecursionError:
        message = f"cannot restore to {target}: directories too deep"
        raise Failed(message + _next_step(result)) from None
    except CasfsError as error:
        error.args = (f"{error}{_next_step(result)}", *error.args[1:])
        raise


def _next_step(result: RestoreResult) -> str:
    if result.operation is None:
        return ""
    verb = result.operation.verb
    words = "`casfs undo` takes back what was written until then"
    if verb in REVERSALS:
        words = f"run `casfs {verb.value}` again for the rest"
    moved = list(result.outcome.aside.items())
    names = [f"{printable(path)} was moved to {printable(aside)}" for path, aside in moved]
    if len(names) > MAX_NAMED:
        names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} more were moved aside"]
    return "; ".join(["", words, *names])
