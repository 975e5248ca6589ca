"""Four weeks alone: six projects under cron, with everything that goes wrong meanwhile.

Each tick is the entry that `sequencer schedule print` prints, given to ``sh`` with cron's few
variables, under the wall clock and the clock since boot of its hour. Agents end well, lie, fail,
crash, leave dirt and servers, hang, are overloaded and meet limits; machines are started again
and are off for days; a person breaks things, and repairs what a mail has told, twice a day.

Counted: steps accepted twice, steps lost, mails, processes left behind; for each event that
needs a person, after how many ticks a mail says so; how long a run waited for its turn.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.clocks import wall_clock
from tests.clocks.paid_calls import rejected, result
from tests.clocks.weeks_alone import (
    AGENT,
    BEGINS,
    DAY,
    FLOW,
    LIMITED,
    MOODS,
    OFF,
    REBOOTS,
    Event,
    Machine,
    Project,
    Told,
    projects,
)
from tests.long.report import Report, Size

_DIRTY = "uncommitted changes"


def prepare(project: Project, folder: Path, clock: Path) -> None:
    """Make the files of *project*, and its timer's entry."""
    first = Machine(project.name, folder / project.name, clock)
    project.machines.append(first)
    for machine in project.machines:
        machine.bin.mkdir(parents=True)
        for name in ("our-claude", "spare"):
            (machine.bin / name).write_text(AGENT)
            (machine.bin / name).chmod(0o755)
    app = first.app
    (app / "prompts").mkdir(parents=True)
    (app / "flows").mkdir()
    (app / "flows" / "nightly.md").write_text(FLOW)
    for step in ("supervisor", "main", "reviewer", "work", "review"):
        (app / "prompts" / f"{step}.md").write_text(f"Do the {step}.\n")
    (app / "orchestration.yaml").write_text(project.configuration)
    (app / ".gitignore").write_text("sync/\nlogs/\n")
    if project.has_git:
        (app / "work").mkdir()
        (app / "work" / f"{project.name}.txt").write_text("begun\n")
        first.git("init", "-q", "-b", "main")
        first.git("config", "user.name", "me")
        first.git("config", "user.email", "me@localhost")
        first.git("add", "-A")
        first.git("commit", "-q", "-m", "A project")
    if project.name == "pair":
        _make_a_pair(project, folder, clock)
    for machine in project.machines:
        trusted = machine.person("trust", "--yes")
        assert trusted.returncode == 0, trusted.stderr
        printed = machine.person("schedule", "print", "--with", "cron", *project.tick)
        assert printed.returncode == 0, printed.stderr
        machine.entry = printed.stdout.splitlines()[-1]
        if project.name == "flow":
            program = f"cd {machine.app} && PATH={machine.bin}:$PATH {sys.executable} -m sequencer"
            machine.entry = f"0 2 * * * {program} run nightly --new --quiet"


def _make_a_pair(project: Project, folder: Path, clock: Path) -> None:
    first, remote = project.machines[0], folder / "shared.git"
    first.git("clone", "-q", "--bare", ".", str(remote))
    first.git("remote", "add", "origin", str(remote))
    first.git("fetch", "-q")
    first.git("branch", "-q", "--set-upstream-to=origin/main")
    second = Machine("pair", folder / "pair-2", clock)
    second.home.mkdir()
    first.git("clone", "-q", str(remote), str(second.app))
    second.git("config", "user.name", "me")
    second.git("config", "user.email", "me@localhost")
    second.bin.mkdir()
    for name in ("our-claude", "spare"):
        (second.bin / name).write_text(AGENT)
        (second.bin / name).chmod(0o755)
    project.machines.append(second)


def live(project: Project, seed: int, days: int, ends_at: float) -> None:
    """Let the days of *project* pass, until the real clock says *ends_at*."""
    for hour in range(days * DAY):
        if time.monotonic() > ends_at:
            return
        project.lived_h = hour
        for machine in project.machines:
            machine.hour = hour
        for event in project.events:
            if event.hour == hour:
                happens(project, event)
            elif event.until == hour:
                is_over(project, event)
        if project.name == "desk":
            _ask(project, hour)
        is_off = hour in OFF and project.name not in ("full", "flow")
        if hour % project.every_h == 2 % project.every_h and not is_off:
            _tick(project, hour, seed)
        if hour % 12 == 9:
            visit(project, hour)


