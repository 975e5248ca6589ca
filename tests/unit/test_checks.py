from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.project.agent_checks import check_walls
from sequencer.project.checks import check_project
from sequencer.project.diagnostics import Area, Diagnostic, Level, exit_code
from sequencer.project.project import open_project
from tests.unit.cli.calling import CONFIGURATION, call, project, worked
from tests.unit.store.broken_runs import damage_line, edit

OF_THE_MACHINE = re.compile("there is no wall around agents|agents of root can read")
"""What depends on the kernel and the user that run the tests."""


def findings(folder: Path, *, level: Level | None = None) -> list[Diagnostic]:
    found = check_project(open_project(folder), None)
    return [
        finding
        for finding in found
        if level in (None, finding.level) and not OF_THE_MACHINE.search(finding.message)
    ]


def only(folder: Path, level: Level) -> Diagnostic:
    """Return the one finding of *level*."""
    found = findings(folder, level=level)
    assert len(found) == 1, found
    return found[0]


def whole(found: Diagnostic) -> str:
    return f"{found.area} {found.where}: {found.message}; {found.hint}"


MINE = "workflow: {name: w}\nagents: {t: {kind: command, argv: [sh]}}\n"
LOST = "agents: {t: {kind: command, argv: [no-such-program]}}\n"
OF_A_POSITION = CONFIGURATION.replace("default: rehearsal", "default: rehearsal, roles: {main: t}")


@pytest.mark.parametrize(
    ("configuration", "level", "said"),
    [
        (
            *(CONFIGURATION + "main_prompt: gone.md\n", Level.ERROR),
            "workflow review_cadence, step 'main': .*'gone.md'.*reviewer.md, supervisor.md",
        ),
        (
            *(CONFIGURATION.replace("rehearsal", "rehearsal, roles: {mian: codex}"), Level.WARNING),
            "agent.roles.mian: unknown step 'mian'; did you mean 'main'[?] .*supervisor",
        ),
        (
            *(CONFIGURATION.replace("rehearsal", "rehearsal, prompts: {mian.md: codex}"),),
            Level.WARNING,
            "agent.prompts.*: unknown prompt 'mian.md'; did you mean 'main.md'[?] .*supervisor.md",
        ),
        (
            *(CONFIGURATION.replace(", review_every_n: 2", ""), Level.WARNING),
            "never reviews.*review_every_n",
        ),
        (
            *(CONFIGURATION + "workflows: {other: {steps: [dream]}}\n", Level.WARNING),
            "workflow other, step 'dream': .*'dream.md'",
        ),
        (
            MINE + "workflows: {w: {steps: [{name: main, agent: t, max_turns: 3}]}}\n",
            *(Level.ERROR, "agent .*max_turns"),
        ),
        (f"agent: {{default: t}}\n{LOST}", Level.ERROR, "agent t: .*no-such-program"),
        (CONFIGURATION + LOST, Level.NOTICE, "agent t: .*no-such-program"),
        (OF_A_POSITION + LOST, Level.ERROR, "agent t: .*no-such-program"),
        (
            *(CONFIGURATION + "agents:\n  quick: {kind: rehearsal, second: 3}\n", Level.ERROR),
            "orchestration.yaml:4.*agents.quick.second",
        ),
    ],
)
def test_problems_of_a_project_are_reported(
    tmp_path: Path, configuration: str, level: Level, said: str
) -> None:
    found = only(project(tmp_path, configuration), level)
    assert re.search(said, whole(found)), whole(found)
    assert exit_code([found]) == (2 if level is Level.ERROR else 0)


def tear(journal: Path) -> None:
    with journal.open("ab") as file:
        file.write(b'{"revision":')


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        (lambda s: s.write_text("{"), Level.WARNING, "restores it from the journal"),
        (lambda s: edit(s, ticket="A"), Level.NOTICE, "edited by hand"),
        (lambda s: edit(s, token=0), Level.NOTICE, "token can't be changed there"),
        (lambda s: edit(s, run_id="x"), Level.ERROR, "a different run"),
        (lambda s: edit(s, schema_version=2), Level.ERROR, "; update sequencer on this machine$"),
        (lambda s: tear(s.with_name("journal.jsonl")), Level.WARNING, "torn"),
        (
            lambda s: (s.parents[1] / "orchestration.yaml").write_text(
                CONFIGURATION.replace(": 2", ": 3")
            ),
            *(Level.ERROR, "sequencer adopt"),
        ),
    ],
)
def test_problems_of_a_run_are_reported(
    tmp_path: Path, change: Callable[[Path], object], level: Level, said: str
) -> None:
    worked(tmp_path, 2)
    change(tmp_path / "sync" / "state.json")
    found = only(tmp_path, level)
    assert re.search(said, whole(found)), whole(found)
    assert exit_code([found]) == (3 if level is Level.ERROR else 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b" \n\n", "is empty"), (b"\xff\xfe", "not UTF-8")],
)
def test_a_prompt_that_is_empty_or_not_utf8_is_an_error(
    tmp_path: Path, content: bytes, said: str
) -> None:
    project(tmp_path)
    (tmp_path / "prompts" / "main.md").write_bytes(content)
    assert said in only(tmp_path, Level.ERROR).message


