"""The tables of docs/reference and docs/decisions say what the code says, row for row."""

from __future__ import annotations

import inspect
import re
import tomllib
import typing
from pathlib import Path

import pytest

import sequencer
from sequencer import (
    Claim,
    Event,
    Head,
    OutcomeStatus,
    Owner,
    Run,
    RunLimits,
    Status,
    Usage,
    commands,
    errors,
)
from sequencer.testing import ScratchProject
from tests.project.documents import ROOT
from tests.unit.cli.calling import call, list_verbs, worked

REFERENCE = ROOT / "docs" / "reference"
CLI = (REFERENCE / "cli.md").read_text()
FILES = (REFERENCE / "files.md").read_text()
EXECUTOR_PAGE = (REFERENCE / "executors.md").read_text()
LIBRARY = (REFERENCE / "library.md").read_text()
EXIT_CODES = (REFERENCE / "exit-codes.md").read_text()
UNATTENDED = (ROOT / "docs" / "how-to" / "unattended.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()


HEAD = {
    "run_id": "r" * 36,
    "workflow_name": "w" * 100,
    "workflow_digest": "sha256:" + "d" * 64,
    "expected_step": "s" * 100,
    "last_update": "2026-11-21T20:55:12Z",
    "last_prompt": "p" * 300,
}


def section(text: str, title: str) -> str:
    """Return what stands below the heading *title*, up to the next heading."""
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no section {title!r}"
    return match[1]


def table(text: str) -> list[list[str]]:
    """Return the rows of the first table of *text*, its heading left out."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]
    return cells[1:]


def words(cell: str) -> list[str]:
    """Return each `word` in code of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def first_words(text: str) -> list[str]:
    """Return the words in code of the first column of a table."""
    return [word for row in table(text) for word in words(row[0])]


@pytest.mark.parametrize(
    ("title", "model"),
    [
        ("state.json, the head", Head),
        ("A claim", Claim),
        ("The owner of a claim", Owner),
    ],
)
def test_the_fields_of_a_head_are_listed(title: str, model: type[Head | Claim | Owner]) -> None:
    assert first_words(section(FILES, title)) == list(model.model_fields)


def test_the_parts_of_a_head_and_their_values_are_listed(tmp_path: Path) -> None:
    head = section(FILES, "state.json, the head")
    rows = {words(row[0])[0]: row[2] for row in table(head)}
    assert words(rows["status"]) == [str(status) for status in Status]
    assert words(rows["usage"]) == list(Usage.model_fields)
    assert words(rows["session"])[:5] == list(head_with_session().model_dump()["session"])
    changeable = head.split("`sequencer set` changes")[1].split(", and any")[0]
    refused = call(worked(tmp_path / "p", 1), "set", "revision=7")
    assert refused.code == 3
    editable = refused.err.partition("editable: ")[2].splitlines()[0]
    assert words(changeable) == editable.split(", ")


def head_with_session(**values: object) -> Head:
    """Return a head whose next step may continue a conversation."""
    session = {"executor": "claude", "id": "i" * 100}
    return Head.model_validate({**HEAD, "session": session, **values})


def test_all_events_are_listed() -> None:
    listed = FILES.split("Events: ")[1].split(".")[0]
    assert words(listed) == [str(event) for event in Event]


def test_a_head_is_as_small_as_promised() -> None:
    owner = Owner(
        host="h" * 64,
        machine="m" * 12,
        boot_id="b" * 36,
        pid_ns="pid:[4026531836]",
        pid=4_194_304,
        pid_start=2**40,
        nonce="n" * 16,
    )
    claim = Claim(
        token=2**40,
        step="s" * 100,
        step_index=2**40,
        attempt=20,
        owner=owner,
        claimed_at=HEAD["last_update"],
        ttl_s=60,
    )
    head = head_with_session(claims=[claim.model_dump()])
    assert "less than 4 KiB" in FILES
    assert len(head.model_dump_json(indent=2)) < 4096


def test_every_error_is_listed_with_its_exit_code() -> None:
    found = {
        name: str(cls.exit_code)
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.SequencerError)
    }
    rows = table(section(EXIT_CODES, "Errors of the library"))
    assert {words(row[0])[0]: row[1] for row in rows} == found
    documented = {row[0] for row in table(section(EXIT_CODES, "Exit codes"))}
    assert documented == set(found.values()) | {"0"}
    for_timers = {row[0] for row in table(section(UNATTENDED, "When you get mail"))}
    assert for_timers == documented
    said = call(ROOT, "help", "all").out.partition("Exit codes:")[2]
    assert {code for code in documented if re.search(rf"\b{code} ", said)} == documented


VARIABLES = first_words(section(EXECUTOR_PAGE, "The environment"))