def _ask(project: Project, hour: int) -> None:
    """Let the person ask for something every other day, to be done when its turn comes."""
    if hour == 1:
        # A cycle without an end, beside all that has one.
        _set_the_world(project, hour, "ok")
        project.machines[0].person("run", "--max-steps", "1")
    is_held = any(
        one.what == "untrusted" and one.hour <= hour < one.until for one in project.events
    )
    if hour % (2 * DAY) != 11 or is_held:
        return
    name, asked = f"request-{hour // DAY}", ("start", f"Fix: thing {hour}", "--no-run")
    done = project.machines[0].person("--run", name, *asked, "--procedure", "task")
    if done.returncode:
        project.wrong.append(f"hour {hour}: start: {done.stderr}")
    project.asked[name] = len(project.hours)


def _tick(project: Project, hour: int, seed: int) -> None:
    mood = _mood(project, hour, seed)
    turn = len(project.hours)
    machine = project.machines[turn % len(project.machines)]
    is_killed = hour // project.every_h in [one // project.every_h for one in REBOOTS]
    is_killed = is_killed and project.name != "flow"
    _set_the_world(project, hour, "slow" if is_killed else mood)
    code, mail = machine.tick(is_killed=is_killed)
    if is_killed:
        project.killed.add(str(hour))
    project.hours.append(hour)
    project.codes[code] += 1
    if mail:
        project.mails.append(Told(hour, project.name, code, mail))
    if code not in (0, 1, 2, 3, 4, 75, 130) or "Traceback" in mail or "is a bug" in mail:
        project.wrong.append(f"hour {hour}: {project.name} ended with {code}: {mail[-400:]}")
    if project.asked.keys() - project.waited.keys():
        for run in project.asked.keys() - project.waited.keys():
            journal = project.machines[0].app / "sync" / "runs" / run / "journal.jsonl"
            if journal.exists() and b'"claimed"' in journal.read_bytes():
                project.waited[run] = turn - project.asked[run]


def _set_the_world(project: Project, hour: int, mood: str) -> None:
    """Say how the agents of *project* behave in this hour."""
    is_last = any(one.what == "last" and hour >= one.hour for one in project.events)
    world = {
        "mood": mood,
        "project": project.name,
        "hour": hour,
        "is_last": is_last,
        "done": result("", is_error=False),
        "failed": result("API Error: 400 no such model", api_error_status=400),
        "overloaded": result("API Error: 529 overloaded", api_error_status=529),
        "rejected": rejected(resetsAt=_limit_ends(hour)),
        "limited": result("You've hit your limit"),
    }
    for one in project.machines:
        (one.bin / "world.json").write_text(json.dumps(world))


def _mood(project: Project, hour: int, seed: int) -> str:
    for event in project.events:
        if event.hour <= hour < event.until and event.what in ("limit", "fail"):
            return {"limit": "limit", "fail": "fails"}[event.what]
    if project.name in ("hourly", "tree") and LIMITED.hour <= hour < LIMITED.until:
        return "limit"
    chance = random.Random(f"{seed} {project.name} {hour}")  # noqa: S311
    if chance.random() < 0.02:
        return "limit"  # of five hours
    mood = chance.choices([*MOODS], [*MOODS.values()])[0]
    # A `run` waits for the end of an outage, and its clock is the real one.
    return "ok" if project.name == "flow" and mood == "overloaded" else mood


def _limit_ends(hour: int) -> int:
    is_week = LIMITED.hour <= hour < LIMITED.until
    return int((BEGINS + timedelta(hours=LIMITED.until if is_week else hour + 5)).timestamp())


def happens(project: Project, event: Event) -> None:
    """Let *event* begin."""
    machine = project.machines[0]
    config = machine.app / "orchestration.yaml"
    if event.what == "typo":
        config.write_text(project.configuration.replace("limits:", "limit:"))
    elif event.what == "untrusted":
        text = project.configuration.replace("spare}", "spare, allowed_tools: [Bash]}")
        config.write_text(text)
    elif event.what == "dirty":
        for one in project.machines:
            (one.app / "prompts" / "main.md").write_text("Do the main thing, by hand.\n")
    elif event.what == "remote":
        remote = machine.home.parent / "shared.git"
        remote.rename(remote.with_suffix(".away"))
    elif event.what == "full-disk":
        machine.has_full_disk = True
    elif event.what == "conflict":
        # In the time of the night's run: the same line, changed by hand.
        (machine.app / "work" / f"{project.name}.txt").write_text("changed by hand\n")
        machine.git("commit", "-q", "-a", "-m", "By hand")