def test_the_prompt_of_a_review_that_is_never_due_is_a_warning(tmp_path: Path) -> None:
    project(tmp_path, CONFIGURATION.replace(": 2", ": 0"), "supervisor.md", "main.md")
    found = findings(tmp_path)
    assert [finding.level for finding in found] == [Level.WARNING, Level.WARNING]
    assert exit_code(found) == 0


LABELLED = """\
workflow: {name: dev}
routing:
  system_prompts:
    debugger: {prompt: roles/defect.md}
    mine: {labels: [idea], prompt: roles/idea.md}
agent: {default: rehearsal}
workflows:
  dev:
    kind: procedure
    steps:
      - {name: main, system_from_labels: true}
      - {name: judge, validation: {fixer: {name: mend}}}
"""


def test_the_prompts_of_fixers_and_labels_must_exist(tmp_path: Path) -> None:
    project(tmp_path, LABELLED, "main.md", "judge.md")
    missing = {"mend.md", "roles/defect.md", "roles/idea.md"}
    found = [one for one in findings(tmp_path, level=Level.ERROR) if one.area is Area.WORKFLOW]
    assert {re.sub(r".*prompt '(.*)'", r"\1", one.message) for one in found} == missing
    assert {one.where for one in found} == {
        "workflow dev, step 'main'",
        "workflow dev, step 'mend'",
    }
    (tmp_path / "prompts" / "roles").mkdir()
    for name in missing:
        (tmp_path / "prompts" / name).write_text("A text.")
    assert findings(tmp_path, level=Level.ERROR) == []


def test_the_agent_of_a_fixer_must_exist(tmp_path: Path) -> None:
    text = LABELLED.replace("system_from_labels: true", "model: null")
    text = text.replace("{name: mend}", "{name: mend, agent: lost}")
    project(tmp_path, text + "agents: {lost: {kind: lost}}\n", "main.md", "judge.md", "mend.md")
    assert "unknown agent kind 'lost'" in {
        one.message for one in findings(tmp_path, level=Level.ERROR)
    }


def test_an_agent_without_its_program_is_reported_once(tmp_path: Path) -> None:
    text = "agent: mine\nagents: {mine: {kind: command, argv: [no-such-program]}}\n"
    project(tmp_path, text, "main.md", "supervisor.md")
    lost = [one for one in findings(tmp_path) if "no-such-program" in one.message]
    assert [one.level for one in lost] == [Level.ERROR]


def test_without_any_agent_the_hint_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    project(tmp_path / "app", "agent: {default: auto}\n")
    found = only(tmp_path / "app", Level.ERROR)
    assert found.hint is not None
    assert "npm install" in found.hint


def test_the_router_needs_its_prompt_and_those_that_it_may_name(tmp_path: Path) -> None:
    router = "router: {enabled: true, prompt: router.md, allowlist: [main.md, extra.md]}\n"
    project(tmp_path, CONFIGURATION + router)
    said = {f.where: f.message for f in findings(tmp_path, level=Level.ERROR)}
    assert set(said) == {"router.prompt", "router.allowlist"}
    assert "'extra.md'" in said["router.allowlist"]


def test_a_removed_workflow_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    own = "workflows: {own: {steps: [main]}}\nagent: {default: rehearsal}\n"
    project(tmp_path, f"workflow: {{name: own}}\n{own}")
    assert call(tmp_path, "run", "--max-steps", "1", "--quiet").code == 0
    (tmp_path / "orchestration.yaml").write_text("agent: {default: rehearsal}\n")
    found = only(tmp_path, Level.ERROR)
    assert "unknown workflow 'own'" in found.message
    assert found.hint is not None
    assert "standard" in found.hint


def test_a_gap_in_the_journal_is_an_error_with_its_offset(tmp_path: Path) -> None:
    worked(tmp_path, 4)
    journal = tmp_path / "sync" / "journal.jsonl"
    bad = damage_line(journal, 2)
    found = findings(tmp_path)
    behind = bad + len(journal.read_bytes().splitlines(keepends=True)[2])
    said = [f.message for f in found if f.area is Area.JOURNAL]
    assert f"revision 3 is missing before byte {behind}" in said
    assert f"the line at byte {bad} does not count: damaged: the checksum does not match" in said
    assert exit_code(found) == 3


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    with (tmp_path / "sync" / "journal.jsonl").open("ab") as file:
        file.write(b"x\n" * 50)
    found = findings(tmp_path, level=Level.WARNING)
    assert len(found) == 21
    assert found[-1].message == "30 more lines do not count"


