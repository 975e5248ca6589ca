"""However a file is spelled: if its reader takes it, what it grants was shown, and is compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sequencer import NodeKind, Step, Workflow
from sequencer.errors import ConfigurationError
from sequencer.project.settings import load
from sequencer.project.trust import Acts, list_acts
from sequencer.workflows.registry import Registry, with_defaults
from tests.property.amounts import FEW, PART, RULES, for_all, in_memory

FLOW = "---\n{front}\n---\n\n```mermaid\nflowchart TD\n a[A] --> p{{{{P}}}} --> b[B]\n```\n\n### a\n---\n{one}\n---\nDo it.\n\n### p\nGo on?\n\n### b\n---\n{two}\n---\nMore.\n"  # noqa: E501
PLAIN = FLOW.format(front="id: f", one="description: x", two="description: x")
KEYS = ("tools", "allowed_tools", "disallowed_tools", "agents", "max_turns", "description")
VALUES = (
    "{bash: true}", "{bash: false}", "\n  bash: true", "[Bash]", "\n- Bash\n- Read", "3", "x",
    "{h: {description: d, prompt: p, tools: [Bash]}}", "*a", "&a {bash: true}",
    "!!map {bash: true}", "{? bash\n : true}", '{"b\\x61sh": true}', '["B\\u0061sh"]', ">\n  Bash",
    "{<<: *a}", "null", "",
)  # fmt: skip
FITTING = (
    ("tools", "{bash: true}"), ("tools", "{bash: false}"), ("tools", "{? bash\n : true}"),
    ("tools", '{"b\\x61sh": true}'), ("allowed_tools", "[Bash]"), ("max_turns", "3"),
    ("allowed_tools", '["B\\u0061sh"]'), ("disallowed_tools", "[Bash]"), ("description", "x"),
)  # fmt: skip
"""Keys with values that are right, however they are spelled."""
BREAKS = ("\n", "\r\n", "\r", "\x85", "\u2028", "\u2029", "\x0b")


def _keys(key: str) -> st.SearchStrategy[str]:
    half = len(key) // 2
    escaped = "".join(f"\\x{ord(letter):02x}" for letter in key[:2]) + key[2:]
    spelled = (
        key, f"'{key}'", f'"{key}"', f'"{escaped}"', f'"\\u{ord(key[0]):04x}{key[1:]}"',
        f'"{key[:half]}\\\n  {key[half:]}"', f'"{key[:half]}\n  {key[half:]}"', f"!!str {key}",
        f"&k {key}", f"{key} # c", key.upper(), f"? {key} # c\n",
        f'? "{key[:half]}\\\n  {key[half:]}"\n', f"? {key}\n# c\n",
    )  # fmt: skip
    return st.sampled_from(spelled)


def _pairs(*, is_inline: bool) -> st.SearchStrategy[str]:
    def pair(key: str, value: str) -> str:
        text = f"{key}: {value}"
        return "{" + text + "}" if is_inline else text

    fitting = st.sampled_from(FITTING).flatmap(
        lambda both: st.builds(pair, _keys(both[0]), st.just(both[1]))
    )
    keys = st.sampled_from(KEYS).flatmap(_keys)
    return st.one_of(fitting, fitting, st.builds(pair, keys, st.sampled_from(VALUES)))


pairs = _pairs(is_inline=False) | _pairs(is_inline=True)
anchors = st.sampled_from(("", "input: &a {bash: true}\n", "input: {x: &a [Bash]}\n"))
settings_texts = st.builds(
    lambda anchor, found: anchor + "\n".join(found),
    anchors,
    st.lists(pairs, min_size=1, max_size=3),
)
fronts = st.sampled_from(
    ("id: f", "id: g", "retry: {maxAttempts: 3}", "tools: {bash: true}", "id: f\n---\nx")
)


@st.composite
def flows(draw: st.DrawFn) -> bytes:
    """Return a flow whose settings are spelled in some way, and its text changed in places."""
    text = FLOW.format(front=draw(fronts), one=draw(settings_texts), two=draw(settings_texts))
    old, new = draw(st.sampled_from([*BREAKS, "---", "### a", " "])), draw(st.sampled_from(BREAKS))
    if draw(st.integers(0, 2)) == 0:
        text = text.replace(old, new, draw(st.integers(1, 3)))
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(text)))
        text = (
            text[:place]
            + draw(st.sampled_from(("\n---\n", "#", "\ufeff", "\x00", '"')))
            + text[place:]
        )
    return draw(st.sampled_from((b"", b"\xef\xbb\xbf"))) + text.encode()


def given(step: Step) -> Iterator[str]:
    """Yield what *step* gives its agent, read from the step itself."""
    yield from (f"tools.{tool}: true" for tool, is_on in (step.tools or {}).items() if is_on)
    yield from (f"allowed_tools: {json.dumps(tool)}" for tool in step.allowed_tools or ())
    for name, agent in (step.agents or {}).items():
        yield f"agents.{name}.tools: {json.dumps(agent.tools)}"


def refused(step: Step) -> set[str]:
    taken = {tool for tool, is_on in (step.tools or {}).items() if not is_on}
    flags = {"all"} if step.disallow_all_tools else set()
    return {*taken, *(step.disallowed_tools or ()), *flags}


def ensure_told(workflow: Workflow, found: Acts, defaults: dict[str, Any]) -> None:
    for step in workflow.every_step:
        whole = with_defaults(step, defaults)
        told = "\n".join(found.described)
        for grant in given(whole):
            assert grant in told, (grant, told)


def test_everything_a_flow_grants_was_shown() -> None:
    accepted: list[bool] = []

    def check(data: bytes) -> None:
        with in_memory() as folder:
            path = folder / "flows" / "f.md"
            path.parent.mkdir()
            path.write_text(PLAIN)
            trusted = list_acts({}, folder)
            path.write_bytes(data)
            found = list_acts({}, folder)
            asked = found.diff_from(trusted)
            try:
                workflow = Registry().load(path).workflow
            except ConfigurationError:
                assert asked or data == PLAIN.encode()
                return
            ensure_told(workflow, found, {})
            new = [grant for step in workflow.steps for grant in given(step)]
            assert all(any(grant in line for line in asked) for grant in new), (new, asked)
            accepted.append(bool(new))
            if not any(node.kind is NodeKind.HUMAN for node in workflow.nodes):
                assert "- file flows/f.md, p, asks a person: true" in asked
            # Trusted as it is, it asks no more; and without what it refuses, it does.
            assert list_acts({}, folder).diff_from(found) == []
            path.write_text(PLAIN)
            lost = any(refused(step) or step.max_turns for step in workflow.steps)
            assert bool(list_acts({}, folder).diff_from(found)) or not lost

    for_all(check, flows(), examples=PART, until=lambda: sum(accepted) > PART // 20)
    assert sum(accepted) > PART // 20, "too few of the texts grant anything"


@st.composite
def files(draw: st.DrawFn) -> str:
    """Return an orchestration.yaml with settings of steps in different places."""
    fields = draw(st.lists(_pairs(is_inline=False), min_size=1, max_size=2))
    step = "- name: a\n  " + "\n".join(fields).replace("\n", "\n  ")
    default = draw(settings_texts).replace("\n", "\n  ")
    around = draw(
        st.sampled_from(
            (
                "steps:\n{step}\n",
                "steps:\n{step}\nstep_defaults:\n  {default}\n",
                "steps: [a]\nstep_defaults:\n  {default}\n",
                "? steps\n:\n{step}\n",
                "workflows:\n w:\n  steps:\n  {inner}\n",
                "workflows:\n w:\n  extends: standard\n  after:\n   main:\n   {more}\n",
                "x: &a {{bash: true}}\nsteps:\n{step}\n",
            )
        )
    )
    text = around.format(
        step=step,
        default=default,
        inner=step.replace("\n", "\n  "),
        more=step.replace("\n", "\n   "),
    )
    old, new = draw(st.sampled_from(BREAKS)), draw(st.sampled_from(BREAKS))
    return text.replace(old, new, draw(st.integers(0, 2)))


def test_everything_the_configuration_grants_was_shown() -> None:
    accepted: list[bool] = []

    def check(text: str) -> None:
        with in_memory() as folder:
            (folder / "orchestration.yaml").write_text(text, newline="")
            try:
                read = load(folder, env={})
            except ConfigurationError:
                return  # nothing of it runs
            found = list_acts(read.written, folder)
            trusted = list_acts({}, folder)
            for workflow in (*read.workflows.values(), read.default_workflow()):
                ensure_told(workflow, found, dict(read.step_defaults))
                for step in workflow.every_step:
                    grants = [*given(with_defaults(step, read.step_defaults))]
                    assert not grants or found.diff_from(trusted)
                    accepted.append(bool(grants))

    for_all(check, files(), examples=FEW * 4, until=lambda: sum(accepted) > FEW // 4)
    assert sum(accepted) > FEW // 4, "too few of the texts grant anything"


tools = st.dictionaries(st.sampled_from(("bash", "edit")), st.booleans(), max_size=2)
names = st.lists(st.sampled_from(("Bash", "Edit")), max_size=2).map(tuple)
some_steps = st.builds(
    Step,
    name=st.just("a"),
    tools=st.none() | tools,
    allowed_tools=st.none() | names,
    disallowed_tools=st.none() | names,
    disallow_all_tools=st.booleans(),
    max_turns=st.none() | st.integers(1, 3),
    max_cost_usd=st.none() | st.sampled_from((0.5, 1.0)),
    requires_approval=st.booleans(),
)


def may_do_more(now: Step, before: Step) -> bool:
    """Say so by the words of the page "Trust a project"."""
    is_wider = bool({*given(now)} - {*given(before)}) or bool(refused(before) - refused(now))
    is_wider |= before.allowed_tools is not None and now.allowed_tools is None
    is_wider |= before.requires_approval and not now.requires_approval
    for cap in ("max_turns", "max_cost_usd"):
        old, new = getattr(before, cap), getattr(now, cap)
        is_wider |= old is not None and (new is None or new > old)
    return is_wider


def test_a_step_asks_exactly_when_it_may_do_more(tmp_path: Path) -> None:
    def acts(step: Step) -> Acts:
        written = step.model_dump(mode="json", exclude_unset=True)
        return list_acts({"workflows": {"default": {"steps": [written]}}}, tmp_path)

    def check(before: Step, now: Step) -> None:
        trusted = acts(before)
        assert bool(acts(now).diff_from(trusted)) is may_do_more(now, before)

    for_all(check, some_steps, some_steps, examples=RULES * 3)
