"""JSON values that the JSONata library must not change, though it changes its input at times."""

from __future__ import annotations

from typing import Any, NoReturn


class SealedWrite(BaseException):
    """The library tried to write to a sealed value. Not an Exception: the library catches those."""


def _refuse_write(*arguments: Any, **keywords: Any) -> NoReturn:
    raise SealedWrite


class SealedObject(dict[str, Any]):
    """A sealed object."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse_write
    pop = popitem = setdefault = update = clear = _refuse_write


class SealedArray(list[Any]):
    """A sealed array."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_write
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse_write
