"""The schema text's dialect: JSON with comments, each value with its line, everything else refused where it stands."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from kcoord_wire.errors import SchemaError
from kcoord_wire.schema.text import MAX_DEPTH, Node, line_of, parse_text, path_of


def plain(node: Node) -> object:
    if isinstance(node.value, dict):
        return {key: plain(member) for key, member in node.value.items()}
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    return node.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        ("[]", []),
        ('{"a": [1, -2, 0.5, 1e3, -0]}', {"a": [1, -2, 0.5, 1000.0, 0]}),
        ('[true, false, null, ""]', [True, False, None, ""]),
        ('{"a": 1} // trailing', {"a": 1}),
        ('// first\n/* second\n third */ {"a": /* between */ 1, // after a comma\n "b": 2}', {"a": 1, "b": 2}),
        ('{"url": "http://x", "c": "/* no comment */"}', {"url": "http://x", "c": "/* no comment */"}),
        (r'["\" \\ \/ \b\f\n\r\t \u00e9 \ud83d\ude00"]', ['" \\ / \b\f\n\r\t é 😀']),
        ("\ufeff{}", {}),
        ("\r\n{\r\n}\r\n", {}),
        ('{"a": 1, "a": 1}', {"a": 1}),
        ('{"a": {"b": [1]}}/**/', {"a": {"b": [1]}}),
        ("[/***/1/* * / */]", [1]),
    ],
)
def test_values(text: str, value: object) -> None:
    assert plain(parse_text(text)[0]) == value


def test_each_value_has_its_line_and_path() -> None:
    text = '// one\n/* two\nthree */\n{ // four\n"a": [1,\n\n{"b": "x"}],\n"c":\n2}\n'
    root = parse_text(text)[0]
    found = {}

    def visit(node: Node) -> None:
        found[path_of(root, node)] = line_of(text, node.at)
        if isinstance(node.value, dict | list):
            for child in node.value.values() if isinstance(node.value, dict) else node.value:
                visit(child)

    visit(root)
    assert found == {"$": 4, "$.a": 5, "$.a[0]": 5, "$.a[1]": 7, "$.a[1].b": 7, "$.c": 9}


def test_a_long_key_above_many_values_costs_what_it_is_long() -> None:
    text = json.dumps({"a" * 100_000: [1] * 20_000})
    tracemalloc.start()
    root = parse_text(text)[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(plain(root)["a" * 100_000]) == 20_000  # type: ignore[index]
    assert peak < 40 * len(text)  # each node with a path of its own: 2 GB


@pytest.mark.parametrize(
    ("text", "comments"),
    [
        ("{}", ""),
        ("// One.\n//\n//   indented\n{}", "One.\n\n  indented"),
        ("// Before.\n{ // within\n} // after", "Before."),
        ("/* a licence */\n// Text.\n{}", "Text."),
        ("// A licence.\n\n// Text,\n//\n// and more.\n{}", "Text,\n\nand more."),
        ("// A licence.\n\n{}", ""),
        ("  //\tA tab. \t\n//\n//x\n//\n{}", "A tab.\n\nx"),
        ("//" + " " * 500_000 + "x\n{}", "x"),  # in one pass: a second one for each blank would take an hour
    ],
)
def test_comments_before_the_message_are_kept(text: str, comments: str) -> None:
    assert parse_text(text)[1] == comments


def test_closing_braces_too_many_are_ignored() -> None:
    assert parse_text("// Text.\n{}\n}\n} // end\n") == parse_text("// Text.\n{}")


@pytest.mark.parametrize(
    ("text", "line", "where", "rule"),
    [
        ("", 1, "$", "a JSON value is expected here"),
        ("\n\n// only a comment", 3, "$", "a JSON value is expected here"),
        ("{} {}", 1, "$", "nothing may follow the value"),
        ("{}\n\nx", 3, "$", "nothing may follow the value"),
        ("{}}{}", 1, "$", "nothing may follow the value"),
        ("{}/", 1, "$", "nothing may follow the value"),
        ("/* not closed {}", 1, "$", "a JSON value is expected here"),
        ('{"a": 1', 1, "$", '"," is expected here'),
        ('{"a" 1}', 1, "$", '":" is expected here'),
        ('{"a":\n}', 2, "$.a", "a JSON value is expected here"),
        ('{"a": 1,}', 1, "$", "a string is expected here"),
        ("{a: 1}", 1, "$", "a string is expected here"),
        ("{'a': 1}", 1, "$", "a string is expected here"),
        ("[1,\n2,\n]", 3, "$[2]", "a JSON value is expected here"),
        ("[1 2]", 1, "$", '"," is expected here'),
        ('["not closed]', 1, "$[0]", "a string is expected here"),
        ('["two\nlines"]', 1, "$[0]", "a string is expected here"),
        (r'["\x41"]', 1, "$[0]", "an escape that JSON does not have"),
        (r'["\u12"]', 1, "$[0]", "an escape that JSON does not have"),
        ("[01]", 1, "$", '"," is expected here'),
        ("[+1]", 1, "$[0]", "a JSON value is expected here"),
        ("[0x10]", 1, "$", '"," is expected here'),
        ("[" + "9" * 5000 + "]", 1, "$[0]", "too many digits"),
        ("[NaN]", 1, "$[0]", "a JSON value is expected here"),
        ('{"a": 1,\n"b": 0,\n"a": 2}', 3, "$", 'the key "a" occurs twice, with two values'),
        ("[" * (MAX_DEPTH + 2), 1, "$" + "[0]" * (MAX_DEPTH + 1), f"at most {MAX_DEPTH} deep"),
        ("[" * 100_000, 1, "$" + "[0]" * (MAX_DEPTH + 1), f"at most {MAX_DEPTH} deep"),
        ("\n" + '{"a":' * 100_000, 2, "$" + ".a" * (MAX_DEPTH + 1), f"at most {MAX_DEPTH} deep"),
    ],
)
def test_text_outside_the_dialect_is_refused(text: str, line: int, where: str, rule: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_text(text, "x.json")
    error = caught.value
    assert (error.file, error.line, error.where) == ("x.json", line, where)
    assert rule in error.rule
    assert str(error) == f"x.json:{line}: {where}: {error.rule}"


def test_what_an_error_quotes_is_printable() -> None:
    with pytest.raises(SchemaError) as caught:
        parse_text('{"\\u001b[2J": 1, "\\u001b[2J": 2}', "x.json")
    assert caught.value.rule == 'the key "\x1b[2J" occurs twice, with two values'
    assert str(caught.value) == r'x.json:1: $: the key "\x1b[2J" occurs twice, with two values'


def test_depth_up_to_the_limit_is_read() -> None:
    node, _ = parse_text("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    for _ in range(MAX_DEPTH):
        assert isinstance(node.value, list)
        (node,) = node.value
    assert node.value == []


@pytest.mark.parametrize("filler", [" ", "\n", "//\n", "/**/", '"', "\\"])
def test_long_runs_take_linear_time(filler: str) -> None:
    text = filler * 200_000
    with pytest.raises(SchemaError):
        parse_text(text)
    with pytest.raises(SchemaError):
        parse_text(f'{{"a": {text}')