def is_over(project: Project, event: Event) -> None:
    """Let *event* end."""
    machine = project.machines[0]
    if event.what == "typo":
        (machine.app / "orchestration.yaml").write_text(project.configuration)
    elif event.what == "untrusted":
        assert machine.person("trust", "--yes").returncode == 0
    elif event.what == "dirty":
        for one in project.machines:
            one.git("checkout", "-q", "--", ".")
    elif event.what == "remote":
        remote = machine.home.parent / "shared.git"
        remote.with_suffix(".away").rename(remote)
    elif event.what == "full-disk":
        machine.has_full_disk = False


def visit(project: Project, hour: int) -> None:
    """Let a person do what the inbox says, if a mail has told about it; else it was silent."""
    machine = project.machines[0]
    for one in project.machines:
        heard = [mail.text for mail in project.mails if mail.hour > hour - 12]
        if any(str(one.app) in text and _DIRTY in text for text in heard):
            one.git("stash", "-q", "-u")
    if machine.has_full_disk or not project.mails:
        return
    shown = machine.person("inbox", "--json")
    if shown.returncode:
        return  # the configuration is broken just now
    for row in json.loads(shown.stdout):
        if "interrupted" in row:
            continue  # the next tick takes it over
        told = [one for one in project.mails if _is_about(one, row)]
        if not told:
            ticks = [one for one in project.hours if one > hour - 2 * project.every_h]
            if len(ticks) > 2:
                project.wrong.append(f"hour {hour}: {project.name}: no mail told about {row}")
            continue
        _do(project, row)


def _do(project: Project, row: dict[str, Any]) -> None:
    """Let the person do what *row* of the inbox asks for."""
    machine = project.machines[0]
    option = [] if row["run"] is None else ["--run", row["run"]]
    if "unmerged" in row:
        machine.git("merge", "-q", "-X", "ours", "-m", "By hand", row["branch"])
    elif row.get("need") == "untrusted":
        machine.person("trust", "--yes")
    elif row.get("need") == "limit":
        _raise_the_cap(project)
    elif row.get("need") in ("refused", "person"):
        machine.person(*option, "retry" if row["need"] == "refused" else "resume")
    else:
        machine.person(*option, "answer", "approve")


def _is_about(mail: Told, row: dict[str, Any]) -> bool:
    run = row["run"] or "default"
    return row.get("need") == "untrusted" or f"run: {run}\n" in mail.text


def _raise_the_cap(project: Project) -> None:
    found = re.search(r"cost_usd: ([\d.]+)", project.configuration)
    if found is not None:
        more = f"cost_usd: {float(found[1]) + 1.5}"
        project.configuration = project.configuration.replace(found[0], more)
        (project.machines[0].app / "orchestration.yaml").write_text(project.configuration)
        project.machines[0].person("trust", "--yes")


# --- what came of it -------------------------------------------------------------------------


def accepted(project: Project) -> Iterator[tuple[str, int, str, str]]:
    """Yield run id, step index, step and output of each step that was accepted."""
    machine = project.machines[0]
    if project.name == "pair":
        machine.person("sync", "--fetch")
    seen = set[tuple[str, int]]()
    for journal in sorted((machine.app / "sync").rglob("journal*.jsonl")):
        for line in journal.read_text().splitlines():
            record = json.loads(line)
            # The newest record of a part that is full is the first of the next one, too.
            place = (str(record["head"]["run_id"]), record["head"]["revision"])
            if place in seen:
                continue
            seen.add(place)
            for fact in record.get("facts") or [record.get("fact") or record]:
                if fact.get("event") == "succeeded":
                    said = json.dumps(fact.get("outcome") or {})
                    yield str(record["head"]["run_id"]), fact["step_index"], fact["step"], said


def judged(project: Project) -> Iterator[str]:
    """Yield what did not hold."""
    yield from project.wrong
    places: Counter[tuple[str, int, str]] = Counter()
    said = []
    for run_id, index, step, text in accepted(project):
        places[run_id, index, step] += 1
        said.append(text)
    # A flow's nodes have no index; a step before a gate is done again after feedback only.
    doubled = (
        [place for place, count in places.items() if count > 1] if project.name != "flow" else []
    )
    yield from (f"{project.name}: accepted twice: {one}" for one in doubled)
    text = "\n".join(said)
    for machine in project.machines:
        yield from (f"{project.name}: left behind: process {pid}" for pid in machine.left())
        for call in _ended(machine):
            hour = call.split("-")[2]
            if call not in text and hour not in project.killed and not _is_hidden(machine, call):
                yield f"{project.name}: lost: {call}"
    for event in project.events:
        if event.mail and event.hour <= project.lived_h and (late := _late(project, event)):
            yield late


