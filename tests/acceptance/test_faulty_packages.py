"""What a package gets wrong is told with its name, and stops nothing but what needs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.acceptance.packages import Packages

STEPS = "workflow: {name: own}\nworkflows: {own: {steps: [{name: plan}]}}\n"
PLAIN = "agent: rehearsal\n"
HINT = "report it to its authors, or disable it: plugins: {acme-seq: off}"
OPTIONS = """\
import click
from sequencer.cli.contributions import SVG, Contribution


def adds(name, do="adding:show", *more):
    option = click.option(f"--{name}", is_flag=True)
    takes = (name, *("svg" for _ in more))
    return Contribution(name, do, takes, (option, *more), shared=takes[1:], flags=(name,))


def show(invocation, svg=None):
    invocation.echo(f"shown {svg}")


first = adds("mine")
second = adds("mine")
drawn = adds("drawn", "adding:show", SVG)
gone = adds("gone", "nowhere_to_be_found:show")
leaves = adds("leaves", "leaving:show")
steps = Contribution("steps", "adding:show", ("slow", "max_steps"),
                     (click.option("--slow", is_flag=True),), shared=("max_steps",))
"""
STORE = """\
from sequencer.project.store_kinds import StoreKind
from sequencer.store.file import FileStore


def usual(request):
    return FileStore(request.state_path, migrate=request.to_head)


"""
SECTION = """\
from sequencer.project.schema import Section
from sequencer.project.sections import ConfigSection


class Owner(Section):
    name: str = "nobody"


"""
AGENT = """\
from sequencer import Outcome, OutcomeStatus


class Echo:
    kind, supported_fields = "echo", frozenset()

    def problems(self):
        return []

    def perform(self, request, listener, cancellation):
        return Outcome(status=OutcomeStatus.OK, output="x")


def made(*_):
    return Echo()
