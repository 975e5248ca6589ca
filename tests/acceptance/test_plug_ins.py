"""What docs/reference/extending.md adds to the program, each in a package of somebody else's."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.acceptance.packages import ROOT, Packages

_BLOCK = re.compile(r"```python\n# (\w+)\.py: [^\n]*\n(.*?)```", re.DOTALL)
_GROUPS = {
    "apart": "stores",
    "echo": "executors",
    "loud": "executors",
    "patient": "kinds",
    "where": "commands",
    "longest": "contributions",
    "tidy": "checks",
    "owner": "sections",
    "shout": "sinks",
    "disk": "status_lines",
    "listed": "pages",
}
_NAMES = {"longest": "report.longest"}
MINE = "agents: {mine: {kind: echo}}\nagent: {default: mine}\n"


class Installed(Packages):
    """A project beside a package that is on the path, with the entry points it says it has."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        points: dict[str, dict[str, str]] = {}
        for name, group in _GROUPS.items():
            points.setdefault(group, {})[_NAMES.get(name, name)] = f"{name}:{name}"
        self.package("added", points)
        (self.project / "prompts").mkdir(parents=True)
        (self.project / "prompts/plan.md").write_text("Say it again.\n")

    def settings(self, text: str, kind: str | None = None) -> None:
        own = "steps: [{name: plan}]" if kind is None else f"kind: {kind}, steps: [plan, close]"
        steps = f"workflow: {{name: own}}\nworkflows: {{own: {{{own}}}}}\n"
        (self.project / "orchestration.yaml").write_text(steps + text)

    def place(self) -> tuple[int, str]:
        state = json.loads((self.project / "sync/state.json").read_text())
        return state["step_index"], state["expected_step"]


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    here = Installed(tmp_path)
    found = dict(_BLOCK.findall((ROOT / "docs/reference/extending.md").read_text()))
    found = {name: code for name, code in found.items() if not name.startswith("test_")}
    assert found.keys() == _GROUPS.keys()
    for name, code in found.items():
        (here.packages / f"{name}.py").write_text(code)
    return here


def test_an_executor_performs_the_steps(installed: Installed) -> None:
    installed.settings("agents: {mine: {kind: echo}}\nagent: {default: mine}\n")
    installed.run("run", "--max-steps", "1")
    last = json.loads(installed.run("history", "--json").splitlines()[-1])
    assert last["outcome"]["output"] == "Say it again.\n"


def test_a_store_keeps_the_run(installed: Installed) -> None:
    installed.settings(
        "store: {kind: apart}\nagents: {mine: {kind: echo}}\nagent: {default: mine}\n"
    )
    installed.run("run", "--max-steps", "2")
    path = next((installed.project / "sync").glob("*/state.json"))
    assert json.loads(path.read_text())["step_index"] == 2
    assert installed.run("where") == f"{path.relative_to(installed.project)}\n"


def test_a_derived_store_refuses_files_that_were_rolled_back(installed: Installed) -> None:
    installed.settings("store: {kind: apart, ttl_s: 7}\n" + MINE)
    installed.run("run", "--max-steps", "2")
    sync, older = installed.project / "sync", installed.project.parent / "older"
    shutil.copytree(sync, older)
    installed.run("run", "--max-steps", "2")
    shutil.rmtree(sync)
    shutil.copytree(older, sync)
    assert "but this machine has seen revision 7" in installed.run(
        "run", "--max-steps", "2", code=3
    )
    journal = next(sync.glob("*/journal.jsonl")).read_text()
    assert '"ttl_s":7.0' in journal, "the settings of `store:` apply"


def test_a_packages_command_is_listed_run_and_suggested(installed: Installed) -> None:
    installed.settings("agents: {mine: {kind: echo}}\n")
    assert installed.run("where").endswith("sync/state.json\n")
    config = installed.project / "orchestration.yaml"
    elsewhere = installed.run("where", f"--config={config}", cwd=installed.packages)
    assert elsewhere.endswith("sync/state.json\n")
    assert "unknown run 'other'" in installed.run("where", "--run", "other", code=2)
    assert "--config" in installed.run("where", "--help")
    assert "where" in installed.run("--help-all").split("Added by packages:")[1]
    assert "did you mean 'where'?" in installed.run("wheer", code=2)


