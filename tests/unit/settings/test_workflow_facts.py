"""What of workflows asks for trust: grants, refusals and gates that go, caps that rise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sequencer.model.graph.graph import Graph, Node
from sequencer.model.graph.task import TaskTraits
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.teams.team import Role
from sequencer.project.settings import load
from sequencer.project.step_facts import (
    COMPARED,
    FREE,
    StepFacts,
    WiderPermission,
    facts_of_step,
    find_removed_gates,
    find_widenings,
)
from sequencer.project.trust import Acts, list_acts
from sequencer.project.workflow_facts import Recorded

MODELS = (Step, Role, TaskTraits, Graph, Node, Workflow)
LIMITED = "limits: {cost_usd: 50, seconds: 1000, steps: 40}\n"


def acts(folder: Path, text: str, **flows: str) -> Acts:
    """Return what the project can do whose file has *text*, and *flows* by name."""
    (folder / "orchestration.yaml").write_text(text)
    (folder / "flows").mkdir(exist_ok=True)
    for path in (folder / "flows").iterdir():
        path.unlink()
    for name, flow in flows.items():
        (folder / "flows" / f"{name}.md").write_text(flow)
    return list_acts(load(folder, env={}).written, folder)


def asked(folder: Path, before: str, after: str, head: str = "") -> list[str]:
    """Return what a person is shown after the file says *after* instead of *before*."""
    trusted = acts(folder, head + before)
    return acts(folder, head + after).diff_from(trusted)


def steps(*entries: str) -> str:
    return f"steps: [{', '.join(entries)}]\n"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_is_either_free_or_compared(model: Any) -> None:
    # A field in no table acts; a new one has to be thought about all the same.
    free, compared = FREE[model.__name__], COMPARED[model.__name__]
    assert set(model.model_fields) == free | compared
    assert not free & compared


def test_a_field_in_no_table_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FREE, "Step", FREE["Step"] - {"model"})
    before, after = (facts_of_step(Step(name="a", model=name)) for name in ("x", "y"))
    assert list(find_widenings(after, before, {})) == [WiderPermission('model: "x"', 'model: "y"')]
    without = facts_of_step(Step(name="a"))
    assert list(find_widenings(without, before, {})) == [WiderPermission('model: "x"', None)]
    assert list(find_widenings(before, without, {})) == [WiderPermission(None, 'model: "x"')]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{name: a, max_cost_usd: 0.5}", "{name: a, max_cost_usd: 45}"),
        ("{name: a, max_cost_usd: 0.5}", "{name: a}"),
        ("{name: a, max_cost_usd: 0.5}", "a"),
        ("{name: a, timeout_s: 60}", "{name: a}"),
        ("{name: a, timeout_s: 60}", "{name: a, timeout_s: 501}"),
        ("{name: a, idle_timeout_s: 60}", "{name: a, idle_timeout_s: 600}"),
        ("{name: a, max_turns: 3}", "{name: a, max_turns: 4}"),
        ("{name: a, retry: 1}", "{name: a, retry: 100}"),
        ("a", "{name: a, retry: 11}"),
        ("{name: a, disallowed_tools: [Bash]}", "a"),
        ("{name: a, disallowed_tools: [Bash, Edit]}", "{name: a, disallowed_tools: [Bash]}"),
        ("{name: a, disallow_all_tools: true}", "{name: a, disallow_all_tools: false}"),
        ("{name: a, single_turn: true}", "a"),
        ("{name: a, no_comment: true}", "a"),
        ("{name: a, tools: {bash: false}}", "a"),
        ("{name: a, tools: {bash: false}}", "{name: a, tools: {bash: true}}"),
        ("a", "{name: a, tools: {bash: true}}"),
        ("a", "{name: a, allowed_tools: [Bash]}"),
        ("{name: a, allowed_tools: [Read]}", "{name: a, allowed_tools: [Read, Bash]}"),
        ("{name: a, allowed_tools: [Read]}", "a"),
        ("a", "{name: a, agents: {h: {description: d, prompt: p}}}"),
        (
            "{name: a, agents: {h: {description: d, prompt: p, tools: [Read]}}}",
            "{name: a, agents: {h: {description: d, prompt: p}}}",
        ),
        ("{name: a, requires_approval: true}", "a"),
        ("{name: a, requires_approval: true}", "b"),
        (
            "{name: a, requires_approval: true}",
            "{name: a, requires_approval: true, approval: {timeout_s: 9, on_timeout: approve}}",
        ),
        ("{name: a, validation: {}}", "a"),
        ("{name: a, validation: {}}", "{name: a, validation: {on_exhausted: continue}}"),
        ("{name: a, validation: {}}", "{name: a, validation: {max_attempts: 90}}"),
        (
            "{name: a, validation: {fixer: {name: f, max_turns: 2}}}",
            "{name: a, validation: {fixer: {name: f, max_turns: 3}}}",
        ),
        (
            "{name: a, validation: {fixer: {name: f}}}",
            "{name: a, validation: {fixer: {name: f, allowed_tools: [Bash]}}}",
        ),
        # A new name is no way round.
        ("{name: a, disallowed_tools: [Bash]}", "b"),
        ("{name: a, max_cost_usd: 0.5}", "{name: a, max_cost_usd: 0.5}, b"),
        ("{name: a, tools: {bash: true}, agent: x}, b", "a, {name: c, tools: {bash: true}}"),
        (
            "{name: a, tools: {bash: true}, max_turns: 3}, b",
            "{name: a, tools: {bash: true}, max_turns: 3}, {name: c, tools: {bash: true}}",
        ),
        # What another agent was given is not what this one was given.
        ("{name: a, tools: {bash: true}}", "{name: a, tools: {bash: true}, agent: x}"),
    ],
)
def test_a_step_that_may_do_more_asks(tmp_path: Path, before: str, after: str) -> None:
    agents = "agents: {x: {kind: claude}}\n"
    assert asked(tmp_path, steps(before), steps(after), LIMITED + agents)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a, b", "b, a"),
        ("a", "{name: a, prompt: other.md, model: x, description: d, continue_session: true}"),
        ("a", "{name: a, agent: x}"),
        ("a, b", "a"),
        ("a", "a, b, {name: c, agent: x}"),
        ("{name: a, max_cost_usd: 0.5}", "{name: a, max_cost_usd: 0.4}"),
        ("{name: a, max_cost_usd: 0.5}", "{name: a, max_cost_usd: 25}"),
        ("{name: a, timeout_s: 60}", "{name: a, timeout_s: 500}"),
        ("a", "{name: a, max_cost_usd: 9, max_turns: 3, timeout_s: 5, disallowed_tools: [X]}"),
        ("a", "{name: a, requires_approval: true, validation: {}}"),
        ("a", "{name: a, retry: 10}"),
        ("{name: a, retry: 3}", "a"),
        ("{name: a, tools: {bash: true, edit: true}}", "{name: a, tools: {edit: true}}"),
        ("{name: a, tools: {bash: true}}", "{name: b, tools: {bash: true}}"),
        (
            "{name: a, tools: {bash: true}}",
            "{name: a, tools: {bash: true}}, {name: b, tools: {bash: true}}",
        ),
        (
            "{name: a, max_turns: 3, disallowed_tools: [X]}",
            "{name: b, max_turns: 3, disallowed_tools: [X, Y]}",
        ),
        ("{name: a, requires_approval: true}, b", "{name: ask, requires_approval: true}, b"),
        ("{name: a, requires_approval: true}, b", "b, {name: a, requires_approval: true}"),
        (
            "{name: a, requires_approval: true, approval: {timeout_s: 9, on_timeout: approve}}",
            "{name: a, requires_approval: true, approval: {timeout_s: 99, on_timeout: approve}}",
        ),
        (
            "{name: a, agents: {h: {description: d, prompt: p, tools: [Read]}}}",
            "{name: a, agents: {h: {description: e, prompt: q, tools: [Read], model: m}}}",
        ),
    ],
)
def test_a_step_that_may_not_do_more_does_not_ask(tmp_path: Path, before: str, after: str) -> None:
    agents = "agents: {x: {kind: claude}}\n"
    assert asked(tmp_path, steps(before), steps(after), LIMITED + agents) == []


def test_without_a_run_cap_no_step_cap_may_rise(tmp_path: Path) -> None:
    before, after = steps("{name: a, max_cost_usd: 1}"), steps("{name: a, max_cost_usd: 2}")
    assert asked(tmp_path, before, after) == [
        "- workflows.default, a, max_cost_usd: 1",
        "+ workflows.default, a, max_cost_usd: 2",
    ]
    # The cap of the run has to be a trusted one.
    told = asked(tmp_path, before, f"{after}limits: {{cost_usd: 50}}\n")
    assert told == [
        "- workflows.default, a, max_cost_usd: 1",
        "+ workflows.default, a, max_cost_usd: 2",
    ]


@pytest.mark.parametrize(
    ("before", "after", "is_asked"),
    [
        ("step_defaults: {max_turns: 3}", "step_defaults: {max_turns: 4}", True),
        ("step_defaults: {max_turns: 3}", "", True),
        ("step_defaults: {max_turns: 3}", "step_defaults: {max_turns: 2}", False),
        ("step_defaults: {tools: {bash: false}}", "", True),
        ("", "step_defaults: {tools: {bash: true}}", True),
        ("", "step_defaults: {tools: {bash: false}, no_comment: true}", False),
        ("retry: 3", "retry: 12", True),
        ("retry: 3", "retry: 4", False),
        (
            "steps: [a]\nstep_defaults: {max_turns: 3}",
            "steps: [{name: a, max_turns: null}]\nstep_defaults: {max_turns: 3}",
            True,
        ),
        # Which workflow runs is free; that its gates and caps go is not.
        ("workflow: standard", "workflow: review_cadence", False),
        ("steps: [{name: a, requires_approval: true}]", "workflow: standard", True),
        ("steps: [{name: a, max_turns: 3}]", "workflow: standard", True),
        (
            "steps: [{name: a, max_turns: 3}]",
            "workflow: standard\nsteps: [{name: a, max_turns: 3}]",
            True,
        ),
        ("steps: [{name: a, allowed_tools: [X]}]", "workflow: standard", True),
        (
            "steps: [{name: a, tools: {bash: true}}]",
            "workflow: standard\nstep_defaults: {max_turns: 1}",
            False,
        ),
        # One that has the name of a built-in workflow takes its place.
        ("", "workflows: {debugger-full: {kind: procedure, steps: [a]}}", True),
        ("workflows: {standard: {steps: [{name: a, requires_approval: true}]}}", "", True),
        ("workflows: {w: {steps: [a]}}", "workflows: {w: {steps: [a], kind: procedure}}", False),
        (
            "workflows: {w: {extends: standard}}",
            "workflows: {w: {extends: standard, replace: {main: {tools: {bash: true}}}}}",
            True,
        ),
        (
            "workflows: {w: {extends: standard, replace: {main: {max_turns: 3}}}}",
            "workflows: {w: {extends: standard}}",
            True,
        ),
        ("review: {every: 3}", "review: {every: 9}", False),
        (
            "review: {every: 3, step: {name: r, max_turns: 2}}",
            "review: {every: 3, step: {name: r}}",
            True,
        ),
        # Teams.
        (
            "teams: {roles: {verifier: {max_turns: 9}}}",
            "teams: {roles: {verifier: {max_turns: 9, tools: {edit: true}}}}",
            True,
        ),
        ("", "teams: {roles: {verifier: {tools: {edit: true}}}}", True),
        ("", "teams: {roles: {verifier: {writes: true}}}", True),
        ("", "teams: {roles: {verifier: {model: m}}}", False),
        ("teams: {roles: {verifier: {max_turns: 2}}}", "", True),
        ("", "teams: {roles: {mine: {writes: true}}}", True),
        ("", "teams: {roles: {mine: {model: m}}}", False),
        ("", "teams: {roles: {implementer: {worktree: false}}}", True),
        (
            "teams: {roles: {mine: {budget: {max_cost_usd: 1}}}}",
            "teams: {roles: {mine: {budget: {max_cost_usd: 2}}}}",
            True,
        ),
        ("teams: {roles: {mine: {budget: {max_cost_usd: 1}}}}", "teams: {roles: {mine: {}}}", True),
        ("teams: {roles: {mine: {budget: {max_cost_usd: 1}}}}", "teams: {}", False),
        (
            "workflows: {t: {tasks: [{id: x, subject: s, role: verifier}]}}",
            "workflows: {t: {tasks: [{id: x, subject: s, role: implementer}]}}",
            True,
        ),
        (
            "workflows: {t: {tasks: [{id: x, subject: s}]}}",
            "workflows: {t: {tasks: [{id: x, subject: t}]}}",
            False,
        ),
        (
            "workflows: {t: {tasks: [{id: x, subject: s}], size: 2}}",
            "workflows: {t: {tasks: [{id: x, subject: s}], size: 9}}",
            True,
        ),
        (
            "workflows: {t: {tasks: [{id: x, subject: s}]}}",
            "workflows: {t: {tasks: [{id: x, subject: s, adds: tasks}]}}",
            True,
        ),
    ],
)
def test_changes_in_sections_around_steps_ask_if_they_allow_more(
    tmp_path: Path, before: str, after: str, is_asked: bool
) -> None:
    assert bool(asked(tmp_path, f"{before}\n", f"{after}\n")) is is_asked


FLOW = """---
config: {maxIterations: 3, timeout: 60000, maxParallel: 2}
---

