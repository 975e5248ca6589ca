"""A project whose model keeps a book of its calls: what each cost, and whose process it was."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sequencer import Run, Usage, open_project
from tests.acceptance.cli_process import cli
from tests.boundary.forging import Record, forge
from tests.web.conftest import Client, words

CLIENT = f"""\
#!{sys.executable} -IS
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
prompt = sys.stdin.read()
# The router is asked in the name of the step.
step = "router" if prompt.startswith("# router") else os.environ.get("SEQUENCER_STEP", "")
book = here / "charges.jsonl"
calls = [json.loads(line) for line in book.read_text().splitlines()] if book.exists() else []
answers = json.loads((here / "plan.json").read_text()).get(step, [{{}}])
answer = answers[min(sum(call["step"] == step for call in calls), len(answers) - 1)]
names = ("SEQUENCER_TOKEN", "SEQUENCER_RUN_ID", "SEQUENCER_POSITION")
cost = answer.get("cost", 0.125)
with book.open("a") as file:
    call = {{"step": step, "cost": cost, "argv": sys.argv[1:], "files": os.listdir()}}
    file.write(json.dumps(call | {{name: os.environ.get(name) for name in names}}) + "\\n")
event = {{"type": "result", "is_error": False, "result": answer.get("says", "done")}}
print(json.dumps(event | ({{}} if cost is None else {{"total_cost_usd": cost}})), flush=True)
sys.exit(answer.get("exit", 0))
"""
Answers = Mapping[str, Sequence[Mapping[str, Any]]]


def charged_project(folder: Path, answers: Answers, **settings: Any) -> Path:
    """Make a project whose steps ask a model that charges 0.125 USD, or what *answers* say.

    *answers* are by step, one call after the other, the last one again and again: what it
    ``says``, its ``cost`` (None: it tells none) and its ``exit`` code.
    """
    (folder / "prompts").mkdir(parents=True)
    for name in ("supervisor", "main", "router", "verify", "fix", "look"):
        (folder / "prompts" / f"{name}.md").write_text(f"# {name}\n")
    bank = folder.parent / f"{folder.name}-bank"
    bank.mkdir()
    (bank / "plan.json").write_text(json.dumps(answers))
    client = bank / "client"
    client.write_text(CLIENT)
    client.chmod(0o755)
    # What an entry says of the mark has to be without effect.
    entry = {"kind": "claude", "program": str(client), "env": {"SEQUENCER_TOKEN": ""}}
    document = {"agent": {"default": "model"}, "agents": {"model": entry}, **settings}
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    return folder


def calls_of(folder: Path) -> list[dict[str, Any]]:
    """Return the calls of the model in the project *folder*, oldest first."""
    book = folder.parent / f"{folder.name}-bank" / "charges.jsonl"
    return [json.loads(line) for line in book.read_text().splitlines()] if book.exists() else []


def figures(usage: Usage) -> tuple[float, int]:
    """Return the known cost, and the calls of unknown cost."""
    return round(usage.cost_usd, 9), usage.unpriced


def charged(folder: Path) -> tuple[float, int]:
    """Return what the model has charged, as `figures` has it."""
    # A model that says -0.0 has not said what it costs.
    told = [call["cost"] for call in calls_of(folder)]
    costs = [None if str(cost).startswith("-") else cost for cost in told]
    return round(sum(cost or 0.0 for cost in costs), 9), costs.count(None)


def run_of(folder: Path, name: str | None) -> Run:
    return open_project(folder, trust=True).run(name)


def _sum(costs: Iterable[float], unpriced: Iterable[float]) -> tuple[float, int]:
    return round(sum(costs), 9), int(sum(unpriced))


def _metrics(folder: Path, option: tuple[str, ...]) -> dict[str, tuple[float, int]]:
    """Return what the metrics of a run say that all its agents have cost, and the run."""
    text = cli(folder, *option, "report", "--metrics").stdout

    def values(name: str) -> list[float]:
        return [
            float(one) for one in re.findall(rf"(?m)^sequencer_{name}_total{{.*}} (\S+)$", text)
        ]

    # A cost that is not known at all has no line.
    return {
        f"metrics {of}": _sum(values(f"{of}cost_usd"), values(f"{of}calls_unpriced"))
        for of in ("", "run_")
    }


def _as_shown(cost: float, unpriced: int) -> str:
    """Return how a page shows what `figures` has."""
    return f"${cost:,.2f}{'+?' if unpriced else ''}" if cost else "?" if unpriced else ""


def _slow_copy(folder: Path, name: str | None) -> Path:
    """Return a copy of the project in which a minute lies between two changes of the run."""
    copy = folder.with_name(f"{folder.name}-slow")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, symlinks=True)
    minutes = itertools.count()

    def date(record: Record) -> None:
        hour, minute = divmod(next(minutes), 60)
        record["at"] = f"2026-01-01T{hour:02}:{minute:02}:00Z"

    forge(copy / "sync" / ("" if name is None else f"runs/{name}"), date)
    return copy


def _pages(folder: Path, name: str | None, told: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what the page of costs shows of a run, and what its plot sums up to, if it has one.

    *told* are the facts that have a cost; a plot needs two that came at different times.
    """
    shown = "default run" if name is None else name
    with Client([_slow_copy(folder, name)]) as client:
        page = client.get("/costs?by=run").text
    row = re.search(rf'>{shown}</a>.*?data-h="Cost">(.*?)</td>', page.partition("By run</h2>")[2])
    assert row, page
    yield row[1]
    if len({fact["revision"] for fact in told}) > 1:
        plotted = re.search(rf"■ {shown} (\S+)", words(page))
        assert plotted, page
        yield plotted[1]


def counted(folder: Path, name: str | None) -> dict[str, tuple[float, int]]:
    """Return what every view says that the run *name* has cost.

    Pages show cents: what they show is compared with what they have to show of the head.
    """
    run = run_of(folder, name)
    head, facts = run.head, list(run.history())
    assert head is not None
    used = [(fact.get("outcome") or {}).get("usage") or {} for fact in facts]
    known = [fact for fact, usage in zip(facts, used, strict=True) if usage.get("cost_usd")]
    cost, unpriced = figures(head.usage)
    shown, *plotted = _pages(folder, name, known)
    assert shown == _as_shown(cost, unpriced)
    assert plotted in ([], [_as_shown(cost, 0)])
    option = () if name is None else (f"--run={name}",)
    status = json.loads(cli(folder, *option, "status", "--json").stdout)
    lists = [cli(folder, "status", "--all", *more, "--json") for more in ((), ("--ended",))]
    listed = next(one for ran in lists for one in json.loads(ran.stdout) if one["run"] == name)
    usage = status["usage"]
    return {
        "head": (cost, unpriced),
        "journal": _sum(*([one.get(key, 0) for one in used] for key in ("cost_usd", "unpriced"))),
        **_metrics(folder, option),
        "status": (usage["cost_usd"], usage["unpriced"]),
        "status --all": (listed["cost_usd"] or 0.0, listed["unpriced"]),
    }