def test_a_report_shows_what_a_package_contributes(installed: Installed) -> None:
    installed.settings("agents: {mine: {kind: echo}}\nagent: {default: mine}\n")
    installed.run("run", "--max-steps", "1")
    assert installed.run("report", "--longest").endswith(" took longest\n")
    assert "--longest" in installed.run("report", "--help")
    said = installed.run("report", "--longest", "--gantt", code=2)
    assert "--longest and --gantt can't be used together" in said


def test_check_reports_findings_of_a_package(installed: Installed) -> None:
    installed.settings("agents: {mine: {kind: echo}}\nagent: {default: mine}\n")
    assert "has no heading" in installed.run("check")


def test_a_section_is_checked_and_shown(installed: Installed) -> None:
    installed.settings(MINE + "owner: {name: Ann}\n")
    assert "owner:\n  name: Ann" in installed.run("check", "--settings")
    installed.settings(MINE + "owner: {nme: Ann}\n")
    assert "owner: unknown key 'nme'" in installed.run("run", code=2)
    installed.settings(MINE + "ownr: {name: Ann}\n")
    assert "did you mean 'owner'?" in installed.run("run", code=2)
    installed.settings(MINE + "owner: {name: ''}\n")
    assert "owner.name: is empty" in installed.run("run", code=2)
    installed.settings(MINE + "ownr: {name: Ann}\n")
    assert "unknown key 'ownr'" in installed.run("run", code=2)
    installed.settings(MINE + "owner: {name: Ann}\nplugins: {added: off}\n")
    said = installed.run("run", code=2)
    assert "the key 'owner' needs the package 'added', which is disabled" in said


@pytest.mark.slow
def test_a_sink_gets_the_results(installed: Installed) -> None:
    installed.settings(MINE + "activity: {sinks: {loud: {kind: shout}}}\n")
    installed.run("run", "--max-steps", "1")
    assert (installed.project / "sync/shout.txt").read_text()
    installed.settings(MINE + "activity: {sinks: {loud: {kind: whisper}}}\n")
    said = installed.run("run", code=2)
    assert "unknown sink kind 'whisper'\n  known sink kinds: github, jsonl, linear, sho" in said
    installed.settings(MINE + "activity: {sinks: {loud: {kind: shuot}}}\n")
    assert "did you mean 'shout'?" in installed.run("run", code=2)


def test_status_shows_lines_of_an_enabled_package(installed: Installed) -> None:
    installed.settings(MINE)
    assert "logs  " not in installed.run("status")
    installed.settings(MINE + "plugins: {added: on}\n")
    installed.run("run", "--max-steps", "1")
    assert re.search(r"^logs +\d+ bytes$", installed.run("status"), re.MULTILINE)
    more = json.loads(installed.run("--json", "status"))["more"]
    assert [one["label"] for one in more] == ["logs"]
    installed.settings(MINE + "plugins: {addd: on}\n")
    assert "did you mean 'added'?" in installed.run("status", code=2)


def test_the_web_pages_include_those_of_a_package(installed: Installed) -> None:
    installed.settings(MINE + "plugins: {added: on}\n")
    code = (
        "import sys; from pathlib import Path;"
        "from sequencer.plugins.web.pages import build_added_page;"
        "from sequencer.plugins.web.site import Site;"
        "made = build_added_page(Site([Path.cwd()]), {}, 'listed');"
        "print(made.title, made.context['tables'])"
    )
    said = installed.python("-c", code)
    assert "Prompts" in said
    assert "'plan.md'" in said


def test_a_workflow_kind_decides_the_next_step(installed: Installed) -> None:
    installed.settings("agents: {mine: {kind: echo}}\nagent: {default: mine}\n", "patient")
    first = installed.project / "prompts/plan.md"
    first.with_name("close.md").write_text("done\n")
    installed.run("run", "--max-steps", "2")
    assert installed.place() == (4, "plan")
    first.write_text("It is done\n")
    installed.run("run", "--max-steps", "1")
    assert installed.place() == (5, "close")
    installed.settings("", "hasty")
    said = installed.run("run", code=2)
    assert "workflows.own.kind" in said
    assert "unknown workflow kind 'hasty'\n  known workflow kinds: cycle, patient, pro" in said