```mermaid
flowchart TD
 a[A] --> ask{{Go on?}}
 ask -->|yes| b[B]
 ask -->|no| e((E))
 b --> e
```

### a
---
max_turns: 3
disallowed_tools: [Bash]
---
Do it.

### ask
---
timeout: 60000
onTimeout: e
---
Go on?

### b
---
max_turns: 3
disallowed_tools: [Bash]
---
Do more.
"""


@pytest.mark.parametrize(
    ("old", "new", "is_asked"),
    [
        ("Do it.", "Do it well.", False),
        ("Go on?\n\n###", "Shall we go on?\n\n###", False),
        (" a[A]", " a[Another label]", False),
        ("max_turns: 3", "max_turns: 2", False),
        ("max_turns: 3\n", "", True),
        ("max_turns: 3", "max_turns: 30", True),
        ("disallowed_tools: [Bash]\n", "", True),
        ("disallowed_tools: [Bash]", "disallowed_tools: [Bash]\ntools: {edit: true}", True),
        ("maxIterations: 3", "maxIterations: 4", True),
        ("maxIterations: 3", "maxIterations: 2", False),
        ("maxIterations: 3, ", "", True),
        ("timeout: 60000, ", "", True),
        ("maxParallel: 2", "maxParallel: 1", False),
        (", maxParallel: 2", "", True),
        ("onTimeout: e", "onTimeout: b", False),
        ("timeout: 60000\nonTimeout", "timeout: 90000\nonTimeout", False),
        ("timeout: 60000\nonTimeout", "timeout: 5\nonTimeout", True),
        ("---\ntimeout: 60000\nonTimeout: e\n---\n", "", False),
        (" ask -->|no| e((E))", " ask -->|no| a\n ask -->|never| e((E))", False),
        # The person is no longer asked.
        ("ask{{Go on?}}", "ask{Go on?}", True),
        (" a[A] --> ask{{Go on?}}", " a[A] --> b\n ask{{Go on?}}", True),
        ("---\nconfig", "---\nretry: {maxAttempts: 11}\nconfig", True),
        ("---\nconfig", "---\nretry: {maxAttempts: 5}\nconfig", False),
        ("---\nconfig", "---\ntools: {bash: true}\nconfig", True),
        ("### b\n", "### b\nand\n\n", True),
    ],
)  # fmt: skip
def test_changes_in_a_flow_ask_if_they_allow_more(
    tmp_path: Path, old: str, new: str, is_asked: bool
) -> None:
    assert old in FLOW
    trusted = acts(tmp_path, "", f=FLOW)
    changed = FLOW.replace(old, new)
    if "---\ntimeout" in old:
        changed = changed.replace("E))\n b", "E))\n b")
    told = acts(tmp_path, "", f=changed).diff_from(trusted)
    assert bool(told) is is_asked, told
    assert all(line[2:].startswith("file flows/f.md, ") for line in told)


def test_a_moved_flow_is_compared_with_the_removed_one_of_the_same_name(
    tmp_path: Path,
) -> None:
    trusted = acts(tmp_path, "", f=FLOW)
    (tmp_path / "flows" / "f.md").unlink()
    other = tmp_path / ".opencode" / "workflows" / "f.md"
    other.parent.mkdir(parents=True)
    other.write_text(FLOW)
    assert list_acts({}, tmp_path).diff_from(trusted) == []
    other.write_text(FLOW.replace("ask{{Go on?}}", "ask{Go on?}"))
    told = list_acts({}, tmp_path).diff_from(trusted)
    assert "- file .opencode/workflows/f.md, ask, asks a person: true, continues after 60 s" in told


def test_a_workflow_with_a_new_file_is_compared_with_its_old_one(tmp_path: Path) -> None:
    easy = FLOW.replace("max_turns: 3\n", "")
    head = "workflow: w\nworkflows: {w: flows/%s.md}\n"
    both = {"f": FLOW, "g": easy}
    trusted = acts(tmp_path, head % "f", **both)
    assert acts(tmp_path, head % "f", **both).diff_from(trusted) == []
    assert acts(tmp_path, head % "g", **both).diff_from(trusted)


def test_a_file_that_its_reader_refuses_counts_with_its_whole_content(tmp_path: Path) -> None:
    trusted = acts(tmp_path, "", f="no chart\n")
    assert acts(tmp_path, "", f="no chart\n").diff_from(trusted) == []
    told = acts(tmp_path, "", f="still no chart\n").diff_from(trusted)
    assert [line.partition("sha256")[0] for line in told] == [
        "- file flows/f.md, whole content: ",
        "+ file flows/f.md, whole content: ",
    ]
    assert acts(tmp_path, "", f=FLOW).diff_from(trusted)
    assert acts(tmp_path, "", f="no chart\n").diff_from(acts(tmp_path, ""))
    assert acts(tmp_path, "", readme="no chart\n").diff_from(acts(tmp_path, "")) == []


def test_flows_beyond_the_limit_count_with_their_whole_content(tmp_path: Path) -> None:
    text = FLOW.replace("Do it.", "Do it. " * 30_000)
    flows = {f"f{number}": text for number in range(6)}
    trusted = acts(tmp_path, "", **flows)
    changed = {name: flow.replace("Do more.", "More.") for name, flow in flows.items()}
    told = acts(tmp_path, "", **changed).diff_from(trusted)
    about = {line.partition(", ")[0] for line in told}
    assert about == {f"{sign} file flows/f{number}.md" for sign in "+-" for number in (4, 5)}


def test_unchanged_workflows_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = acts(tmp_path, steps("{name: a, max_turns: 3}"), f=FLOW)
    record = msgspec.convert(msgspec.to_builtins(trusted.recorded), Recorded)
    monkeypatch.setattr("sequencer.project.workflow_facts.Registry", None)
    now = acts(tmp_path, steps("{name: a, max_turns: 2}"), f=FLOW)
    assert now.diff_from(Acts(now.lines, now.caps, kept=record)) == []


def test_a_long_list_of_steps_is_one_line(tmp_path: Path) -> None:
    names = [f"{{name: s{number}, max_turns: 3}}" for number in range(9)]
    told = acts(tmp_path, steps(*names)).described
    assert "workflows.default, s0, s1, s2, 6 more, max_turns: 3" in told


def test_many_steps_are_summarized_in_one_line_per_workflow(tmp_path: Path) -> None:
    few = acts(tmp_path, steps("{name: a, max_turns: 3}", "{name: b, tools: {bash: true}}"))
    assert few.summary == few.described
    capped = [f"{{name: s{number}, max_turns: {number + 1}}}" for number in range(25)]
    gated = "{name: gate, requires_approval: true, approval: {timeout_s: 60, on_timeout: approve}}"
    granted = '{name: g, tools: {bash: true, edit: false}, allowed_tools: ["Bash(rm *)"]}'
    flow = FLOW.replace("bash: false", "bash: true")
    many = acts(tmp_path, steps(*capped, gated, granted), f=flow, broken="---\n- no flow")
    assert len(many.summary) < 10 < len(many.described)
    (own,) = (line for line in many.summary if line.startswith("workflows."))
    gate = "requires_approval: true, continues after 60 s"
    assert own == (
        f'workflows.default, 27 steps: {gate}; allowed_tools: "Bash(rm *)"; tools.bash: true'
    )
    # Nothing that gives an agent something is left out, whatever stands around it.
    hidden = "\n".join(many.summary)
    powers = [line for line in many.described if ", tools." in line and line.endswith("true")]
    assert powers
    assert all(line.rpartition(", ")[2] in hidden for line in powers)
    (whole,) = (line for line in many.summary if line.startswith("file flows/broken.md"))
    assert whole.startswith("file flows/broken.md: whole content: ")
    assert many.digest == list_acts(load(tmp_path, env={}).written, tmp_path).digest


def test_one_change_to_the_defaults_is_reported_once(tmp_path: Path) -> None:
    rest = "workflows: {other: {steps: [c, {name: d, tools: {edit: true}}]}}\n"
    before = steps("a", "b") + rest + "step_defaults: {timeout_s: 60}\n"
    after = steps("a", "b") + rest.replace("edit: true", "edit: true, bash: true")
    after += "step_defaults: {timeout_s: 90, tools: {bash: true}}\n"
    assert asked(tmp_path, before, after) == [
        "+ step_defaults, tools.bash: true",
        "- step_defaults, timeout_s: 60",
        "+ step_defaults, timeout_s: 90",
    ]
    # What one step alone is given is its own.
    own = steps("{name: a, tools: {write: true}}", "b") + rest + "step_defaults: {timeout_s: 90}\n"
    assert asked(tmp_path, before, own) == [
        "+ workflows.default, a, tools.write: true",
        "- step_defaults, timeout_s: 60",
        "+ step_defaults, timeout_s: 90",
    ]


def test_an_old_record_without_steps_asks_only_about_limits_and_grants(
    tmp_path: Path,
) -> None:
    plain = acts(tmp_path, steps("a", "b"))
    assert plain.diff_from(Acts(plain.lines, plain.caps)) == []
    capped = acts(tmp_path, steps("{name: a, max_turns: 3}"))
    assert capped.diff_from(Acts(capped.lines, capped.caps)) == [
        "+ workflows.default, a, max_turns: 3"
    ]


def test_names_unsafe_for_a_terminal_or_a_record_are_escaped(tmp_path: Path) -> None:
    name = b"\xff\x1b[2J.md"
    acts(tmp_path, "")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/flows/" + name)).write_text(FLOW)
    written = {"w\u202e": {"steps": [{"name": "a\u202e", "max_turns": 3}]}}
    found = list_acts({"workflows": written}, tmp_path)
    assert all(line.isascii() and line.isprintable() for line in found.described)
    assert "workflows.w\\u202e, a\\u202e, max_turns: 3" in found.described
    assert found.described[1].startswith("file flows/\\udcff\\x1b[2J.md, whole content: ")
    record = json.loads(json.dumps(msgspec.to_builtins(found.recorded)))
    kept = Acts(found.lines, found.caps, kept=msgspec.convert(record, Recorded))
    assert kept.digest == found.digest
    assert found.diff_from(kept) == []


def test_a_review_alone_has_its_own_steps(tmp_path: Path) -> None:
    before = "workflows: {default: {description: d, review: {step: {name: r, max_turns: 3}}}}\n"
    assert asked(tmp_path, before, before.replace("3", "4")) == [
        "- workflows.default, r.review, max_turns: 3",
        "+ workflows.default, r.review, max_turns: 4",
    ]


def test_gates_of_renamed_steps_are_matched_by_how_long_they_wait() -> None:
    def gates(*waits: float | None) -> dict[str, StepFacts]:
        return {f"{n}": StepFacts(gates={"g": wait}) for n, wait in enumerate(waits)}

    assert list(find_removed_gates(gates(5, None), gates(None, 5))) == []
    assert list(find_removed_gates(gates(5, 6), gates(7, 5))) == []
    assert [step for step, _ in find_removed_gates(gates(5, None), gates(None))] == ["0"]
    assert [step for step, _ in find_removed_gates(gates(5, None), gates(5, 5))] == ["1"]


GATED = "steps: [a, b]\nreview: {every: %s, step: {name: c, requires_approval: true}}\n"
OTHER = "agents: {other: {kind: command, argv: ['true']}}\n"
GIVEN = f"{OTHER}steps: [{{name: a, tools: {{bash: true}}}}]\n"


@pytest.mark.parametrize(
    ("before", "after", "is_asked"),
    [
        (GATED % 3, GATED % 4, True),
        (GATED % 3, GATED % 0, True),
        (GATED % 3, GATED % 2, False),
        (GATED % 3, GATED % 3 + "workflow: {review_every_n: 0}\n", True),
        (GATED % 3, GATED % 3 + "workflow: {review_every_n: 2}\n", False),
        (GATED % 3, GATED % 3 + "router: {review_every_n: 900}\n", True),
        ("review: {every: 3, step: c}\n", "review: {every: 9, step: c}\n", False),
    ],
)
def test_a_gated_review_that_comes_less_often_asks(
    tmp_path: Path, before: str, after: str, is_asked: bool
) -> None:
    assert bool(asked(tmp_path, before, after)) == is_asked


@pytest.mark.parametrize(
    ("before", "after", "is_asked"),
    [
        ("agent: claude\n", "agent: other\n", True),
        ("", "agent: other\n", True),
        ("agent: claude\n", "agent: {default: claude, roles: {a: other}}\n", True),
        ("agent: claude\n", "agent: {default: claude, roles: {b: other}}\n", False),
        ("agent: claude\n", "agent: {default: claude, prompts: {a.md: other}}\n", True),
        ("agent: claude\n", "agent: {default: claude, fallback: [other]}\n", True),
        ("agent: {default: claude, fallback: [other]}\n", "agent: claude\n", False),
        ("agent: {fallback: [other, codex]}\n", "agent: {fallback: [codex, other]}\n", False),
    ],
)
def test_a_grant_passed_to_another_agent_by_the_agent_section_asks(
    tmp_path: Path, before: str, after: str, is_asked: bool
) -> None:
    assert bool(asked(tmp_path, before + GIVEN, after + GIVEN)) == is_asked
    without = f"{OTHER}steps: [a, b]\n"
    assert not asked(tmp_path, before + without, after + without.replace("b]", "c]"))


def test_a_flow_whose_grants_go_to_another_agent_asks(tmp_path: Path) -> None:
    flow = "```mermaid\nflowchart TD\n  a[A] --> done((Done))\n```\n\n### a\n---\n"
    flow += "tools: {bash: true}\n---\nDo.\n"
    trusted = acts(tmp_path, "agent: claude\n", one=flow)
    assert any("tools.bash" in line for line in trusted.described)
    assert acts(tmp_path, "agent: codex\n", one=flow).diff_from(trusted)


def test_removing_a_runs_own_worktree_asks(tmp_path: Path) -> None:
    assert asked(tmp_path, "worktree: true\n", "") == ["- runs, worktree: true"]
    assert not asked(tmp_path, "", "worktree: true\n")
