from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.errors import ConfigurationError
from sequencer.files import yamlfile as reader
from sequencer.files.yamlfile import parse

FILE = Path("orchestration.yaml")


def value_of(text: str) -> Any:
    return parse(f"a: {text}\n".encode(), FILE).data["a"]


def refusal(data: bytes | str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as refused:
        parse(data.encode() if isinstance(data, str) else data, FILE)
    return refused.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("null", None),
        ("~", None),
        ("", None),
        ("3", 3),
        ("-3", -3),
        ("0", 0),
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1:30:00", "1:30:00"),
        ("0.5", 0.5),
        ("1.0e3", 1000.0),
        ("1e3", 1000.0),
        ("1e999", "1e999"),
        ("1.", "1."),
        ("1.2.3", "1.2.3"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("2026-11-21", "2026-11-21"),
        ("2026-11-21T20:55:12Z", "2026-11-21T20:55:12Z"),
        ("9" * 30, "9" * 30),
        ("'true'", "true"),
        ('"3"', "3"),
        ("=", "="),
        ("[1, no, {b: 2}]", [1, "no", {"b": 2}]),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_what_a_scalar_means(text: str, value: object) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("data", "problem", "place"),
    [
        ("a: 1\nb: 2\na: 3\n", "duplicate key 'a', first used in line 1", "3:1"),
        ("x: {b: 1, b: 2}", "duplicate key 'b'", "1:11"),
        ("a: 1\n5: 2\n", "a key must be text, and 5 is not", "2:1"),
        ("true: 2\n", "a key must be text, and True is not", "1:1"),
        ("? [a]\n: 1\n", "a key must be text, not a list or mapping", "1:3"),
        ("? {a: 1}\n: 1\n", "a key must be text, not a list or mapping", "1:3"),
        ("~: 2\n", "None is not", "1:1"),
        ("- a\n- b\n", "expected 'key: value' lines", "1:1"),
        ("just words\n", "expected 'key: value' lines", "1:1"),
        ("a: 1\n---\nb: 2\n", "a second document", "2:1"),
        ("a: !!python/object:os.system x\n", "tags (tag:yaml.org,2002:python/object", "1:4"),
        ("a: !mine [x]\n", "tags (!mine) are not supported", "1:4"),
        ("a: &x {b: 1}\nc: {<<: *x}\n", "merge keys", "2:5"),
        ("a: *nobody\n", "there is no anchor for *nobody", "1:4"),
        ("a: &x [1, *x]\n", "*x is inside &x", "1:11"),
        ("a: &x {b: {c: *x}}\n", "*x is inside &x", "1:15"),
        ("a:\n\t- b\n", "cannot start any token", "2:1"),
        ("a: 'open\nb: 1\n", "unexpected end of stream", "3:1"),
        ("a: b: c\n", "mapping values are not allowed", "1:5"),
        ("a: [1, 2\nb: 3\n", "not YAML", "2:2"),
        ("a: @x\n", "cannot start any token", "1:4"),
        ("a: x\x00y\n", "control characters are not allowed", "1:5"),
        ("a: 1\nb: \x07\n", "control characters are not allowed", "2:4"),
        (b"a: 1\nbc: \xff\n", "byte 0xff is not UTF-8", "2:5"),
        ("a: 1\n".encode("utf-16"), "byte 0xff is not UTF-8", "1:1"),
        ("é: é\n".encode() + b"\xe9: 1", "byte 0xe9 is not UTF-8", "2:1"),
    ],
)
def test_what_is_refused_and_where(data: bytes | str, problem: str, place: str) -> None:
    refused = refusal(data)
    assert problem in refused.message
    assert refused.where == f"orchestration.yaml:{place}"


def test_depth_through_aliases_has_the_same_limit() -> None:
    chain = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 60))
    assert "nested deeper" in refusal(chain).message


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "data",
    [
        b"a: " + b"[" * 1_000_000,
        b"a: " + b"{" * 1_000_000,
        b"- " * 500_000,
        b"? " * 500_000,
        b'"' + b"x" * 1_000_000,
        b"k: 1\n" * 200_000,
        b"".join(b"- &a%d x\n" % n for n in range(80_000)),
        b"a: [" + b"'a'," * 200_000,
        bytes(range(256)) * 4_000,
    ],
    ids=["lists", "maps", "dashes", "keys", "quote", "twins", "anchors", "items", "bytes"],
)
def test_a_mebibyte_of_malice_is_refused_soon(data: bytes) -> None:
    # Work, not time: another process may have the processor.
    started = time.thread_time()
    refusal(data)
    assert time.thread_time() - started < 3


yamlish = st.text(alphabet="ab:- \n\t[]{}&*!'\"#|>?,%@<~0.e", max_size=60)


@given(yamlish)
def test_anything_like_yaml_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        document = parse(text.encode(), FILE)
    except ConfigurationError as refused:
        assert str(refused.where).startswith("orchestration.yaml:")  # noqa: PT017
        return
    for path in document.positions:
        here: Any = document.data
        for part in path:
            here = here[part]


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("a: 1\na: 2\n", "11:1", "duplicate key 'a', first used in line 10"),
        ("- a\n", "10:1", "expected 'key: value' lines"),
        ("a: 1\nb: 'x\n", "12:1", "not YAML"),
        ("a: \x01\n", "10:4", "not YAML"),
        ("a: *b\n", "10:4", "there is no anchor for *b"),
    ],
)
def test_so_have_the_problems_of_a_part(text: str, where: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        reader.parse_text(text, FILE, first_line=10)
    assert refused.value.where == f"orchestration.yaml:{where}"
    assert refused.value.message.startswith(message)