"""


@pytest.fixture
def here(tmp_path: Path) -> Packages:
    """Return a project with one step."""
    made = Packages(tmp_path)
    (made.project / "prompts").mkdir()
    (made.project / "prompts/plan.md").write_text("Say it.\n")
    (made.project / "orchestration.yaml").write_text(STEPS + PLAIN)
    return made


def settings(here: Packages, text: str) -> None:
    (here.project / "orchestration.yaml").write_text(STEPS + text)


def acme(here: Packages, group: str, code: str, name: str = "mine", **modules: str) -> str:
    """Install a package with one entry point, and return how that is written."""
    here.package("acme-seq", {group: {name: "acme:made"}}, acme=code, **modules)
    return f"sequencer.{group}: {name} = acme:made: "


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "def make(_): raise KeyError('x')\nmade = StoreKind('mine', make)",
            "failed: KeyError: 'x'",
        ),
        (
            "def make(_): return None\nmade = StoreKind('other', make)",
            "returned None, which is not a",
        ),
        ("made = StoreKind('mine', 'nowhere:make')", "failed: ModuleNotFoundError: No module"),
        ("made = StoreKind('mine', 42)", "TypeError: make of StoreKind can't be 42"),
        (
            "def make(_): raise SystemExit(5)\nmade = StoreKind('mine', make)",
            "failed: SystemExit: 5",
        ),
        ("def ch(_): 1 / 0\nmade = StoreKind('mine', usual, checks=ch)", "ZeroDivisionError"),
        (
            "def ch(_): return [7]\nmade = StoreKind('mine', usual, checks=ch)",
            "7 is not a Diagnostic",
        ),
    ],
)
def test_check_prints_its_summary_despite_any_store_fault(
    here: Packages, code: str, says: str
) -> None:
    settings(here, f"{PLAIN}store: {{kind: mine}}\n")
    place = acme(here, "stores", STORE + code)
    said = here.run("check", code=2)
    assert place + "the package 'acme-seq' " in said
    assert says in said
    assert HINT in said
    assert said.endswith("errors: 1, warnings: 0\n")


def test_a_store_that_fails_later_stops_no_other_finding(here: Packages) -> None:
    settings(
        here,
        "agent: nobody\nagents: {nobody: {kind: command, argv: []}}\nstore: {kind: mine}\n",
    )
    code = "class Bad(FileStore):\n    def view(self):\n        1 / 0\n\n\n"
    made = "def make(request): return Bad(request.state_path)\nmade = StoreKind('mine', make)"
    acme(here, "stores", STORE + code + made)
    said = here.run("check", code=2)
    place = r"\(\w+\.py, line \d+\)"
    assert re.search(rf"'acme-seq' failed: ZeroDivisionError: division by zero {place}", said)
    assert "agents.nobody" in said
    assert "errors: " in said.splitlines()[-1]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("made = ConfigSection(42, Owner)", "42 is not a Section, nor another type that a setting"),
        ("made = ConfigSection(object(), Owner)", "is not a Section"),
        ("made = ConfigSection(Owner, lambda: 1 / 0)\nOwner()", ""),
        (
            "made = ConfigSection(Owner, Owner, lambda *_: [('a', 'b')])",
            "a problem has to be a path",
        ),
        ("made = ConfigSection(Owner, Owner, 7)", "problems of ConfigSection can't be 7"),
    ],
)
def test_a_faulty_section_is_the_fault_of_its_package(here: Packages, code: str, says: str) -> None:
    settings(here, f"{PLAIN}owner: {{name: Ann}}\n")
    place = acme(here, "sections", SECTION + code, name="owner")
    if not says:
        here.run("check")
        return
    # Reading a run does not need the section.
    for command, end in (("check", 2), ("run", 2), ("status", 0), ("history", 0), ("inbox", 0)):
        said = here.run(command, code=end)
        assert place + "the package 'acme-seq' failed" in said
        assert says in said


@pytest.mark.slow
def test_a_broken_section_does_not_hide_a_typo(here: Packages) -> None:
    settings(here, f"{PLAIN}ownr: {{name: Ann}}\n")
    acme(here, "sections", "1 / 0", name="owner")
    assert "unknown key 'ownr'\n  did you mean 'owner'?" in here.run("status", code=2)
    said = here.run("check", code=2)
    assert "unknown key 'ownr'; did you mean 'owner'?" in said
    assert "warning: configuration: sequencer.sections: owner = acme:made" in said


@pytest.mark.parametrize(
    ("before", "after", "code", "says"),
    [
        ('return Outcome(status=OutcomeStatus.OK, output="x")', "return 7", 1, "returned 7, which"),
        (
            'return Outcome(status=OutcomeStatus.OK, output="x")',
            "raise SystemExit(5)",
            1,
            "SystemExit: 5",
        ),
        ("return Echo()", "open('/nowhere/at/all')", 2, "FileNotFoundError: "),
        ("frozenset()", "['a']", 2, "supported_fields of Echo can't be an object of type list"),
    ],
)
def test_a_faulty_agent_is_the_fault_of_its_package(
    here: Packages, before: str, after: str, code: int, says: str
) -> None:
    settings(here, "agents: {one: {kind: echo}}\nagent: one\n")
    acme(here, "executors", AGENT.replace(before, after), name="echo")
    said = here.run("run", "--max-steps", "1", code=code)
    assert "the package 'acme-seq' " in said
    assert says in said
    assert HINT in said


def test_an_agent_that_raises_is_tried_again(here: Packages) -> None:
    settings(
        here,
        "agents: {one: {kind: echo}}\nagent: one\nretry: {max_attempts: 3, initial_delay_s: 0}\n",
    )
    fails = "open('tried', 'a').write('x'); raise KeyError('x')"
    acme(here, "executors", AGENT.replace("return Outcome(", f"{fails}; return Outcome("), "echo")
    said = here.run("run", code=1)
    assert "the package 'acme-seq' failed: KeyError: 'x'" in said
    assert (here.project / "tried").read_text() == "xxx"


KIND = """\
from sequencer.model.sequence.sequence_kind import SequenceKind


