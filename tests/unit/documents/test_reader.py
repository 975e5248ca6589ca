from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sequencer.documents import reader
from sequencer.documents.file import read_bytes
from sequencer.documents.reader import MAX_NODES, parse, parse_value, read
from sequencer.errors import ConfigurationError

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


@pytest.mark.parametrize("key", ["no", "on", "yes", "2026-11-21", "1.2.3", '"true"', '"5"'])
def test_words_that_yaml_1_1_turns_into_something_else_are_keys(key: str) -> None:
    assert parse(f"{key}: 1".encode(), FILE).data == {key.strip('"'): 1}


def test_positions_of_keys_and_items() -> None:
    document = parse(b"a:\n  b: 1\n  c: [x,\n     y]\nd: {e: 2}\n", FILE)
    assert document.positions == {
        ("a",): (1, 1),
        ("a", "b"): (2, 3),
        ("a", "c"): (3, 3),
        ("a", "c", 0): (3, 7),
        ("a", "c", 1): (4, 6),
        ("d",): (5, 1),
        ("d", "e"): (5, 5),
    }
    assert document.where(("a", "c", 1)) == "orchestration.yaml:4:6"
    assert document.where(("a", "zz", "y")) == "orchestration.yaml:1:1"
    assert document.where(("zz",)) == "orchestration.yaml"
    assert document.position(("zz",)) is None


@pytest.mark.parametrize(
    ("data", "problem", "place"),
    [
        ("a: 1\nb: 2\na: 3\n", "key 'a' is there twice, first in line 1", "3:1"),
        ("x: {b: 1, b: 2}", "key 'b' is there twice", "1:11"),
        ("a: 1\n5: 2\n", "a key has to be text, and 5 is not", "2:1"),
        ("true: 2\n", "a key has to be text, and True is not", "1:1"),
        ("? [a]\n: 1\n", "a key has to be text, not a list or mapping", "1:3"),
        ("? {a: 1}\n: 1\n", "a key has to be text, not a list or mapping", "1:3"),
        ("~: 2\n", "None is not", "1:1"),
        ("- a\n- b\n", "expected 'key: value' lines", "1:1"),
        ("just words\n", "expected 'key: value' lines", "1:1"),
        ("a: 1\n---\nb: 2\n", "a second document", "2:1"),
        ("a: !!python/object:os.system x\n", "tags (tag:yaml.org,2002:python/object", "1:4"),
        ("a: !mine [x]\n", "tags (!mine) are not read", "1:4"),
        ("a: &x {b: 1}\nc: {<<: *x}\n", "merge keys", "2:5"),
        ("a: *nobody\n", "nothing is called *nobody", "1:4"),
        ("a: &x [1, *x]\n", "*x stands inside of &x", "1:11"),
        ("a: &x {b: {c: *x}}\n", "*x stands inside of &x", "1:15"),
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


def test_a_tab_is_explained() -> None:
    assert refusal("a:\n\tb: 1\n").hint == "a tab can't indent in YAML; use spaces"
    assert refusal("a: @x").hint == "put the text in quotes: it begins with '@'"


def bomb(levels: int, width: int) -> str:
    lines = [f"a0: &a0 [{', '.join('x' * width)}]"]
    lines += [
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]"
        for level in range(1, levels)
    ]
    return "\n".join(lines)


def test_a_billion_laughs_are_refused_in_no_time() -> None:
    data = bomb(10, 9).encode()
    parse(b"a: 1", FILE)
    started = time.perf_counter()
    refused = refusal(data)
    assert time.perf_counter() - started < 0.05
    assert f"more than {MAX_NODES} values" in refused.message


def test_aliases_count_as_often_as_they_are_used() -> None:
    item = "x, " * (MAX_NODES // 10)
    uses = "\n".join(f"k{n}: *a" for n in range(20))
    assert "aliases counted in full" in refusal(f"a: &a [{item}]\n{uses}").message


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


@pytest.mark.timeout(5)
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, problem in (
        (tmp_path / "fifo", "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "none", "can't be read: No such file"),
        (Path("/dev/zero"), "not a regular file"),
    ):
        with pytest.raises(ConfigurationError, match=problem) as refused:
            read(path)
        assert refused.value.where == str(path)


def test_the_python_parser_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"a: {b: [1, no, 1e3], c: &x 'q'}\nd: *x\ne: |\n  t\n"
    fast = parse(text, FILE)
    monkeypatch.setattr(reader, "_Loader", yaml.SafeLoader)
    slow = parse(text, FILE)
    assert slow == fast
    assert refusal("a:\n\tb: 1\n").hint == "a tab can't indent in YAML; use spaces"
    assert "twice" in refusal("a: 1\na: 2").message


def test_a_value_alone() -> None:
    assert parse_value("[a, {b: 2}]", Path("SEQUENCER_X")) == ["a", {"b": 2}]
    assert parse_value("", Path("SEQUENCER_X")) is None
    with pytest.raises(ConfigurationError, match="SEQUENCER_X:2:1: not YAML"):
        parse_value("[a", Path("SEQUENCER_X"))


texts = st.recursive(
    st.text(max_size=8),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


def test_a_merge_key_in_quotes_is_a_text() -> None:
    assert parse(b"'<<': {a: 1}\nb: {\"<<\": 2}\n", FILE).data == {"<<": {"a": 1}, "b": {"<<": 2}}
    for text in ("<<: {a: 1}", "a: {<<: {b: 1}}", "a: &m <<\n*m : 1", "a: {? << : 1}"):
        assert "merge keys" in refusal(text).message


@given(st.dictionaries(st.text(max_size=6), texts, max_size=5))
def test_quoted_text_is_read_back_whatever_it_looks_like(data: dict[str, Any]) -> None:
    text = yaml.safe_dump(data, default_style='"', allow_unicode=True)
    assert parse(text.encode(), FILE).data == data


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
        ("a: 1\na: 2\n", "11:1", "key 'a' is there twice, first in line 10"),
        ("- a\n", "10:1", "expected 'key: value' lines"),
        ("a: 1\nb: 'x\n", "12:1", "not YAML"),
        ("a: \x01\n", "10:4", "not YAML"),
        ("a: *b\n", "10:4", "nothing is called *b"),
    ],
)
def test_so_have_the_problems_of_a_part(text: str, where: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        reader.parse_text(text, FILE, first_line=10)
    assert refused.value.where == f"orchestration.yaml:{where}"
    assert refused.value.message.startswith(message)


def test_a_file_may_be_read_up_to_another_limit(tmp_path: Path) -> None:
    file = tmp_path / "long.md"
    file.write_bytes(b"x" * 11)
    assert read_bytes(file, 11) == b"x" * 11
    with pytest.raises(ConfigurationError, match="has more than 10 bytes"):
        read_bytes(file, 10)