def _ended(machine: Machine) -> list[str]:
    calls = machine.bin / "calls.txt"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return [line.split()[0] for line in lines if line.endswith(" ended")]


def _is_hidden(machine: Machine, call: str) -> bool:
    """Return whether the answer is in a file beside the journal: it was too long for it."""
    folder = machine.app / "sync"
    return any(call in path.read_text() for path in folder.rglob("results/**/*") if path.is_file())


def _late(project: Project, event: Event) -> str:
    """Return that no mail told of *event* within two ticks; three attempts make a failure."""
    later = [hour for hour in project.hours if hour >= event.hour]
    ticks = {"fail": 6, "conflict": 14, "last": 3, "limit": 6}.get(event.what, 3)
    # Its runs have their turns one after the other.
    ticks *= 2 if project.name == "desk" and event.what == "fail" else 1
    if len(later) < ticks:
        return ""
    last = later[ticks - 1]
    for mail in project.mails:
        if event.hour <= mail.hour <= last and re.search(event.mail, mail.text):
            return ""
    return f"{project.name}: no mail about {event.what} from hour {event.hour} to {last}"


def weeks(
    folder: Path,
    clock: Path,
    seed: int,
    days: int,
    *,
    names: Sequence[str] = (),
    seconds: float = 86_400,
) -> Report:
    """Return what *days* days came to, or those of them for which *seconds* are enough."""
    found = [one for one in projects() if not names or one.name in names]
    for project in found:
        prepare(project, folder, clock)
    began = time.monotonic()

    def lived(project: Project) -> None:
        try:
            live(project, seed, days, began + seconds)
        except Exception as error:  # noqa: BLE001 - one that breaks must not hide the others
            project.wrong.append(f"{project.name}: the campaign: {type(error).__name__}: {error}")

    with ThreadPoolExecutor(len(found)) as pool:
        list(pool.map(lived, found))
    wrong = [text for project in found for text in judged(project)]
    mails = [mail for project in found for mail in project.mails]
    for mail in sorted(mails, key=lambda one: one.hour):
        at = BEGINS + timedelta(hours=mail.hour)
        print(f"--- {mail.project}, hour {mail.hour} ({at:%a %d %H:%M} UTC), exit code {mail.code}")
        print(mail.text.rstrip())
    waits = [count for project in found for count in project.waited.values()]
    figures = {f"mails_{one.name}": float(len(one.mails)) for one in found}
    figures |= {"mails": float(len(mails)), "seconds": round(time.monotonic() - began, 1)}
    figures |= {"longest_wait_for_a_turn_ticks": float(max(waits, default=0))}
    lost = sum(": lost: " in text for text in wrong)
    doubled = sum(": accepted twice: " in text for text in wrong)
    figures |= {"lost": float(lost), "doubled": float(doubled)}
    calls = sum(len(_calls(one)) for project in found for one in project.machines)
    steps = sum(1 for project in found for _ in accepted(project))
    counts = {"ticks": sum(len(one.hours) for one in found), "agent calls": calls, "steps": steps}
    notes = tuple(
        f"{one.name}: {one.lived_h + 1} h, exit codes {dict(sorted(one.codes.items()))}"
        for one in found
    )
    return Report(counts, tuple(wrong), figures, notes)


def _calls(machine: Machine) -> list[str]:
    calls = machine.bin / "calls.txt"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return [line for line in lines if not line.endswith(" ended")]


def campaign(folder: Path, size: Size) -> Report:
    """Four weeks alone under cron, in six projects: nothing doubled or lost, few mails."""
    clock = wall_clock.library(folder)
    if clock is None:
        return Report({"ticks": 0}, (), {"skipped_because_there_is_no_compiler": 1.0})
    names = ("hourly", "desk") if size is Size.SHORT else ()
    return weeks(folder, clock, 1, 3 if size is Size.SHORT else 28, names=names)


def main() -> int:
    """Run it by hand, for other days and seeds."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--days", type=int, default=28)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--seconds", type=float, default=86_400, help="stop after so long")
    asked.add_argument("--only", nargs="*", default=())
    asked.add_argument("--report", type=Path, required=True)
    given = asked.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="four-weeks-"))
    clock = wall_clock.library(folder)
    assert clock is not None, "no C compiler"
    report = weeks(folder, clock, given.seed, given.days, names=given.only, seconds=given.seconds)
    told = {"counts": dict(report.counts), "figures": dict(report.figures)}
    told |= {"violations": list(report.violations), "notes": list(report.notes)}
    given.report.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))
    return bool(report.violations)


if __name__ == "__main__":
    sys.exit(main())
