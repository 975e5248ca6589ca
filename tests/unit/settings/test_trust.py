"""What acts, what is free, and what a cap is: every key of the schema has its word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.cli.program import COMMANDS
from sequencer.files.keys import iter_leaves
from sequencer.files.yamlfile import KeyPath, format_key_path
from sequencer.project.schema import DecidingVerb, Schema
from sequencer.project.settings import load
from sequencer.project.trust import ABSENT, Acts, Rule, find_rule, list_acts, rules

LEAVES = [path for path, _ in iter_leaves(Schema)]
HERE = Path("/nonexistent")


def written(path: KeyPath, value: object) -> dict[str, Any]:
    """Return a file's content that has *value* at *path* alone."""
    found: Any = value
    for part in reversed(path):
        found = {part: found}
    return dict(found)


def acts(path: KeyPath, value: object) -> Acts:
    return list_acts(written(path, value), HERE)


def names(path: KeyPath) -> Iterator[str]:
    for length in range(len(path), 0, -1):
        yield ".".join(map(str, path[:length]))


def test_every_key_has_a_trust_rule() -> None:
    # A key that is not listed acts; a new one has to be thought about all the same.
    assert [format_key_path(path) for path in LEAVES if not rules().keys() & set(names(path))] == []


def test_the_table_has_no_removed_keys() -> None:
    known = {name for path in LEAVES for name in names(path)}
    assert sorted(rules().keys() - known) == []


def test_an_unknown_key_acts() -> None:
    assert find_rule(("new_section", "new_key")) is Rule.ACTS
    assert find_rule(("store", "new_key")) is Rule.ACTS


texts = st.text(min_size=1, max_size=20)


@pytest.mark.parametrize(
    "path", [p for p in LEAVES if find_rule(p) is Rule.ACTS], ids=format_key_path
)
@settings(max_examples=10)
@given(before=texts, after=texts)
def test_a_change_to_a_key_that_acts_is_noticed(path: KeyPath, before: str, after: str) -> None:
    old, new = acts(path, before), acts(path, after)
    assert (old.digest == new.digest) == (before == after)
    assert bool(new.diff_from(old)) == (before != after)
    assert list_acts({}, HERE).diff_from(old), "taken away"
    assert old.diff_from(list_acts({}, HERE)), "added"


@pytest.mark.parametrize(
    "path", [p for p in LEAVES if find_rule(p) is Rule.FREE], ids=format_key_path
)
@settings(max_examples=10)
@given(before=texts, after=texts)
def test_a_change_to_a_free_key_is_not_noticed(path: KeyPath, before: str, after: str) -> None:
    old, new = acts(path, before), acts(path, after)
    assert old.digest == new.digest
    assert new.diff_from(old) == []


@pytest.mark.parametrize(
    "path", [p for p in LEAVES if find_rule(p) is Rule.CAP], ids=format_key_path
)
@settings(max_examples=20)
@given(before=st.integers(1, 10**6), after=st.integers(1, 10**6))
def test_a_cap_may_fall_and_not_rise(path: KeyPath, before: int, after: int) -> None:
    old, new = acts(path, before), acts(path, str(after))
    assert old.digest == new.digest
    assert bool(new.diff_from(old)) == (after > before)
    assert acts(path, None).diff_from(old), "taken away"


@pytest.mark.parametrize(
    ("before", "after", "is_more"),
    [
        ("[a]", "[{name: a, allowed_tools: ['Bash(*)']}]", True),
        ("[{name: a, tools: {bash: true}}]", "[{name: c, tools: {bash: true}}]", False),
        ("[{name: a, tools: {bash: true}}]", "[a]", False),
        ("[{name: a, allowed_tools: [X]}]", "[a]", True),
        ("[a]", "[{name: a, tools: {bash: true}}]", True),
        ("[a]", "[{name: a, tools: {bash: false}}]", False),
        ("[a]", "[{name: a, validation: {fixer: {name: f, allowed_tools: [X]}}}]", True),
        ("[a]", "[{name: a, prompt: other.md, agent: claude, model: x}]", False),
    ],
)
def test_only_the_grants_of_a_step_count(
    tmp_path: Path, before: str, after: str, is_more: bool
) -> None:
    found = []
    for steps in (before, after):
        (tmp_path / "orchestration.yaml").write_text(f"workflows: {{w: {{steps: {steps}}}}}\n")
        found.append(list_acts(load(tmp_path, env={}).written, tmp_path))
    assert bool(found[1].diff_from(found[0])) is is_more


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tools:\n  bash: false\n", "tools:\n  bash: true\n"),
        ("allowedTools:\n- Read\n", "allowedTools:\n- Read\n- Bash\n"),
        ("tools: {read: true,\nbash: false}\n", "tools: {read: true,\nbash: true}\n"),
        ("x: &a {bash: false}\ntools: *a\n", "x: &a {bash: true}\ntools: *a\n"),
        ("? tools\n: {bash: false}\n", "? tools\n: {bash: true}\n"),
        ('"\\x74ools": {bash: false}\n', '"\\x74ools": {bash: true}\n'),
        ("'tools' : {bash: false}\n", "'tools' : {bash: true}\n"),
    ],
)
def test_a_grant_in_a_flow_is_noticed_in_any_form(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "flows").mkdir()
    found = []
    for text in (before, after):
        (tmp_path / "flows" / "a.md").write_text(f"---\n{text}---\n")
        found.append(list_acts({}, tmp_path))
    assert found[1].diff_from(found[0])