def test_a_network_file_system_is_an_error_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path)
    monkeypatch.setattr("sequencer.project.folder_checks.filesystem_type", lambda _: "nfs4")
    found = only(tmp_path, Level.ERROR)
    assert "nfs4" in found.message
    assert found.exit_code == 3
    (tmp_path / "orchestration.yaml").write_text(
        CONFIGURATION + "store: {allow_network_fs: true}\n"
    )
    assert exit_code(findings(tmp_path)) == 0
    assert only(tmp_path, Level.WARNING).area is Area.STATE


def test_a_logs_folder_that_is_a_link_is_an_error(tmp_path: Path) -> None:
    project(tmp_path / "app")
    (tmp_path / "app" / "logs").symlink_to(tmp_path)
    assert only(tmp_path / "app", Level.ERROR).message.startswith(
        "is a link, but it has to be a folder"
    )
    (tmp_path / "app" / "logs").unlink()
    (tmp_path / "app" / "logs" / "local").mkdir(parents=True)
    (tmp_path / "app" / "logs" / "local" / "steps").symlink_to(tmp_path)
    found = only(tmp_path / "app", Level.ERROR)
    assert found.where == str(tmp_path / "app" / "logs" / "local" / "steps")


@pytest.mark.parametrize("name", ["logs", "sync"])
def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path, name: str) -> None:
    project(tmp_path)
    (tmp_path / name).write_text("")
    assert any("is not a folder" in f.message for f in findings(tmp_path, level=Level.ERROR))


def test_a_folder_that_can_not_be_written_to_is_an_error(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    project(tmp_path)
    (tmp_path / "logs").mkdir(mode=0o500)
    assert "can't be written to" in only(tmp_path, Level.ERROR).message


def test_everything_is_found_at_once(tmp_path: Path) -> None:
    worked(tmp_path, 2)
    (tmp_path / "prompts" / "main.md").unlink()
    (tmp_path / "prompts" / "reviewer.md").write_text("")
    edit(tmp_path / "sync" / "state.json", run_id="another")
    found = findings(tmp_path, level=Level.ERROR)
    assert len(found) == 3
    assert exit_code(found) == 2


# --- walls -------------------------------------------------------------------------------

SUDO = "agents: {t: {kind: command, argv: [sh, -c, 'cd x && /usr/bin/sudo make install']}}\n"
WALLS = "agents: {t: {kind: command, argv: [sh], wall: none}, u: {kind: command, argv: [sh]}}\n"


@pytest.mark.parametrize(
    ("configuration", "uid", "why", "told"),
    [
        (LOST, 1000, None, []),
        (LOST, 0, None, ["agents of root can read"]),
        (LOST, 0, "an old kernel", ["there is no wall .*an old kernel"]),
        (WALLS, 1000, None, ["wall: none: nothing isolates it from"]),
        (WALLS, 0, None, ["wall: none: nothing isolates it from", "agents of root can read"]),
        (SUDO, 1000, None, ["sudo doesn't work inside the wall"]),
        (SUDO, 1000, "an old kernel", ["there is no wall .*an old kernel"]),
        # Nothing starts a process that a wall could be around.
        ("", 0, "an old kernel", []),
    ],
)
def test_missing_walls_between_agents_are_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    configuration: str,
    *,
    uid: int,
    why: str | None,
    told: list[str],
) -> None:
    monkeypatch.setattr("sequencer.project.agent_checks.unavailable_reason", lambda: why)
    monkeypatch.setattr("sequencer.project.agent_checks.os.geteuid", lambda: uid)
    project(tmp_path, CONFIGURATION + configuration)
    found = list(check_walls(open_project(tmp_path)))
    assert {finding.level for finding in found} <= {Level.NOTICE}
    for finding, pattern in zip(found, told, strict=True):
        assert re.search(pattern, finding.message)
        assert finding.hint
    assert all("sudo" in (finding.hint or "") for finding in found if finding.where == "agent t")


def test_names_of_any_workflow_are_no_typos(tmp_path: Path) -> None:
    roles = "roles: {loop: codex, plan: codex, fixer: codex}, prompts: {spare: codex, plan: codex}"
    judge = "{name: q, text: x, validation: {fixer: {name: fixer, text: x}}}"
    more = f"workflows: {{mine: {{steps: [plan, {judge}]}}}}\n"
    configuration = CONFIGURATION.replace("rehearsal", f"rehearsal, {roles}") + more
    project(
        tmp_path, configuration, "supervisor.md", "main.md", "reviewer.md", "spare.md", "plan.md"
    )
    assert "unknown" not in call(tmp_path, "check").out