class Odd(SequenceKind):
    def judge(self, head, ended, max_attempts):
        %s


def made(workflow):
    return Odd(workflow)
"""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "fault",
    [
        *(
            "1 / 0",
            "raise SystemExit(3)",
            "return ended.nothing",
            "return 42",
            "return ended",
        ),
        *("raise OSError(28, 'full')", "raise MemoryError"),
    ],
)
def test_a_failing_kind_does_not_lose_finished_work(here: Packages, fault: str) -> None:
    (here.project / "orchestration.yaml").write_text(
        STEPS.replace("own: {", "own: {kind: odd, ") + PLAIN
    )
    acme(here, "kinds", KIND % fault, name="odd")
    said = here.run("run", code=1)
    assert "the package 'acme-seq' failed: " in said
    head = json.loads((here.project / "sync/state.json").read_text())
    assert head["failures_in_row"] == 1
    assert not head["claims"]
    events = [json.loads(line)["event"] for line in here.run("history", "--json").splitlines()]
    assert events[-1] == "failed"


SINK = """\
from asyncio import CancelledError


class Odd:
    kind, max_chars, takes_thoughts = "odd", 1000, False

    def __init__(self, name):
        self.name = name

    def post(self, post):
        %s

    def close(self):
        pass


def made(name, options, place):
    return Odd(name)
