"""JSONata expressions: parse, inspect, evaluate. The only importer of jsonata-python.

Guarantees to the rest of the engine:

- `compile(text)` either returns an Expression or raises Invalid with the reason and the
  position (in characters, as the library counts: just after the offending token).
- `Expression.evaluate` never changes what it is given and returns plain JSON values. The
  library does both: it appends to an empty input list when it groups, and it returns list
  subclasses and functions. So values are copied on the way in and on the way out. One
  object given twice (as input and as a binding) is copied once and stays one object. The
  fields of an object are copied in the order of their names, so an answer does not depend
  on the order in which an agent happened to write them.
- A `SealedList` is copied when values are added to it, not at each evaluation, for histories that
  many expressions read. It is sealed (read-only): an expression that makes the library write to
  it is evaluated again, on a copy of its own.
- JSON null stays apart from a missing value inside an expression, as JSONata has it; the
  library wants its own null object for that, a Python None means "missing" to it. Outside
  both are None. A function has no JSON form and comes out as None too.
- Every error inside is one Invalid of one line, the library's Python errors (division by
  zero, deep recursion, a bad regex) included. Only MemoryError passes: the process that set the
  limit reports it.
- The filter `[name = 'text']` over objects is evaluated here: it is the most frequent one in
  rules, and the library takes 25 µs for each object.

`engine.moderator.syntax` inspects a parsed expression, for checks that do not run it.

Threads: the library keeps one current expression and one parser per thread, so an
Expression is compiled and evaluated by one thread. Nothing here limits time or memory: an
expression can loop endlessly, and only the process that runs it can be killed. Importing
the library raises the interpreter's recursion limit to 10,000.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jsonata.jexception import JException
from jsonata.jsonata import Jsonata
from jsonata.parser import Parser
from jsonata.utils import Utils

from casfs.errors import Invalid
from engine.moderator import syntax
from engine.moderator.sealed import SealedArray, SealedObject, SealedWrite

MAX_EXPRESSION_CHARS = 1 << 16  # the library parses some 100,000 in a second
BUILTINS: frozenset[str] = frozenset(Jsonata.static_frame.bindings)
"""The names of JSONata's own functions, without the dollar sign."""


@dataclass(frozen=True)
class Function:
    """A function offered to expressions: `signature` in JSONata's notation, as `<s:o>`. `call` gets
    plain values (None for a missing one) and returns a JSON value or None."""

    call: Callable[..., Any]
    signature: str


class Expression:
    """A parsed expression. Made by `compile`."""

    def __init__(self, text: str, program: Any) -> None:
        self.text = text
        self._program = program

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def evaluate(
        self,
        value: Any,
        bindings: Mapping[str, Any] | None = None,
        functions: Mapping[str, Function] | None = None,
    ) -> Any:
        """The expression's value over the input `value`, with `$name` for each binding."""
        try:
            return self._evaluate(value, bindings, functions=functions, copies=_Copier())
        except SealedWrite:
            return self._evaluate(
                value, bindings, functions=functions, copies=_Copier(unsealed=True)
            )

    def _evaluate(
        self,
        value: Any,
        bindings: Mapping[str, Any] | None,
        functions: Mapping[str, Function] | None,
        copies: _Copier,
    ) -> Any:
        try:
            frame = {name: copies.of(bound) for name, bound in (bindings or {}).items()}
            for name, function in (functions or {}).items():
                frame[name] = _library_function(name, function, copies)
            return _to_json(self._program.evaluate(copies.of(value), frame))
        except MemoryError:
            raise
        except Exception as error:
            known = isinstance(error, JException) and error.location > 0
            suffix = f" at position {_position(error)}" if known else ""
            raise Invalid(f"evaluation failed{suffix}: {_reason(error)}") from error

    def names(self) -> syntax.Names:
        """The `$names` that it reads and binds."""
        return syntax.names(self._program.ast)

    def comparisons(self) -> tuple[syntax.Comparison, ...]:
        """Its comparisons, in the order of the text."""
        return syntax.comparisons(self._program.ast)

    def paths(self) -> tuple[syntax.Path, ...]:
        return syntax.paths(self._program.ast)

    def reads(self) -> tuple[tuple[str, str], ...]:
        """(where it is looked up, name) of the bare names that it reads."""
        return syntax.reads(self._program.ast)

    def calls(self) -> tuple[tuple[str, str], ...]:
        """(function, argument) of its calls with one literal text."""
        return syntax.calls(self._program.ast)


def compile(text: str) -> Expression:
    """Parses an expression. Raises Invalid with the reason and the position."""
    if len(text) > MAX_EXPRESSION_CHARS:
        raise Invalid(f"is longer than {MAX_EXPRESSION_CHARS} characters")
    try:
        program = Jsonata(text)
    except Exception as error:
        position = _position(error)
        reason = _parse_reason(error)
        raise Invalid(f"does not parse at position {position}: {reason}") from error
    program.set_validate_input(False)  # _Copies has done it
    program.set_output_convert_nulls(False)  # _outward does it without writing to the input
    _refuse_calls_of_values(program)
    _filter_by_text(program)
    return Expression(text, program)


