"""JSONata expressions: values in and out, failures, and what a parsed text says."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from casfs.errors import Invalid
from engine.moderator import jsonata
from engine.moderator.syntax import Comparison, Equals, Literal, Path


def evaluate(text: str, value: Any = None, **bindings: Any) -> Any:
    return jsonata.compile(text).evaluate(value if value is not None else {}, bindings)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$sum([1..5])", 15),
        ("[1..3]", [1, 2, 3]),
        ("a.b", 1),
        ("a.nothing", None),
        ("$map(c, function($x) { $x + 1 })", [2, 3]),
        ("c[-1]", 2),
        ("[$sum]", [None]),
        ("{'k': a.b}", {"k": 1}),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert evaluate(text, {"a": {"b": 1}, "c": [1, 2]}) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-5 ?: 99", -5),
        ("-5 ?? 99", -5),
        ("a[-1] ?: 99", 3),
        ("a[-1] ?? 99", 3),
        ("a[-2] ?: 'none'", "none"),
        ("(a[-1] ?: 9) = 3", True),
        ("b[-1].s ?: 'none'", "approved"),
        ("(nothing ?? a[-1]) ?: 9", 3),
        ("((-1 ?: 2) ?? 3) ?: 4", -1),
    ],
)
def test_default_and_coalescing_after_a_negative_index(text: str, value: Any) -> None:
    assert evaluate(text, {"a": [7, 0, 3], "b": [{"s": "x"}, {"s": "approved"}]}) == value


def test_a_long_expression_is_refused() -> None:
    with pytest.raises(Invalid, match="is longer than 65536 characters"):
        jsonata.compile("'" + "x" * (1 << 20) + "'")


def test_nested_defaults_do_not_double_without_a_bound() -> None:
    with pytest.raises(Invalid, match="too large"):
        jsonata.compile("(" * 40 + "a" + " ?: b)" * 40)


def test_results_are_plain() -> None:
    data = {"items": [{"n": [1]}, {"n": [2]}]}
    for text in ("items.n", "items[n=1]", "$append(items, items)", "[1..3]", "{'a': items}"):
        assert _is_plain(evaluate(text, data)), text


def _is_plain(value: Any) -> bool:
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    return value is None or type(value) in (bool, int, float, str)


@pytest.mark.parametrize(
    "text",
    [
        "steps{'a': 1}",
        "$append(steps, 1)",
        "$reverse(full)",
        "full ~> | $ | {'x': 1} |",
        "full^(n)",
    ],
)
def test_input_is_not_changed(text: str) -> None:
    data: dict[str, Any] = {"steps": [], "full": [{"n": 2, "z": None}, {"n": 1, "z": None}]}
    before = copy.deepcopy(data)
    jsonata.compile(text).evaluate(data, data)
    assert data == before


def test_results_share_nothing_with_the_input() -> None:
    data = {"steps": [{"role": "a"}]}
    result = evaluate("steps[0]", data)
    result["role"] = "changed"
    assert data == {"steps": [{"role": "a"}]}


def test_input_and_binding_may_be_one_object() -> None:
    steps = [{"n": 1}]
    assert evaluate("steps = $steps", {"steps": steps}, steps=steps) is True


def test_null_is_not_missing() -> None:
    data = {"a": None, "list": [None, 1]}
    assert evaluate("a = null", data) is True
    assert evaluate("$exists(a)", data) is True
    assert evaluate("$exists(b)", data) is False
    assert evaluate("$count(list)", data) == 2
    assert evaluate("null in list", data) is True
    assert evaluate("$x = null", data, x=None) is True


def test_tuples_count_as_arrays() -> None:
    assert evaluate("$count(a)", {"a": (1, 2)}) == 2


def test_other_values_are_refused() -> None:
    with pytest.raises(Invalid, match="a set is not a JSON value"):
        evaluate("a", {"a": {1}})


def test_functions() -> None:
    known = {"twice": jsonata.Function(lambda text: {"text": text, "none": None}, "<s:o>")}

    def run(text: str) -> Any:
        return jsonata.compile(text).evaluate({}, None, known)

    assert run("$twice('a')") == {"text": "a", "none": None}
    assert run("$twice('a').none = null") is True
    assert run("$twice(?)('b').text") == "b"
    assert run("$map(['a', 'b'], $twice).text") == ["a", "b"]
    assert run("('c' ~> $twice).text") == "c"
    with pytest.raises(Invalid, match="Argument 1 of Object twice"):
        run("$twice(1)")


def test_fresh_results_of_functions_are_not_mixed_up() -> None:
    made = {"box": jsonata.Function(lambda n: {"n": n}, "<n:o>")}
    text = "$map([1..200], function($i) { $box($i).n })"
    assert jsonata.compile(text).evaluate({}, None, made) == list(range(1, 201))


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "Unexpected end of expression"),
        ("a.", 2, "Unexpected end of expression"),
        ("(1 + 2", 6, r"Expected \) before end of expression"),
        ("a ] b", 3, "Syntax error: ]"),
        ("1 ! 2", 3, "unexpected '!'"),
        ("a /", 2, "unexpected end of expression"),
        ("/* open", 7, "unexpected end of expression"),
        ("'open", 5, "String literal must be terminated"),
        ("/(/", 3, "No terminating / in regular expression"),
        ("/a{2,1}/", 8, "error: min repeat greater than max repeat"),
        ("(" * 30_000, None, "recursion is too deep"),
    ],
)
def test_what_does_not_parse(text: str, position: int | None, reason: str) -> None:
    at = r"\d+" if position is None else position
    with pytest.raises(Invalid, match=rf"^does not parse at position {at}: .*{reason}") as caught:
        jsonata.compile(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("1 + 'a'", "must evaluate to a number"),
        ("$error('enough')", "at position 7: enough"),
        ("count(a)", r"Did you mean \$count\?"),
        ("$nothing(1)", "at position 9: Attempted to invoke a non-function"),
        ("($f := function($n) { 1 + $f($n + 1) }; $f(1))", "recursion is too deep"),
    ],
)
def test_what_fails_when_evaluated(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=f"^evaluation failed.*{reason}"):
        evaluate(text)


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Invalid, match="non-function"):
        evaluate("($x := 5; $x(1))")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("value", [True, "a", 1, -0.5, [0, 1], [[1]], {"a": 0}])
def test_true(value: Any) -> None:
    assert jsonata.boolean(value) is True


@pytest.mark.parametrize("value", [None, False, "", 0, 0.0, [], [0], [[]], ["", None], {}])
def test_false(value: Any) -> None:
    assert jsonata.boolean(value) is False


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("$steps[role='a'].meta.x", {"steps"}),
        ("$ = $$", set()),
        ("$map(a, function($x) { $x + $y })", {"map", "y"}),
        ("($x := 1; $x + $y)", {"y"}),
        ("$x := $x", set()),
        ("($x := 1) + $x", {"x"}),
        ("($f := function($n) { $f($n) }; $f(1))", set()),
        ("function($v) { [$w := $v, $w] }", set()),
        ("a@$v.b[$v = $i]", {"i"}),
        ("a#$i[$i = 1]", set()),
        ("a#$i[0]#$j[$j = $k]", {"k"}),
        ("a^(>$k)", {"k"}),
        ("a{$g: $h}", {"g", "h"}),
        ("{'a': $v}", {"v"}),
        ("a ~> | $ | {'x': $z}, $d |", {"z", "d"}),
        ("a ? $t : $e", {"t", "e"}),
        ("a ?? $e", {"exists", "e"}),
        ("$f(?, $w)", {"f", "w"}),
        ("-$k", {"k"}),
        ("a ~> $f", {"f"}),
        ("[1..$n]", {"n"}),
    ],
)
def test_free_names(text: str, free: set[str]) -> None:
    assert jsonata.compile(text).names().free == free


def test_bound_names_are_mentioned() -> None:
    names = jsonata.compile("($now := 1; a@$v.$now)").names()
    assert names.free == set()
    assert names.mentioned == {"now", "v"}


def test_builtins() -> None:
    assert {"count", "filter", "now", "eval"} <= jsonata.BUILTINS
    assert "steps" not in jsonata.BUILTINS


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("$steps[-1].meta.s = 'v'", Path("$steps", None, (-1,), ("meta", "s"))),
        ("steps[role='a'].s = 'v'", Path("steps", None, (Equals("role", "a"),), ("s",))),
        ("steps['a'=role][0].s = 'v'", Path("steps", None, (Equals("role", "a"), 0), ("s",))),
        ("steps[n > 1].s = 'v'", Path("steps", None, (None,), ("s",))),
        ("$last('a').s = 'v'", Path("$last", "a", (), ("s",))),
        ("$last(x).s = 'v'", None),
        ("steps.meta[0].s = 'v'", None),
        ("(a; b) = 'v'", None),
    ],
)
def test_comparisons(text: str, left: Path | None) -> None:
    found = jsonata.compile(text).comparisons()
    assert found[0] == Comparison("=", left, Literal(("v",)))


def test_comparison_with_a_list() -> None:
    (found,) = jsonata.compile("a.b in ['x', 1, null]").comparisons()
    assert found == Comparison("in", Path("a", None, (), ("b",)), Literal(("x", 1, None)))
    (found,) = jsonata.compile("a in ['x', b]").comparisons()
    assert found.right is None


# -- lists that are kept -----------------------------------------------------------------


def kept(*values: Any) -> jsonata.SealedList:
    made = jsonata.SealedList()
    made.add(values)
    return made


def test_a_list_holds_copies() -> None:
    value = {"n": [1]}
    made = kept(value)
    value["n"].append(2)
    assert evaluate("$count(a.n)", {"a": made}) == 1
    made.add([value])
    assert evaluate("a.n", {"a": made}) == [1, 1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "a{'x': 1}",
        "empty{'x': 1}",
        "a ~> | $ | {'x': 1} |",
        "a ~> | $ | {'x': 1}, ['n'] |",
        "$append(a, 1)",
        "$append(a.list, 1)",
        "$reverse(a)",
        "$sort(a, function($l, $r) { $l.n < $r.n })",
        "a^(>n)",
        "$spread(a)",
        "$merge(a)",
        "$distinct(a)",
        "a@$v.list",
        "a#$i[$i = 1]",
        "a.list[]",
        "a.**",
        "$map(a, function($v) { $merge([$v, {'n': 9}]) })",
        "$each(a[0], function($v, $k) { $k })",
        "$sift(a[0], function($v) { $v = 2 })",
        "$string(a)",
        "$zip(a, a)",
        "$ = $$ and a = $a and a[1] = a[-1]",
        "a[z = null]",
    ],
)
def test_a_list_is_like_any_other(text: str) -> None:
    plain = [{"n": 2, "z": None, "list": [1, 2]}, {"n": 1, "z": None, "list": []}]
    a, empty = kept(*plain), kept()
    expected = evaluate(text, {"a": plain, "empty": []}, a=plain)
    for _ in range(2):
        assert evaluate(text, {"a": a, "empty": empty}, a=a) == expected
    assert (a, empty) == (kept(*plain), kept())


@pytest.mark.parametrize("text", ["empty{'x': 1}", "a ~> | $ | {'n': 9} |"])
def test_functions_see_the_same_steps_when_a_list_is_written(text: str) -> None:
    a = kept({"n": 1})
    known = {"one": jsonata.Function(lambda name: a[0], "<s:o>")}
    expression = jsonata.compile(f"($x := {text}; $one('x') = a[0])")
    assert expression.evaluate({"a": a, "empty": kept()}, None, known) is True


@pytest.mark.parametrize(
    "text",
    [
        "a[r = 'x'].n",
        "a['x' = r].n",
        "a[r = 'none'].n",
        "a[r = ''].n",
        "a[missing = ''].n",
        "a[s = 'x'].n",
        "a[t = 'x'].n",
        "a[r = 'x'][0].n",
        "a[r = 'x'][n = 3].n",
        "a[r[] = 'x'].n",
        "a[r = 'x']#$i.$i",
        "a#$i[r = 'x'].$i",
        "a@$v[r = 'x'].$v.n",
        "a.b[r = 'x'].n",
        "b[r = 'x'].n",
        "one[r = 'x'].n",
        "nothing[r = 'x'].n",
        "mixed[r = 'x'].n",
        "a[r = 'x']{r: n}",
        "$map(['x', 'y'], function($w) { $count($$.a[r = 'x' and n > 1]) })",
    ],
)
def test_filters_by_text_are_what_the_library_says(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = [
        {"r": "x", "n": 1, "b": {"r": "x", "n": 7}, "t": ["x"]},
        {"r": "y", "n": 2, "s": "x", "b": [{"r": "x", "n": 8}, {"r": "x", "n": 9}]},
        {"r": "x", "n": 3, "s": None, "t": 1},
    ]
    data = {"a": a, "one": a[0], "b": a[1]["b"], "mixed": [1, a[0], "x"]}
    ours = jsonata.compile(text).evaluate(data)
    monkeypatch.setattr(jsonata, "_filter_by_text", lambda program: None)
    assert ours == jsonata.compile(text).evaluate(data)


def test_calls() -> None:
    assert jsonata.compile("$last('a').b and $f(1) and $g('x', 'y') and $f($h('z'))").calls() == (
        ("last", "a"),
        ("h", "z"),
    )


def test_memory_is_not_hidden() -> None:
    def greedy(text: str) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        jsonata.compile("$greedy('a')").evaluate(
            {}, None, {"greedy": jsonata.Function(greedy, "<s:o>")}
        )