"""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("1 / 0", "activity sink 'mine' is not used: the package 'acme-seq' failed"),
        ("raise SystemExit(3)", "the package 'acme-seq' failed: SystemExit: 3"),
        ("raise GeneratorExit", "the package 'acme-seq' failed: GeneratorExit"),
        ("raise CancelledError", "the package 'acme-seq' failed: CancelledError"),
        ("open('/nowhere/at/all')", "No such file or directory: '/nowhere/at/all'; results are"),
    ],
)
def test_a_sink_that_fails_is_named_with_its_package(here: Packages, fault: str, says: str) -> None:
    agent = "agent: one\nagents: {one: {kind: command, argv: ['true']}}\n"
    settings(here, f"{agent}activity: {{sinks: {{mine: {{kind: loud}}}}}}\n")
    acme(here, "sinks", SINK % fault, name="loud")
    said = here.run("run", "--max-steps", "1")
    assert "activity sink 'mine'" in said
    assert says in said
    assert "Traceback" not in said
    assert "the run's files" not in said


def test_check_finds_a_sink_that_stops_a_run(here: Packages) -> None:
    settings(here, f"{PLAIN}activity: {{sinks: {{mine: {{kind: loud}}}}}}\n")
    acme(here, "sinks", "1 / 0", name="loud")
    for command in ("check", "run"):
        said = here.run(command, code=2)
        assert "activity.sinks.mine.kind: " in said
        assert "the package 'acme-seq' failed while it was imported" in said


def test_check_validates_what_an_agent_reports_as_missing(here: Packages) -> None:
    settings(here, "agents: {one: {kind: echo}}\nagent: one\n")
    place = acme(here, "executors", AGENT.replace("return []", "return None"), name="echo")
    said = here.run("check", code=2)
    assert f"{place}the package 'acme-seq' returned None, which is not a list" in said


@pytest.mark.parametrize("code", ["made = 42", "def made(_): return 7", "def made(_): 1 / 0"])
def test_check_asks_the_kind_of_a_workflow(here: Packages, code: str) -> None:
    text = "workflow: {name: own}\nworkflows: {own: {kind: odd, steps: [plan]}}\n"
    (here.project / "orchestration.yaml").write_text(text + PLAIN)
    place = acme(here, "kinds", code, name="odd")
    assert f"error: workflow: {place}the package 'acme-seq' " in here.run("check", code=2)


GROUPS = ("kinds", "executors", "stores", "commands", "sections", "sinks", "status_lines", "pages")


def test_check_loads_every_entry_point_once(here: Packages) -> None:
    points = {group: {"odd": "acme:made"} for group in GROUPS}
    points |= {"contributions": {"tick.odd": "acme:made"}}
    here.package("acme-seq", points, acme="raise SystemExit(5)")
    finding = "the package 'acme-seq' failed while it was imported: SystemExit: 5"
    found = [one for one in here.findings() if finding in one["message"]]
    places = sorted(one["where"].split(":")[0] for one in found)
    assert places == sorted(f"sequencer.{group}" for group in (*GROUPS, "contributions"))
    assert {one["level"] for one in found} == {"warning"}
    assert all(one["hint"] == HINT for one in found)


def test_faults_in_parts_every_command_uses_are_errors(here: Packages) -> None:
    points = {group: {"odd": "acme:made"} for group in ("checks", "hooks", "status_lines")}
    here.package("acme-seq", points, acme="made = 42")
    settings(here, f"{PLAIN}plugins: {{acme_seq: on}}\n")
    found = [one for one in here.findings(code=2) if "acme" in f"{one['where']} {one['message']}"]
    assert [one["level"] for one in found] == ["error"] * 3


def test_a_broken_configuration_hides_no_broken_package(here: Packages) -> None:
    settings(here, "agent: [1]\n")
    acme(here, "sinks", "1 / 0")
    assert "the package 'acme-seq' failed while it was imported" in here.run("check", code=2)


def test_names_that_are_already_taken_are_reported(here: Packages) -> None:
    points = {
        "sinks": {"jsonl": "acme:made", "same": "acme:made"},
        "executors": {"command": "acme:made"},
        "kinds": {"cycle": "acme:made"},
        "store": {"typo": "acme:made"},
        "trees": {"git": "acme:made"},
    }
    here.package("acme-seq", points, acme="def made(): pass")
    here.package("twin", {"sinks": {"same": "acme:made"}})
    said = {one["where"]: one for one in here.findings()}
    for place in ("sinks: jsonl", "executors: command", "kinds: cycle"):
        told = said[f"sequencer.{place} = acme:made"]["message"]
        assert "the package 'acme-seq' is ignored here: the name " in told
        assert told.endswith("is taken by Sequencer")
    assert (
        "did you mean 'sequencer.stores'?"
        in said["acme-seq: sequencer.store: typo = acme:made"]["hint"]
    )
    assert "only Sequencer has entries" in said["sequencer.trees: git = acme:made"]["message"]
    same = said["sequencer.sinks: same = acme:made"]["message"]
    assert "is taken by the package " in same


@pytest.mark.slow
def test_the_first_of_two_equal_options_counts(here: Packages) -> None:
    points = {"report.a": "adding:first", "report.b": "adding:second", "report.c": "adding:drawn"}
    here.package("acme-seq", {"contributions": points}, adding=OPTIONS)
    here.run("run", "--max-steps", "1")
    said = here.run("report")
    assert "notice" not in said
    assert "arn" not in said.lower()
    said = here.run("report", "--mine")
    assert "shown None" in said
    refused = "the package 'acme-seq' has the option --mine, which 'report' has already"
    assert f"notice: sequencer.contributions: report.b = adding:second: {refused}" in said
    assert "shown None" in here.run("report", "--drawn")
    assert refused in {one["message"] for one in here.findings()}


def test_a_contribution_may_take_an_option_of_the_command(here: Packages) -> None:
    here.package("acme-seq", {"contributions": {"tick.steps": "adding:steps"}}, adding=OPTIONS)
    assert "--slow" in here.run("tick", "--help-all")
    here.run("tick")


@pytest.mark.parametrize("what", ["gone", "leaves"])
def test_a_broken_contribution_is_reported_with_its_package(here: Packages, what: str) -> None:
    points = {"contributions": {f"report.{what}": f"adding:{what}"}}
    here.package("acme-seq", points, adding=OPTIONS, leaving="raise SystemExit(5)")
    said = here.run("report", f"--{what}", code=2)
    assert f"sequencer.contributions: report.{what} = adding:{what}: the package 'acme-" in said


def test_a_disabled_package_contributes_nothing(here: Packages) -> None:
    here.package("Acme_Seq", {"contributions": {"report.a": "adding:first"}}, adding=OPTIONS)
    assert "--mine" in here.run("report", "--help")
    settings(here, f"{PLAIN}plugins: {{acme.seq: off}}\n")
    assert "--mine" not in here.run("report", "--help")


def test_plain_commands_read_no_package(here: Packages) -> None:
    code = "open('loaded.txt', 'a').write('x')\n" + OPTIONS
    points = {f"{name}.mine": "adding:first" for name in ("plan", "report", "tick")}
    here.package("acme-seq", {"contributions": points}, adding=code)
    for words in (("tick",), ("plan",), ("report",), ("report", "--gantt")):
        here.run(*words)
        assert not (here.project / "loaded.txt").exists(), words
    here.run("plan", "--help")
    assert (here.project / "loaded.txt").exists()


COMMANDS = """\
import sys
import click