def test_the_variables_of_an_agent_are_listed(tmp_path: Path) -> None:
    agent = {"kind": "command", "argv": ["sh", "-c", "env > variables"], "free": True}
    project = ScratchProject(tmp_path / "p", {"agent": "env", "agents": {"env": agent}})
    assert project.run_command("--run", "named", "run", "--max-steps", "1").exit_code == 0
    lines = (project.folder / "variables").read_text().splitlines()
    given = {line.partition("=")[0] for line in lines if line.startswith("SEQUENCER_")}
    # A guard finds its agent's processes by one more, which no agent needs.
    assert given - {"SEQUENCER_GUARD"} == set(VARIABLES)


def test_the_library_page_lists_every_public_name() -> None:
    listed = {name.split("(")[0] for name in first_words(LIBRARY.split("## A run")[0])}
    assert listed == set(sequencer.__all__)


def test_the_members_of_a_run_are_listed(tmp_path: Path) -> None:
    rows = table(section(LIBRARY, "A run"))
    members = {re.split(r"\W", words(row[0])[0].removeprefix("run."))[0]: row[1] for row in rows}
    own = {name for name in vars(Run) if not name.startswith("_")}
    assert set(members) == own
    control = type(ScratchProject(tmp_path / "p").run().commands)
    controls = {name for name in vars(control) if not name.startswith("_")}
    controls -= {"do", "expire_waits"}
    assert set(words(members["commands"])) == controls


def test_the_events_of_a_run_are_listed_with_their_fields() -> None:
    listed = [words(row[0])[0] for row in table(section(LIBRARY, "Events"))]
    kinds = typing.get_args(sequencer.events.RunEvent)
    assert sorted(listed) == sorted(
        f"{kind.__name__}({', '.join(kind.__struct_fields__)})" for kind in kinds
    )


def test_the_commands_of_a_run_are_listed() -> None:
    listed = " ".join(row[0] for row in table(section(LIBRARY, "Commands")))
    own = {
        f"{one.__name__}({', '.join(one.__struct_fields__)})"
        for one in commands.RunCommand.__subclasses__()
    }
    assert set(words(listed)) == own


def test_the_numbers_of_the_protocol_match_the_code(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text("{}")
    printed = call(tmp_path, "check", "--settings", "--json").json
    values, limits = {one["key"]: one["value"] for one in printed}, RunLimits()
    assert f"`store.ttl_s`, {values['store.ttl_s']:g} s" in PROTOCOL
    assert f"`store.journal.keep` ({values['store.journal.keep']})" in PROTOCOL
    assert values["store.journal.rotate_bytes"] == 4 * 1024 * 1024
    assert "`store.journal.rotate_bytes` (4 MiB)" in PROTOCOL
    decision = (ROOT / "docs" / "decisions" / "0006-failures.md").read_text()
    assert f"`limits.failures_in_row` ({limits.failures_in_row})" in decision
    assert f"`limits.attempts` ({limits.attempts})" in decision


def test_the_glossary_lists_all_outcomes() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    row = next(row for row in table(glossary) if row[0] == "**outcome**")
    assert words(row[1]) == [str(status) for status in OutcomeStatus]


def test_each_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=;\s]", needed)[0] for needed in project["dependencies"]}
    page = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text()
    rows = {row[0]: row for row in table(page)}
    assert rows.keys() == names
    assert all(len(row[2]) > 20 for row in rows.values())


VERBS = list_verbs()


def options(*command: str) -> set[str]:
    """Return the options that the whole help of *command* lists."""
    helped = call(ROOT, *command)
    assert (helped.code, "sequencer" in helped.out) == (0, True)
    listed = helped.out.partition("\nOptions:\n")[2].partition("\n\n")[0]
    lines = [line for line in listed.splitlines() if line.startswith("  -")]
    return {name for line in lines for name in re.findall(r"(?:^  |, |/ )(--?[a-z][a-z-]*)", line)}


GLOBAL = options("help", "all") | {"-h"}


@pytest.mark.parametrize("verb", VERBS)
def test_each_command_is_listed_with_its_options_and_arguments(verb: str) -> None:
    own, text = options(verb, "--help-all") - GLOBAL, section(CLI, verb)
    listed = {w for word in words(text) for w in re.findall(r"(?<!\S)--?[a-z][a-z-]*", word)}
    assert own - listed == set(), "not documented"
    assert listed - own - GLOBAL == set(), "no such option"


def test_the_page_lists_exactly_the_existing_commands() -> None:
    titles = re.findall(r"^### (.+)$", CLI, re.MULTILINE)
    assert sorted(titles) == sorted(VERBS)


def test_the_global_options_are_listed() -> None:
    listed = {word.split()[0] for word in first_words(section(CLI, "Global options"))}
    assert listed == GLOBAL - {"-h"}
