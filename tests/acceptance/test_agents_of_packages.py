"""Agents whose kind comes from a package: what they cost, and which of their files are trusted."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.test_plug_ins import Installed, installed

__all__ = ["installed"]


@pytest.mark.parametrize("word", ["", ", free: true"])
def test_a_program_of_a_package_has_a_result_file_and_an_unknown_cost(
    installed: Installed, word: str
) -> None:
    installed.settings(
        f"agents: {{mine: {{kind: loud, script: work.sh{word}}}}}\nagent: {{default: mine}}\n"
    )
    script = installed.project / "work.sh"
    script.write_text('cat\necho done\ntest -d "$(dirname "$SEQUENCER_RESULT")"\n')
    installed.run("run", "--max-steps", "1")
    last = json.loads(installed.run("history", "--json").splitlines()[-1])
    assert (last["event"], last["outcome"]["output"]) == ("succeeded", "done")
    assert ("unpriced" in last["outcome"]["usage"]) == (not word)


_KINDS_OF_COST = """\
from sequencer import CommandExecutor, CommandOptions, Outcome, OutcomeStatus


class Plain:
    kind, supported_fields = "priced", frozenset()

    def problems(self):
        return []

    def perform(self, request, listener, cancellation):
        return Outcome(status=OutcomeStatus.OK, output="done")


class Free(Plain):
    is_free = True


class Shell(CommandExecutor):
    is_free = True


class Raises(Plain):
    def perform(self, request, listener, cancellation):
        raise RuntimeError("after the agent was paid")


class Talks(Plain):
    def perform(self, request, listener, cancellation):
        return "done"


class Slots:
    __slots__ = ()
    kind, supported_fields, problems, perform = "priced", frozenset(), Plain.problems, Plain.perform


class Frozen(Plain):
    @property
    def perform(self):
        return lambda *_: Outcome(status=OutcomeStatus.OK)


ONE = Plain()
MADE = {
    "plain": lambda name, core: Plain(),
    "free": lambda name, core: Free(),
    "shell": lambda name, core: Shell(name, CommandOptions(argv=("true",)), core),
    "raises": lambda name, core: Raises(),
    "talks": lambda name, core: Talks(),
    "slots": lambda name, core: Slots(),
    "frozen": lambda name, core: Frozen(),
    "one": lambda name, core: ONE,
}


def priced(name, options, core):
    options.pop("free", None)
    return MADE[options["of"]](name, core)
"""


@pytest.mark.parametrize(
    ("options", "unpriced"),
    [
        ("of: plain", 1),
        ("of: plain, free: true", 0),
        ('of: plain, free: "no"', 1),
        ("of: free", 0),
        ("of: shell", 0),
        ("of: raises", 1),
        ("of: raises, free: true", 0),
        ("of: talks", 1),
        ("of: talks, free: true", 0),
        ("of: one", 1),
        ("of: slots", None),
        ("of: frozen", None),
    ],
)
def test_what_the_attempts_of_a_package_cost(
    installed: Installed, options: str, unpriced: int | None
) -> None:
    installed.package("costs", {"executors": {"priced": "costs:priced"}}, costs=_KINDS_OF_COST)
    installed.settings(f"agents: {{mine: {{kind: priced, {options}}}}}\nagent: mine\n")
    code = 2 if unpriced is None else int("raises" in options or "talks" in options)
    said = installed.run("run", "--max-steps", "1", code=code)
    if unpriced is None:
        assert "the package 'costs' failed: AttributeError" in said
        assert "perform" in said
        return
    usage = json.loads(installed.run("status", "--json").splitlines()[0])["usage"]
    assert usage["unpriced"] == unpriced


@pytest.mark.parametrize(("options", "is_warned"), [("of: plain", True), ("of: free", False)])
def test_check_warns_of_a_package_that_may_never_report_its_cost(
    installed: Installed, options: str, is_warned: bool
) -> None:
    installed.package("costs", {"executors": {"priced": "costs:priced"}}, costs=_KINDS_OF_COST)
    settings = f"agents: {{mine: {{kind: priced, {options}}}}}\nagent: mine\n"
    installed.settings(f"{settings}limits: {{cost_usd: 1}}\n")
    said = installed.run("check")
    assert ("agent 'mine' may never report its cost" in said) == is_warned


@pytest.mark.parametrize("is_named", [False, True])
def test_a_program_of_a_package_does_not_classify_requests(
    installed: Installed, *, is_named: bool
) -> None:
    named = "routing: {classifier: mine}\n" if is_named else ""
    installed.settings(f"agents: {{mine: {{kind: loud, script: work.sh}}}}\nagent: mine\n{named}")
    (installed.project / "work.sh").write_text("echo x >> calls\n")
    installed.run("start", "debug this: the login fails", "--no-run")
    assert not (installed.project / "calls").exists()
    found = installed.run("check")
    assert ("keyword rules classify requests, not agent 'mine'" in found) == is_named


def test_files_that_an_agent_of_a_package_names_are_trusted_by_content(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEQUENCER_TRUST")
    script = installed.project / "work.sh"
    script.write_text("echo good\n")
    installed.settings("agents: {mine: {kind: loud, script: work.sh}}\nagent: {default: mine}\n")
    assert "file work.sh: sha256" in installed.run("--verbose", "trust", "--yes")
    installed.run("run", "--max-steps", "1")
    script.write_text("echo evil\n")
    assert "work.sh" in installed.run("run", "--max-steps", "1", code=2)
    history = installed.run("history", "--json")
    assert "good" in history
    assert "evil" not in history