@pytest.mark.parametrize(
    ("argv", "is_seen"),
    [
        (["./run.sh"], True),
        (["sh", "run.sh"], True),
        (["prog", "--script=run.sh"], True),
        (["python", "-m", "tool"], True),
        (["python", "-m", "pkg.inner"], True),
        (["prog", "--", "absent.sh"], False),
        (["/bin/sh", "-c", "true"], False),
    ],
)
def test_files_of_the_project_that_are_run_count(
    tmp_path: Path, argv: list[str], is_seen: bool
) -> None:
    (tmp_path / "pkg").mkdir()
    files = ("run.sh", "tool.py", "pkg/inner.py")
    entry = {"agents": {"a": {"kind": "command", "argv": argv}}}
    for name in files:
        (tmp_path / name).write_text("one")
    before = list_acts(entry, tmp_path)
    for name in files:
        (tmp_path / name).write_text("two")
    assert bool(list_acts(entry, tmp_path).diff_from(before)) is is_seen


def test_a_missing_file_counts_only_inside_the_project(tmp_path: Path) -> None:
    argv = ["sh", "../outside.sh", "/outside.sh", "inside.sh"]
    acts = list_acts({"agents": {"a": {"kind": "command", "argv": argv}}}, tmp_path)
    assert acts.files == {"agents.a": {tmp_path / "inside.sh": ABSENT}}


def test_a_link_out_of_the_project_counts_as_where_it_leads(tmp_path: Path) -> None:
    entry = {"agents": {"a": {"kind": "command", "argv": ["./tool"]}}}
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "tool").symlink_to("/bin/sh")
    before = list_acts(entry, folder)
    (folder / "tool").unlink()
    (folder / "tool").symlink_to("/bin/cat")
    assert len(list_acts(entry, folder).diff_from(before)) == 2


def test_a_flow_from_outside_the_project_grants_nothing_and_is_not_read(tmp_path: Path) -> None:
    folder, outside = tmp_path / "p", tmp_path / "outside.md"
    outside.write_text("---\ntools: {bash: true}\n---\n")
    (folder / "flows").mkdir(parents=True)
    argv = ["agent", ".", "flows"]
    entry = {"agents": {"a": {"kind": "command", "argv": argv}}, "hooks": ["flows"]}
    before = list_acts(entry, folder)
    (folder / "flows" / "away.md").symlink_to(outside)
    (folder / "flows" / "folder.md").mkdir()
    assert list_acts(entry, folder).diff_from(before) == []


def test_secrets_are_not_shown_and_still_compared(tmp_path: Path) -> None:
    def entry(value: str) -> Acts:
        return list_acts({"agents": {"a": {"env": {"MY_TOKEN": value}}}}, tmp_path)

    assert "hunter2" not in "\n".join(entry("hunter2").described)
    assert entry("hunter3").diff_from(entry("hunter2"))


def test_programs_the_repository_has_git_run_count(tmp_path: Path) -> None:
    found = list_acts({}, tmp_path, {"core.sshcommand": "evil"})
    assert found.diff_from(list_acts({}, tmp_path)) == ['+ git.core.sshcommand: "evil"']


def test_displayed_text_is_printable_ascii(tmp_path: Path) -> None:
    (line,) = list_acts({"agents": {"a\x1b[2K": {"argv": ["\u202efdp"]}}}, tmp_path).lines
    assert line.isascii()
    assert line.isprintable()


def test_exactly_the_commands_for_people_can_be_handed_over() -> None:
    deciding = {name for name, command in COMMANDS.items() if command.decides}
    assert deciding == set(get_args(DecidingVerb))