@pytest.mark.slow
def test_a_disabled_package_is_not_used(installed: Installed) -> None:
    installed.settings("agent: rehearsal\nplugins: {added: off}\n")
    (installed.packages / "longest.py").write_text("import nowhere_to_be_found\n")
    assert "command 'where' needs the package 'added', which is disabled" in installed.run(
        "where", code=2
    )
    installed.run("run", "--max-steps", "1")
    installed.run("report", "--gantt")
    assert "has no heading" not in installed.run("check")


def test_a_sink_that_cannot_be_closed_is_reported(installed: Installed) -> None:
    installed.settings(MINE + "activity: {sinks: {loud: {kind: shout}}}\n")
    sink = installed.packages / "shout.py"
    sink.write_text(sink.read_text().replace("def close(self):", "def close(self):\n        1 / 0"))
    said = installed.run("run", "--max-steps", "1")
    assert "activity sink 'loud' can't be closed: " in said
    assert "the package 'added' failed: ZeroDivisionError" in said
    assert "Traceback" not in said


APART = "from sequencer.project.store_kinds import StoreKind\n"
KIND = "StoreKind('apart', make, max_open_journal_bytes=8 * 1024 * 1024)"


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("tidy", "def tidy(*_, **__): yield 'text'", ("check",)),
        ("tidy", "def tidy(*_, **__): raise KeyError('x')", ("check",)),
        ("shout", "def shout(*_): return None", ("run",)),
        ("where", "where = 5", ("where",)),
        ("apart", f"{APART}def make(_): raise KeyError('x')\napart = {KIND}", ("status",)),
        ("apart", f"{APART}def make(_): return None\napart = {KIND}", ("status",)),
    ],
)
def test_a_fault_of_a_package_is_not_called_a_program_bug(
    installed: Installed, name: str, code: str, words: tuple[str, ...]
) -> None:
    store = "store: {kind: apart}\n" if name == "apart" else ""
    more = f"{store}plugins: {{added: on}}\nactivity: {{sinks: {{loud: {{kind: shout}}}}}}\n"
    installed.settings(MINE + more)
    (installed.packages / f"{name}.py").write_text(f"{code}\n")
    said = installed.run(*words, code=2)
    assert name in said or "the package 'added' failed" in said
    assert "bug" not in said


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def disk(*_): raise KeyError('x')", "the package 'added' failed: KeyError: 'x'"),
        ("def disk(*_): yield 'text and more'", "the package 'added' failed: ValueError"),
        ("1 / 0", "the package 'added' failed while it was imported: ZeroDivisionError"),
    ],
)
def test_a_broken_line_does_not_hide_the_status(installed: Installed, code: str, says: str) -> None:
    installed.settings(MINE + "plugins: {added: on}\n")
    (installed.packages / "disk.py").write_text(f"{code}\n")
    said = installed.run("status")
    assert "next: sequencer run" in said
    assert says in said


