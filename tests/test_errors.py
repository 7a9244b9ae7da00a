from __future__ import annotations

import inspect

import pytest

from casfs import errors
from casfs.errors import CasfsError

EXIT_CODES = {
    "CasfsError": 1,
    "Failed": 1,
    "Corrupt": 1,
    "CorruptBlob": 1,
    "Purged": 1,
    "Unreachable": 1,
    "Usage": 2,
    "NotFound": 3,
    "Refused": 4,
    "Invalid": 4,
    "Conflict": 4,
    "AccessDenied": 4,
    "NoDaemon": 5,
    "DaemonUnreachable": 5,
    "Suspended": 7,
}


def test_the_list_is_closed_and_each_error_has_its_exit_code() -> None:
    found = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert {name: kind.exit_code for name, kind in found.items()} == EXIT_CODES


@pytest.mark.parametrize("name", EXIT_CODES)
def test_an_error_is_ours_and_says_what_it_was_given(name: str) -> None:
    error = getattr(errors, name)("what, where, what to do")
    assert isinstance(error, CasfsError)
    assert str(error) == "what, where, what to do"
