"""No name, whatever it is made of, reads a file outside the prompts folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.errors import ConfigurationError, UnknownName, UnsafePath
from sequencer.workflows.prompts import PromptReader, prompt_path, relative_name
from tests.property.amounts import PART, for_all
from tests.unit.hostile_names import marks

CANARY = "the canary"
INSIDE = "a prompt"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Files of the same names inside and outside, and every kind of link between them."""
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        prompts = root / "prompts"
        (prompts / "a" / "b").mkdir(parents=True)
        for path in (root / "a.md", root / "b.md", root / "prompts.md"):
            path.write_text(CANARY, encoding="utf-8")
        for path in (prompts / "a.md", prompts / "a" / "b.md", prompts / "a" / "b" / "a.md"):
            path.write_text(INSIDE, encoding="utf-8")
        (prompts / "up").symlink_to("..")
        (prompts / "a" / "up").symlink_to("../..")
        (prompts / "down").symlink_to("a")
        (prompts / "b.md").symlink_to("../b.md")
        (prompts / "a" / "abs.md").symlink_to(root / "a.md")
        (prompts / "chain.md").symlink_to("a/chain.md")
        (prompts / "a" / "chain.md").symlink_to("../up/a.md")
        yield prompts


parts = st.sampled_from(
    ["a", "b", "a.md", "b.md", "abs.md", "chain.md", "up", "down", "..", ".", "", "prompts", "~"]
)
paths = st.lists(parts, max_size=6).map("/".join)
rooted = st.sampled_from(["", "/", "//", "./", "../", "\\", "C:\\", "~/", "file://"])
names = st.one_of(
    st.builds(str.__add__, rooted, paths),
    st.text(alphabet="ab./\\~\0 \n-md", max_size=12),
    st.text(max_size=12),
)


@settings(max_examples=PART)
@given(name=names)
def test_only_prompts_inside_the_folder_are_read(folder: Path, name: str) -> None:
    try:
        text = PromptReader(folder).read(name)
    except ConfigurationError as refused:
        assert isinstance(refused, (UnsafePath, UnknownName))  # noqa: PT017
        assert CANARY not in str(refused)  # noqa: PT017
        return
    assert text == INSIDE
    assert prompt_path(folder, name).is_relative_to(folder.resolve())


@settings(max_examples=PART)
@given(name=names)
def test_a_key_is_stable_and_safe(folder: Path, name: str) -> None:
    try:
        key = relative_name(folder, name)
    except UnsafePath:
        return
    assert not key.startswith("/")
    assert not {"", ".", ".."} & set(key.split("/"))
    assert key.isprintable()
    # A second look takes one more leading folder name off, and nothing else.
    if not key.startswith(f"{folder.name}/"):
        assert relative_name(folder, key) == key


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("a", True),
        ("down/b", True),
        ("down/b/a", True),
        ("prompts/a/b", True),
        ("up/a", False),
        ("a/up/a", False),
        ("b", False),
        ("a/abs", False),
        ("chain", False),
        ("up/prompts/a", True),
    ],
)
def test_links_are_judged_by_where_they_end(folder: Path, name: str, *, inside: bool) -> None:
    if inside:
        assert PromptReader(folder).read(name) == INSIDE
    else:
        with pytest.raises(UnsafePath, match="outside the prompts folder"):
            PromptReader(folder).read(name)


def test_no_spelling_of_an_outside_path_reads_a_file(tmp_path: Path) -> None:
    prompts = tmp_path / "project" / "prompts"
    prompts.mkdir(parents=True)
    secret = tmp_path / "project" / "secret.md"
    secret.write_text("the canary")
    (prompts / "Main.md").write_text("inside")
    ways = st.sampled_from(
        [str(secret), str(secret.with_suffix("")), "secret.md", "../secret", "..\\secret.md"]
    )
    before = st.lists(marks | st.just("prompts"), max_size=4).map("".join)
    after = st.lists(marks | st.just("main.md"), max_size=3).map("".join)

    def check(start: str, way: str, end: str) -> None:
        with pytest.raises((UnsafePath, UnknownName)) as refused:
            PromptReader(prompts).read(start + way + end)
        assert refused.value.exit_code == 2
        assert "the canary" not in str(refused.value)

    for_all(check, before, ways, after, examples=PART)