def test_an_untrusted_project_runs_no_package(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    installed.settings(MINE + "plugins: {added: on}\n")
    for name in ("disk", "listed"):
        with (installed.packages / f"{name}.py").open("a") as module:
            module.write("\nfrom pathlib import Path\nPath('ran').touch()\n")
    said = installed.run("status")
    assert "lines of packages are left out: the project is not trusted here" in said
    code = (
        "from pathlib import Path;"
        "from sequencer.plugins.web.pages import added_pages, build_added_page;"
        "from sequencer.plugins.web.site import Site; site = Site([Path.cwd()]);"
        "print(added_pages(site)); build_added_page(site, {}, 'listed')"
    )
    said = installed.python("-c", code, code=1)
    assert said.startswith("[]\n")
    assert "UnknownName" in said
    assert not (installed.project / "ran").exists()
    tidy = installed.packages / "tidy.py"
    tidy.write_text("def tidy(project, run, *, looks):\n    assert looks\n    return ()\n")
    assert "the package 'added' failed" not in installed.run("check")


def test_a_package_that_is_broken_is_named(installed: Installed) -> None:
    installed.settings("agents: {mine: {kind: echo}}\nagent: {default: mine}\n")
    for name in _GROUPS:
        (installed.packages / f"{name}.py").write_text("import nowhere_to_be_found\n")
    for words in (("where",), ("run", "--max-steps", "1")):
        said = installed.run(*words, code=2)
        assert "the package 'added' failed while it was imported: ModuleNotFoundError" in said
        assert "report it to its authors, or disable it: plugins: {added: off}" in said


PLAIN = "agent: rehearsal\n"
"""Settings that name nothing of the package."""


@pytest.mark.slow(sample=2)
@pytest.mark.parametrize("name", list(_GROUPS))
def test_check_reports_parts_of_the_wrong_type(installed: Installed, name: str) -> None:
    installed.settings(PLAIN)
    (installed.packages / f"{name}.py").write_text(f"{name} = 42\n")
    said = installed.run("check", code=2 if name == "tidy" else 0)
    place = f"sequencer.{_GROUPS[name]}: {_NAMES.get(name, name)} = {name}:{name}: "
    assert f"{place}the package 'added' provides 42, which is not a " in said
    assert "disable it: plugins: {added: off}" in said
    installed.run("run", "--max-steps", "1"), installed.run("status")


@pytest.mark.parametrize(
    ("name", "settings", "code"),
    [
        ("apart", "store: {kind: apart}\n", "42"),
        ("echo", "agents: {mine: {kind: echo}}\nagent: {default: mine}\n", "42"),
        ("echo", "agents: {mine: {kind: echo}}\nagent: {default: mine}\n", "lambda *_: 7"),
        ("owner", "owner: {team: us}\n", "42"),
        ("shout", f"{PLAIN}activity: {{sinks: {{loud: {{kind: shout}}}}}}\n", "lambda *_: 7"),
    ],
)
def test_a_part_of_the_wrong_type_is_not_called_a_program_bug(
    installed: Installed, name: str, settings: str, code: str
) -> None:
    installed.settings(settings)
    (installed.packages / f"{name}.py").write_text(f"{name} = {code}\n")
    said = installed.run("run", "--max-steps", "1", code=2)
    assert "package 'added'" in said
    assert "plugins: {added: off}" in said
    assert "bug" not in said


@pytest.mark.parametrize("code", ["42", "lambda _: 7"])
def test_an_invalid_workflow_kind_is_blamed_on_its_package(installed: Installed, code: str) -> None:
    installed.settings(PLAIN, kind="patient")
    (installed.packages / "patient.py").write_text(f"patient = {code}\n")
    (installed.project / "prompts/close.md").write_text("Close it.\n")
    for words in (("run", "--max-steps", "1"), ("plan",)):
        assert "package 'added'" in installed.run(*words, code=2)


WRONG_KIND = """\
from msgspec.structs import replace
from sequencer.model.sequence.sequence_kind import SequenceKind


class Patient(SequenceKind):
    def {method}(self, *args, **options):
        result = super().{method}(*args, **options)
        return {result}


patient = Patient
"""


@pytest.mark.parametrize(
    ("method", "result", "code"),
    [
        ("check_readiness", "5", 2),
        ("check_readiness", "replace(result, place=5)", 2),
        ("create_head", "{}", 2),
        ("close", "None", 2),
        ("find_following", "'x'", 2),
        ("judge", "replace(result, ending=None)", 1),
        ("judge", "replace(result, outcome={})", 1),
        ("judge", "replace(result, ending=replace(result.ending, following=5))", 1),
    ],
)
def test_a_wrong_result_of_a_workflow_kind_is_blamed_on_its_package(
    installed: Installed, method: str, result: str, code: int
) -> None:
    installed.settings(PLAIN, kind="patient")
    (installed.packages / "patient.py").write_text(WRONG_KIND.format(method=method, result=result))
    (installed.project / "prompts/close.md").write_text("Close it.\n")
    said = installed.run("run", "--max-steps", "1", code=code)
    assert "package 'added'" in said
    assert method in said
    assert "this is a bug" not in said


NAMELESS = """\
class Shout:
    kind, max_chars, takes_thoughts = "shout", 100, False

    def post(self, post):
        pass


shout = lambda name, options, place: Shout()
"""


def test_what_a_sink_lacks_is_named(installed: Installed) -> None:
    installed.settings(f"{PLAIN}activity: {{sinks: {{loud: {{kind: shout}}}}}}\n")
    (installed.packages / "shout.py").write_text(NAMELESS)
    assert "it has no close, name" in installed.run("run", "--max-steps", "1", code=2)


COPIED = """\
from sequencer import Outcome, OutcomeStatus


class Echo:
    kind, supported_fields = "echo", frozenset()

    def problems(self):
        return []

    def perform(self, request, listener, cancellation):
        return Outcome(status=OutcomeStatus.OK, output="x").replace(output=5)


def echo(name, options, core):
    return Echo()
"""


def test_a_changed_copy_of_an_outcome_is_checked(installed: Installed) -> None:
    installed.settings("agents: {mine: {kind: echo}}\nagent: {default: mine}\n")
    (installed.packages / "echo.py").write_text(COPIED)
    said = installed.run("run", "--max-steps", "1", code=1)
    assert "package 'added'" in said
    assert "output: expected text" in said
    assert "this is a bug" not in said


def test_a_package_that_ends_the_program_is_named(installed: Installed) -> None:
    installed.settings("store: {kind: apart}\n")
    (installed.packages / "apart.py").write_text("import sys\nsys.exit(5)\n")
    for words in (("status",), ("run",), ("check",)):
        assert "'added' failed while it was imported: SystemExit: 5" in installed.run(
            *words, code=2
        )


BAD_OPTION = """\
from sequencer.cli.contributions import Contribution

longest = Contribution("longest", "nowhere_to_be_found:x", ("svg",), (7,))
"""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "code",
    [
        "import nowhere_to_be_found",
        "longest = 42",
        BAD_OPTION,
    ],
)
def test_a_broken_contribution_breaks_nothing_else(installed: Installed, code: str) -> None:
    installed.settings(PLAIN)
    (installed.packages / "longest.py").write_text(f"{code}\n")
    installed.run("run", "--max-steps", "1")
    for words in (("tick",), ("plan",), ("report",)):
        assert "notice: " not in installed.run(*words)
    assert "notice: " in installed.run("report", "--help")
    assert "there is no option --longest" in installed.run("report", "--longest", code=2)