@click.command()
@click.pass_obj
def where(invocation):
    invocation.print_json({"at": 1}) if invocation.is_json else invocation.echo("at 1")


@click.command()
def leave():
    sys.exit(7)


@click.command()
def missing():
    open("/nowhere/at/all")
"""


def test_commands_of_a_package_run_and_report_their_errors(here: Packages) -> None:
    points = {f"acme-{one}": f"acme:{one}" for one in ("where", "leave", "missing")}
    here.package("acme-seq", {"commands": points}, acme=COMMANDS)
    assert here.run("acme-where") == "at 1\n"
    for words in (("acme-where", "--json"), ("--json", "acme-where")):
        assert here.run(*words) == '{"at": 1}\n'
    here.run("acme-leave", code=7)
    said = here.run("acme-missing", code=2)
    assert "the package 'acme-seq' failed: FileNotFoundError" in said
    assert "bug" not in said


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[web]", "plugins: expected a mapping, such as {web: off}"),
        ("off", "plugins: expected a mapping, such as {web: off}, not 'off'"),
        ("{web: maybe}", "plugins.web: expected on or off, not 'maybe'"),
        ("{web: 3}", "plugins.web: expected on or off, not 3"),
    ],
)
def test_invalid_plugins_settings_are_one_error(here: Packages, text: str, says: str) -> None:
    settings(here, f"{PLAIN}plugins: {text}\n")
    said = here.run("status", code=2)
    assert said.endswith(f": {says}\n")
    assert said.count("error") == 1


def test_an_enabled_package_that_is_not_installed_is_named(here: Packages) -> None:
    settings(here, f"{PLAIN}plugins: {{acme-sequencer: on}}\n")
    said = here.run("check", code=2)
    assert "unknown plug-in 'acme-sequencer'" in said
    assert "if it is the name of a package, install it; known plug-ins: drawing, git" in said


def test_a_variable_without_a_name_is_reported_once(
    here: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQUENCER_PLUGINS__", "off")
    said = here.run("status")
    assert said.count("SEQUENCER_PLUGINS__") == 1
    assert "notice: SEQUENCER_PLUGINS__ is ignored: a name is missing next to '__'" in said


def test_a_variable_disables_a_package_with_a_hyphen(
    here: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme(here, "commands", COMMANDS.replace("def where", "def made"), name="acme-where")
    here.run("acme-where")
    monkeypatch.setenv("SEQUENCER_PLUGINS__ACME_SEQ", "off")
    said = here.run("acme-where", code=2)
    assert "needs the package 'acme-seq', which is disabled" in said
    assert "unset the variable SEQUENCER_PLUGINS__ACME_SEQ" in said
    here.run("status")


def test_a_hook_that_fails_can_be_disabled(here: Packages) -> None:
    code = (
        "class Asked:\n    def sequencer_prompt(self, text):\n        1 / 0\n\n\nmade = Asked()\n"
    )
    code = "from sequencer import hookimpl\n" + code.replace("    def", "    @hookimpl\n    def")
    acme(here, "hooks", code)
    said = here.run("run", "--max-steps", "1", code=1)
    assert "hook sequencer_prompt raised ZeroDivisionError" in said
    assert HINT in said


def test_a_broken_pipe_inside_a_package_is_its_own_fault(here: Packages) -> None:
    code = (
        "import click, os\n\n\n@click.command()\ndef made():\n"
        "    a, b = os.pipe()\n    os.close(a)\n    os.write(b, b'x')\n"
    )
    acme(here, "commands", code)
    assert "the package 'acme-seq' failed: BrokenPipeError" in here.run("mine", code=2)


def test_a_malformed_entry_point_is_not_called_a_program_bug(here: Packages) -> None:
    here.package("acme-seq", {"contributions": {"report.x": "acme made ::"}}, acme="")
    said = here.run("report", "--nothing-of-this-name", code=2)
    assert "Traceback" not in said
    assert "the package 'acme-seq' has a malformed entry point here" in said


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("group", ["console_scripts", "sequencer.executors"])
def test_malformed_metadata_does_not_break_other_packages(here: Packages, group: str) -> None:
    here.package("broken-seq", {}, broken="")
    metadata = here.packages / "broken_seq-1.dist-info/entry_points.txt"
    metadata.write_text(f"[{group}]\nno equals sign\n")
    settings(here, "agents: {one: {kind: echo}}\nagent: one\n")
    acme(here, "executors", AGENT, "echo")
    here.run("run", "--max-steps", "1")
    is_ours = "the package 'broken-seq' has a malformed entry_points.txt" in here.run("check")
    assert is_ours == (group == "sequencer.executors")


def test_an_error_that_cannot_be_shown(here: Packages) -> None:
    code = "import click\n\n\nclass Odd(Exception):\n    def __str__(self):\n        1 / 0\n\n\n"
    code += "@click.command()\ndef made():\n    raise Odd\n"
    acme(here, "commands", code)
    assert "the package 'acme-seq' failed: Odd" in here.run("mine", code=2)


def test_check_continues_after_any_error_of_an_import(here: Packages) -> None:
    acme(here, "sinks", "class Odd(BaseException): pass\n\n\nraise Odd")
    said = here.run("check")
    assert "the package 'acme-seq' failed while it was imported: Odd" in said
    assert said.splitlines()[-1].startswith("errors: ")


@pytest.mark.parametrize("fault", ["OSError(28, 'x')", "MemoryError()", "OSError(5, 'x')"])
def test_errors_in_a_status_line_are_never_blamed_on_the_machine(
    here: Packages, fault: str
) -> None:
    settings(here, f"{PLAIN}plugins: {{acme-seq: on}}\n")
    acme(here, "status_lines", f"def made(*_): raise {fault}")
    said = here.run("status")
    assert "the package 'acme-seq' failed" in said
    assert "next: sequencer run" in said


def test_an_added_option_is_never_required(here: Packages) -> None:
    here.package(
        "acme-seq",
        {"contributions": {"report.mine": "adding:first", "report.must": "must:made"}},
        adding=OPTIONS,
        must=OPTIONS + 'made = Contribution("must", "adding:show", ("must",),\n'
        '                    (click.option("--must", required=True),))\n',
    )
    said = here.run("report", "--mine")
    assert "shown None" in said
    assert "has the option --must, which is required: an added option can't be" in said


def test_each_broken_entry_point_is_reported_once(here: Packages) -> None:
    points = {f"report.x{number}": "acme:made" for number in range(5)}
    here.package("acme-seq", {"contributions": points}, acme="1 / 0")
    said = here.run("report", "--help")
    assert said.count("notice: ") == 5  # one for each entry point, which is named


def test_a_command_name_that_cannot_be_typed_is_reported(here: Packages) -> None:
    acme(here, "commands", "import click\nmade = click.Command('made')", name="--help")
    assert "a command can't be called '--help'" in here.run("check")