@lru_cache(maxsize=1024)
def parsed(text: str) -> Expression:
    """As `compile`, of an expression that is looked at and never evaluated: each check of a
    workflow asks for the same ones, and the library takes milliseconds. Raises Invalid."""
    return compile(text)


def boolean(value: Any) -> bool:
    """JSONata's cast of a plain value: empty, zero, null and missing are false, and an
    array is true if one of its members is."""
    return bool(Jsonata.boolize(value))


# --- values in and out ----------------------------------------------------------------


class SealedList(SealedArray):
    """A sealed array that only its owner can extend."""

    __slots__ = ()

    def add(self, values: Iterable[Any]) -> None:
        """Append copies of JSON values."""
        copies = _Copier(sealing=True)
        list.extend(self, [copies.of(value) for value in values])


class _Copier:
    """Copies values for the library, which may write to the copies; a shared object stays shared.
    Sealed values are not copied, unless `unsealed`; `sealing` makes sealed copies."""

    def __init__(self, *, sealing: bool = False, unsealed: bool = False) -> None:
        self._object: type[dict[str, Any]] = SealedObject if sealing else dict
        self._array: type[list[Any]] = SealedArray if sealing else list
        self._sealed = () if unsealed else (SealedObject, SealedArray)
        self._copied: dict[int, tuple[Any, Any]] = {}  # with the original, so its id stays valid

    def of(self, value: Any) -> Any:
        if value is None:
            return Utils.NULL_VALUE
        if isinstance(value, (str, bool, int, float, *self._sealed)) or value is Utils.NULL_VALUE:
            return value
        if id(value) not in self._copied:
            self._copied[id(value)] = (value, self._copy(value))
        return self._copied[id(value)][1]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._object((str(key), self.of(value[key])) for key in sorted(value))
        if isinstance(value, (list, tuple)):
            return self._array(self.of(item) for item in value)
        raise Invalid(f"a {type(value).__name__} is not a JSON value: give an expression JSON")


def _to_json(value: Any) -> Any:
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return None


def _library_function(name: str, function: Function, copies: _Copier) -> Any:
    def call(*arguments: Any) -> Any:
        result = function.call(*map(_to_json, arguments))
        return None if result is None else copies.of(result)

    native = Jsonata.JFunction(Jsonata.JLambda(call), function.signature)
    native.function_name = name
    # Asked for only by partial application, and answered with 0 by the library.
    native.get_number_of_args = native.signature.get_number_of_args
    return native


# --- repairs of the library -------------------------------------------------------------

MAX_COPIED_OBJECTS = 20_000  # nested in each other, copies of copies would double at each level


def _copy_shared_operand(operator: Any) -> None:
    """Gives the condition of `a ?: b` and `a ?? b` a copy of `a`: the library puts one node in
    two places and processes it in place, so that `-5 ?: 99` would be 5."""
    parse = operator.led

    def led(self: Any, left: Any) -> Any:
        kept = {id(self._outer_instance): self._outer_instance}
        node = parse(self, copy.deepcopy(left, kept))
        if len(kept) > MAX_COPIED_OBJECTS:
            raise Invalid("the left side of ?: or ?? is too large")
        node.then = left
        return node

    operator.led = led


_copy_shared_operand(Parser.InfixDefault)
_copy_shared_operand(Parser.InfixCoalesce)


def _refuse_calls_of_values(program: Any) -> None:
    """Raises before the library would print a line of its own to stdout."""
    apply = program.apply_inner

    def apply_inner(procedure: Any, *arguments: Any) -> Any:
        if not program.is_function_like(procedure):
            raise JException("T1006", -1)
        return apply(procedure, *arguments)

    program.apply_inner = apply_inner


def _filter_by_text(program: Any) -> None:
    """Evaluates the filter `[name = 'text']` over plain objects without the interpreter."""
    interpret = program.evaluate_filter

    def evaluate_filter(predicate: Any, value: Any, environment: Any) -> Any:
        wanted = syntax.text_filter(predicate)
        if wanted is None or not isinstance(value, list) or getattr(value, "tuple_stream", False):
            return interpret(predicate, value, environment)
        name, text = wanted
        matches = Utils.create_sequence()
        for item in value:
            field = item.get(name, "") if isinstance(item, dict) else None
            if not isinstance(field, str):  # a list, a number, not an object: full semantics
                return interpret(predicate, value, environment)
            if field == text and name in item:
                matches.append(item)
        return matches

    program.evaluate_filter = evaluate_filter


# --- errors ---------------------------------------------------------------------------


def _position(error: Exception) -> int:
    """Returns where parsing stopped; the tokenizer's position, if that failed."""
    if isinstance(error, JException) and error.location >= 0:
        return int(error.location)
    lexer = Jsonata.get_parser().lexer
    return int(lexer.position) if lexer is not None else 0


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, JException):
        # The library's "did you mean" forgets the name it means.
        return text.replace("${}", f"${error.current}")
    if isinstance(error, Invalid):
        return text
    if isinstance(error, RecursionError):
        return "recursion is too deep"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _parse_reason(error: Exception) -> str:
    """The tokenizer and the operator table fail with Python's own errors."""
    if isinstance(error, IndexError):
        return "unexpected end of expression"
    return f"unexpected {error}" if isinstance(error, KeyError) else _reason(error)