def test_a_contribution_without_its_function_is_named(installed: Installed) -> None:
    installed.settings(PLAIN)
    page = (installed.packages / "longest.py").read_text()
    broken = re.sub(r'"longest:\w+"', '"nowhere_to_be_found:show"', page)
    assert broken != page
    (installed.packages / "longest.py").write_text(broken)
    installed.run("run", "--max-steps", "1")
    said = installed.run("report", "--longest", code=2)
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in said
    assert "bug" not in said


def test_check_reports_ignored_entry_points(installed: Installed) -> None:
    installed.settings(PLAIN)
    taken = {
        "commands": ("status", "web"),
        "stores": ("file", "git"),
        "sections": ("store", "teams"),
        "contributions": ("nodot", "run.more", "report.gantt"),
        "trees": ("mine",),
    }
    place = "longest:longest"
    installed.package("taken", {one: dict.fromkeys(taken[one], place) for one in taken})
    said = installed.run("check")
    for group, names in taken.items():
        for name in names:
            assert f"sequencer.{group}: {name} = longest:longest" in said
    added = installed.run("help", "all").partition("Added by packages")[2].partition("\n\n")[0]
    assert added.split()[1:] == ["where"]


@pytest.mark.slow
def test_options_of_disabled_plug_ins_are_not_in_the_help(installed: Installed) -> None:
    installed.settings(f"{PLAIN}plugins: {{drawing: off, metrics: off, schedules: off}}\n")

    def options(*words: str) -> str:
        return installed.run(*words).partition("Options:")[2].partition("Examples:")[0]

    shown = options("report", "--help")
    assert "--html" in shown
    assert "--gantt" not in shown
    assert "--all-runs" not in shown
    assert "--all " not in options("tick", "--help-all")
    assert "--diagram" not in options("plan", "--help-all")
    installed.run("run", "--max-steps", "1")
    plain = installed.run("report", code=2)
    assert "needs the plug-in 'drawing', which is disabled" in plain
    assert "--gantt needs the plug-in 'drawing'" in installed.run("report", "--gantt", code=2)
