"""What the pages say about runs in every state, and that addresses find what they name."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sequencer import commands, open_project
from tests.acceptance.cli_process import cli
from tests.loopback import free_ports
from tests.unit.cli.calling import call, project
from tests.web.conftest import Client, Serve, words
from tests.web.sample import make_project, work

RUN = "/p/shop/login-timeout"


def test_needs_you_lists_questions_and_failures_oldest_first(looking: Client) -> None:
    page = words(looking.get("/").text)
    places = [page.index(title) for title in ("Is the report right?", "Approve publish?")]
    assert places == sorted(places)
    assert "deploy failed" in page
    assert "the server at deploy.example says 503" in page
    for answer in ("approve", "'send back'", "drop"):
        assert f"sequencer --run login-timeout answer decide {answer} " in page
    assert "sequencer --run release-1.4 answer approve" in page
    assert "sequencer --run nightly retry" in page


def test_a_message_to_a_failed_run_does_not_make_its_card_newer(
    client: Client, tmp_path: Path
) -> None:
    def read_card() -> str:
        """Return since when the pages say that the run has failed."""
        cards = re.findall(r'<article class="card need failed">.*?</article>', page(), re.DOTALL)
        (card,) = (card for card in cards if "nightly" in card)
        (since,) = re.findall(r'<time datetime="([^"]+)"', card)
        return str(since)

    def page() -> str:
        return client.get("/").text

    before = read_card()
    told = open_project(tmp_path / "docs", trust=True).run("nightly")
    told.do(commands.Tell("the server is up again"))
    assert [fact["event"] for fact in told.history()][-1] == "told"
    assert read_card() == before


def test_stopped_runs_ask_for_no_approval(client: Client) -> None:
    for run in client.runs():
        if run.head is not None and run.head.status != "complete":
            run.do(commands.Stop("enough"))
    page = words(client.get("/").text)
    assert "deploy failed" in page
    assert "Approve" not in page


def test_a_run_that_has_not_started_is_shown_as_such(tmp_path: Path, serve: Serve) -> None:
    make_project(tmp_path / "new")
    client = serve([tmp_path / "new"])
    answer = client.get("/p/new/-")
    assert answer.status == 200
    assert "This run has not started." in words(answer.text)
    for path, said in (("/", "Nothing waits for you."), ("/runs", "There are no runs yet.")):
        assert said in words(client.get(path).text)


def test_runs_that_start_by_themselves_are_listed_with_their_next_date(
    tmp_path: Path, serve: Serve
) -> None:
    folder = make_project(tmp_path / "new")
    with (folder / "orchestration.yaml").open("a") as file:
        file.write("schedules:\n  yearly: {workflow: standard, at: 0 2 1 1 *}\n")
    client = serve([folder])
    page = client.get("/runs").text
    date = datetime(datetime.now().astimezone().year + 1, 1, 1, 2).astimezone(UTC)
    assert f'<time datetime="{date.isoformat()}" data-due>' in page
    assert "yearly new standard 0 2 1 1 *" in words(page)
    assert "no runs yet" not in words(page)
    assert 'href="/p/new/yearly"' not in page, "it has no page before its first start"
    assert "yearly" not in words(client.get("/runs?q=other").text)


def test_runs_are_listed_with_what_they_cost_the_newest_first(looking: Client) -> None:
    page = looking.get("/runs").text
    assert words(page).count("shop") == 4
    state = (
        r"paused.*default run.*complete.*release-1\.3|complete.*release-1\.3.*paused.*default run"
    )
    assert re.search(state, words(page))
    assert "waiting for you 2" in words(page)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=RELEASE", ["release-1.3", "release-1.4"]),
        ("q=code-review", ["login-timeout"]),
        ("state=failed", ["nightly"]),
        ("q=nothing", []),
        ("q=%3Cb%3E", []),
        ("from=6", None),
        ("from=-1&state=%00", []),
    ],
)
def test_runs_can_be_searched_and_filtered(
    looking: Client, query: str, found: list[str] | None
) -> None:
    answer = looking.get(f"/runs?{query}")
    assert answer.status == 200
    names = re.findall(r'class="go" href="[^"]*">([^<]+)<', answer.text)
    assert len(names) == 1 if found is None else sorted(names) == found
    assert "<b>" not in answer.text


def test_journals_can_be_searched_for_text(looking: Client) -> None:
    page = looking.get("/runs?q=Deploy.EXAMPLE&journal=1")
    assert "1 attempt mentions" in words(page.text)
    assert 'href="/p/docs/nightly/step/1?try=1"' in page.text
    assert "the server at deploy.example says 503" in words(page.text)
    several = words(looking.get("/runs?q=test_login&journal=1").text)
    assert "tests (Do the tests pass?) login-timeout" in several
    assert "0 attempts mention" in words(looking.get("/runs?q=%3Cnothing&journal=1").text)


def test_a_flow_has_its_graph_with_states_and_links(looking: Client) -> None:
    page = looking.get(RUN).text
    graph = page[page.index('<svg class="graph wide"') : page.index("</svg>")]
    for node, state in (("collect", "done"), ("decide", "waiting"), ("publish", "pending")):
        place = f'<a href="{RUN}/step/{node}" id="n-{node}"><g class="node {state}">'
        assert place in graph
    assert graph.count('class="edge on') == 7
    assert graph.count('class="edge off loop') == 1
    assert "critical path" in words(page)


def test_a_flow_shows_titles_everywhere_and_ids_beside_them(looking: Client) -> None:
    step = looking.get(f"{RUN}/step/security").text
    assert "<h1>Can it be abused?</h1><code>security</code>" in step
    assert "security (Can it be abused?)" in words(looking.get("/costs").text)
    timeline = looking.get(RUN).text.partition("Timeline")[2]
    assert "collect (Collect the change)" in timeline
    assert "decide (Is the report right?)" in words(looking.get("/runs").text)


ASKS = """---
id: asks
---

```mermaid
flowchart TD
    decide{{Is the report right?}} -->|yes| done((Done))
    decide -->|no| dropped((Dropped))
```

### decide
---
options: [{label: yes}, {label: no}]
---
Is the  report
right?
"""


def test_a_question_that_is_its_title_is_shown_once(tmp_path: Path, serve: Serve) -> None:
    folder = project(
        tmp_path / "p", "agent: hand\nagents: {hand: {kind: command, argv: ['true']}}\n"
    )
    (folder / "asks.md").write_text(ASKS)
    assert call(folder, "run", "asks.md").code == 4
    page = words(serve([folder]).get("/").text)
    assert page.count("Is the report right?") == 1


def test_a_cycle_is_a_ring_with_its_review(looking: Client) -> None:
    page = looking.get("/p/shop/-").text
    ring = page[page.index('<svg class="graph ring"') : page.index("</svg>")]
    assert "✓ supervisor" in ring
    assert "cycle 5" in ring
    assert "node pending eye" in ring
    assert ">reviewer<" in ring
    assert "in 1 cycle" in ring


def test_a_procedure_is_a_line_that_waits_at_its_gate(looking: Client) -> None:
    url = looking.url("release-1.4")
    page = looking.get(url).text
    assert '<g class="node waiting">' in page
    assert "5 of 5" in words(page)
    assert "Approve publish?" in words(page)
    pages = [words(looking.get(f"{url}/step/{key}").text) for key in (2, 3, 4)]
    assert ["Approve publish?" in one for one in pages] == [False, True, False]


@pytest.mark.slow
def test_the_steps_of_a_long_run_come_in_pages(client: Client, tmp_path: Path) -> None:
    work(tmp_path / "shop", None, "loop", 60)
    page = client.get("/p/shop/-").text
    keys = [int(key) for key in re.findall(r'class="go" href="/p/shop/-/step/(\d+)"', page)]
    assert keys == list(range(68, 18, -1))
    assert "/p/shop/-?before=19#" in page
    earlier = client.get("/p/shop/-?before=19").text
    keys = [int(key) for key in re.findall(r'class="go" href="/p/shop/-/step/(\d+)"', earlier)]
    assert keys == list(range(18, -1, -1))


def test_a_step_shows_each_attempt_with_its_answer_prompt_and_log(looking: Client) -> None:
    page = words(looking.get(f"{RUN}/step/tests").text)
    assert "Attempts ✗ 1 ✓ 2" in page
    assert "Both tests pass now." in page
    assert "Do tests." in page
    assert "Tokens in 7,200" in page
    assert "part 6 of 6" in page
    first = words(looking.get(f"{RUN}/step/tests?try=1").text)
    assert "2 tests fail: test_login, test_logout" in first
    assert "Exit code 1" in first
    assert f"Machine {socket.gethostname()}" in first
    assert looking.get(f"{RUN}/step/tests?try=99").status == 200


def test_the_prompt_is_shown_as_sent_even_if_its_file_changed_since(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "shop/prompts/main.md").write_text("changed since\n")
    page = client.get("/p/shop/-/step/1").text
    assert "as it was sent" in page
    assert "Do what the supervisor said:" in words(page)
    assert "changed since" not in page
    assert "#&gt;" not in page, "in the log it is not said again"
    log = next((tmp_path / "shop/logs").rglob("iter-00002_main.log"))
    log.write_text("# step\n# workflow\n# started\nan earlier version wrote this\n")
    page = words(client.get("/p/shop/-/step/1").text)
    assert "changed since" in page
    assert "the log does not have what was sent" in page
    lines = f"#> {'long ' * 9000}\n"
    sent = f"# sent: prompt, {len(lines)} bytes\n{lines}"
    log.write_text(f"# step\n# workflow\n# started\n{sent}# sent: prompt, 9 bytes\n#> forged\n")
    text = client.get("/p/shop/-/step/1").text
    assert len(text) < 150_000
    assert "25,000 more characters: sequencer log --prompt 2" in words(text)
    assert "#&gt; forged" in text, "what comes after the prompt is the agent's"


def test_a_step_that_has_not_started_is_shown_and_an_unknown_one_is_not(looking: Client) -> None:
    assert "This step has not started." in words(looking.get(f"{RUN}/step/publish").text)
    for path in (f"{RUN}/step/nothing", f"{RUN}/step/7", "/p/shop/-/step/x", "/p/shop/nothing"):
        assert looking.get(path).status == 404


def test_a_log_has_numbered_lines_ranges_and_a_search(client: Client, tmp_path: Path) -> None:
    log = next((tmp_path / "shop/logs").rglob("iter-00001_collect.log"))
    lines = [f"line {number} of the log\n" for number in range(1, 30_001)]
    log.write_text("".join(lines))
    url = f"{RUN}/log/{log.name}"
    page = client.get(url).text
    assert len(page) < 150_000
    first = int(re.findall(r'<ol class="log numbered" start="(\d+)"', page)[0])
    assert f"<li>line {first} of the log</li>" in page
    assert "<li>line 30000 of the log</li>" in page
    before = re.findall(r'href="\?from=(\d+)">earlier', page)[0]
    earlier = client.get(f"{url}?from={before}").text
    start = int(re.findall(r'<ol class="log numbered" start="(\d+)"', earlier)[0])
    assert start < first
    assert f"<li>line {start} of the log</li>" in earlier
    assert f"<li>line {first - 1} of the log</li>" in earlier, "pages leave no line out"
    assert f"<li>line {first} of the log</li>" not in earlier
    log.write_text("".join("x\n" for _ in range(90_000)))
    assert len(client.get(url).text) < 150_000
    assert len(client.get(f"{url}?from=9000").text) < 150_000
    for hard in ('{"a": "b<c>"}' * 40_000 + "\n", '"' * 500_000, ('"' * 160 + "\n") * 9000):
        log.write_text(hard)
        assert len(client.get(url).text) < 150_000
        assert len(client.get(f"{url}?q=%22").text) < 150_000
    log.write_text("a\nb without an end")
    assert "<li>b without an end</li>" in client.get(url).text
    log.write_text("x" * 5000 + "needle" + "y" * 5000)
    assert "xneedley" in client.get(f"{url}?q=NEEDLE").text, "what is found is shown"
    log.write_text("".join(lines))
    hits = client.get(f"{url}?q=LINE+777").text
    assert words(hits).count("line 777") == 11
    offset = re.findall(r'href="\?from=(\d+)">777<', hits)[0]
    assert int(offset) == sum(map(len, lines[:776]))


def test_a_delayed_sink_and_a_run_that_gave_up_need_you(tmp_path: Path, serve: Serve) -> None:
    folder = make_project(tmp_path / "behind")
    settings = folder / "orchestration.yaml"
    sink = f"{{kind: webhook, url: 'http://127.0.0.1:{free_ports(1)[0]}/'}}"
    text = settings.read_text().replace("max_steps: 400}", "max_steps: 400, failures_in_row: 1}")
    settings.write_text(f"{text}activity: {{sinks: {{desk: {sink}}}}}\n")
    ran = cli(folder, "--run", "night", "run", "--workflow", "nightly")
    assert "deploy" in ran.stderr, ran.stderr
    client = serve([folder])
    needed, health = (words(client.get(path).text) for path in ("/", "/health"))
    assert "deploy failed" in needed
    assert "desk has not accepted" in needed
    assert re.search(r"desk: \d+ posts wait", health)
    assert "1 failures in a row" in health


def tick(folder: Path, *words: str) -> None:
    """Tick as a timer does; a step that fails is an answer, too."""
    cli(folder, *words, "tick", f"--log={folder}/logs/tick.log")


def test_a_timer_that_stopped_needs_you(client: Client, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    open_project(docs, trust=True).run(None).do(commands.Resume())
    log = docs / "logs/tick.log"
    tick(docs)
    text, now = log.read_text().splitlines(keepends=True)[0], time.time()
    stamp = text.partition("  ")[0]

    def ticked(*ago_s: float) -> str:
        """Let the ticks in the log have come so many seconds ago; return what needs you."""
        times = (time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(now - ago)) for ago in ago_s)
        log.write_text("".join(text.replace(stamp, one) for one in times))
        return words(client.get("/").text) + words(client.get("/health").text)

    assert "timer has stopped" in ticked(9000, 7200, 5400)
    assert "at least two were missed" in ticked(9000, 7200, 5400)
    assert "timer has stopped" not in ticked(5400, 3600, 1800), "the next one is hardly due"
    due = datetime.fromtimestamp(int(now), UTC).isoformat()
    assert f'tick <time datetime="{due}" data-due>' in client.get("/runs").text
    assert "timer has stopped" not in ticked(9000, 5400), "two tell no pace"
    open_project(docs, trust=True).run(None).do(commands.Pause())
    assert "data-due" not in client.get("/runs").text
    assert "timer has stopped" not in ticked(9000, 7200, 5400), "a person wants it to rest"


def test_health_shows_what_is_wrong(client: Client, tmp_path: Path) -> None:
    (tmp_path / "docs/orchestration.yaml").write_text("nothing: here\n")
    state = tmp_path / "shop/sync/runs/login-timeout/state.json"
    state.write_text("{")
    state.with_name("journal.jsonl").write_text("{")
    page = words(client.get("/health").text)
    assert "unknown key 'nothing'" in page.replace("\u201c", "'")
    assert "login-timeout" in page
    assert "repair" in page
    for path in ("/", "/runs"):
        assert client.get(path).status == 200
    assert client.get(RUN).status == 200


def test_health_names_an_agent_whose_program_is_missing(client: Client, tmp_path: Path) -> None:
    settings = tmp_path / "docs/orchestration.yaml"
    agents = "agents:\n  gone: {kind: command, argv: [no-such-program], free: true}"
    settings.write_text(settings.read_text().replace("agents:", agents, 1))
    assert "'no-such-program' is not a program on PATH" in words(client.get("/health").text)


def test_health_has_the_checks_that_only_look(client: Client, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "hooks.py").write_text("raise SystemExit('a look ran this')\n")
    settings = docs / "orchestration.yaml"
    edges = "\n".join(f"  a{place} --> b{place}" for place in range(20))
    nodes = "".join(f"\n### {name}{place}\nDo.\n" for name in "ab" for place in range(20))
    chart = f"---\nid: lost\nname: Lost\n---\n\n```mermaid\nflowchart TD\n{edges}\n```\n{nodes}"
    (docs / "lost.md").write_text(chart)
    text = settings.read_text().replace("code-review: code-review.md", "lost: lost.md")
    settings.write_text(text + "hooks: [hooks.py]\n")
    page = words(client.get("/health").text)
    assert "! look Workflow W-UNREACHABLE a1: it never runs" in page
    assert "more findings sequencer check" in page
    assert "✓ OK Store file" in page


def test_looking_changes_nothing(client: Client, tmp_path: Path) -> None:
    def content() -> dict[str, bytes]:
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files if "beats" not in str(path)}

    before = content()
    for path in ("/", "/runs", RUN, "/p/shop/-", f"{RUN}/step/tests", "/costs", "/health"):
        assert client.get(path).status == 200
    assert content() == before


def test_new_runs_and_changed_settings_are_noticed(client: Client, tmp_path: Path) -> None:
    assert "hotfix" not in client.get("/runs").text
    work(tmp_path / "docs", "hotfix", "ship", 1)
    assert "hotfix" in client.get("/runs").text
    assert client.get("/p/docs/hotfix").status == 200
    (tmp_path / "docs/orchestration.yaml").write_text("limits: {max_steps: -1}\n")
    assert "can&#39;t be opened" in client.get("/").text


def test_a_run_that_waits_for_a_date_shows_it(client: Client, tmp_path: Path) -> None:
    assert "data-due" not in client.get("/runs").text
    done = cli(tmp_path / "docs", "--run", "nightly", "set", "not_before=2031-02-03T04:05:06Z")
    assert done.returncode == 0, done.stderr
    page = client.get("/runs").text
    assert page.count('<time datetime="2031-02-03T04:05:06Z" data-due>') == 1


def test_a_run_that_was_reset_has_only_what_came_after(client: Client, tmp_path: Path) -> None:
    assert "supervisor" in client.get("/p/shop/-/step/0").text
    open_project(tmp_path / "shop", trust=True).run(None).do(commands.Reset())
    page = words(client.get("/p/shop/-").text)
    assert "0 started" in page
    assert "cycle 1" in page


def test_a_claim_with_a_dead_holder_waits_for_a_person(client: Client, tmp_path: Path) -> None:
    script = (
        "import os, sys; from sequencer import open_run\n"
        "with open_run(sys.argv[1], trust=True).turn(): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "shop")], check=True)
    page = client.get("/p/shop/-").text
    assert words(page).count("! interrupted") == 2, "the run, and its step"
    assert "running" not in words(page)
    assert 'class="node waiting"' in page
    assert ">! main<" in page
    assert "The process that worked on it is gone" in (needed := words(client.get("/").text))
    assert "sequencer run" in needed
    assert "gone; the next run or tick takes over" in words(client.get("/health").text)


@pytest.mark.slow
def test_a_large_graph_shows_only_its_active_or_requested_part(
    client: Client, tmp_path: Path
) -> None:
    docs = tmp_path / "docs"
    edges = "\n".join(f"  n{place} --> n{place + 10}" for place in range(500))
    nodes = "".join(f"\n### n{place}\nDo {place}.\n" for place in range(510))
    chart = f"```mermaid\nflowchart TD\n{edges}\n```\n{nodes}"
    (docs / "big.md").write_text(f"---\nid: big\nname: Big\n---\n\n{chart}")
    settings = docs / "orchestration.yaml"
    settings.write_text(settings.read_text() + "  big: big.md\n")
    work(docs, "big", "big", 30)
    url = "/p/docs/big"
    page = client.get(url).text
    assert len(page) < 150_000
    assert "60 of 510 nodes, around the active ones" in words(page)
    assert '<g class="node ready">' in page
    assert 'id="n-n409"' not in page
    asked = client.get(f"{url}?at=n409").text
    assert 'id="n-n409"' in asked
    assert 'id="n-n399"' in asked
    assert '<g class="node pending"' in asked
    assert asked.count('class="go"') == 1, "and only this one is in the table"
    assert f'href="{url}?at=n409#part-graph"' in client.get(f"{url}/step/n409").text
    assert client.get(f"{url}?at=nothing%3Cb%3E").status == 200


def test_a_step_that_runs_is_seen_as_running(client: Client, tmp_path: Path) -> None:
    with open_project(tmp_path / "shop", trust=True).run(None).turn():
        page = client.get("/p/shop/-").text
    assert '<g class="node running">' in page
    assert "● running" in words(page)


def test_a_report_is_one_file_without_links_scripts_and_buttons(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "review.html"
    report = ("report", "--html")
    assert call(made / "shop", "--run", "login-timeout", *report, str(target)).code == 0
    text = target.read_text()
    assert '<g class="node waiting">' in text
    assert "critical path" in text
    assert "$0.13" in text
    for forbidden in ("<script", "href=", "src=", "<form", "http://", "https://", "<link"):
        assert forbidden not in text
    assert call(made / "shop", *report, str(target)).code == 0
    other = tmp_path / "notes.html"
    other.write_text("<p>mine</p>")
    assert call(made / "shop", *report, str(other)).code == 2
    assert other.read_text() == "<p>mine</p>"


@pytest.mark.parametrize("package", ["jinja2", "starlette", "uvicorn"])
@pytest.mark.parametrize("arguments", [["web", "--no-browser"], ["report", "--html", "x.html"]])
def test_the_missing_extra_is_named(
    made: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], package: str
) -> None:
    monkeypatch.delenv("SEQUENCER_TOKEN", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # Python then says that there is none
    refused = call(made / "shop", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert "the pages need the extra 'web'" in refused.err
    assert re.search(r"pip install .*\[web\]", refused.err)


ASKS_IN_TIME = """\
agent: rehearsal
workflow: asks
workflows:
  asks:
    kind: procedure
    steps: [{name: a, text: x, requires_approval: true, approval: {timeout_s: 0.01}}]
"""


def test_an_expired_gate_offers_no_answer(tmp_path: Path, serve: Serve) -> None:
    folder = project(tmp_path / "late", ASKS_IN_TIME)
    # Paused before there is a gate: later, a command would record that the gate has expired.
    with open_project(folder, trust=True).run().turn() as turn:
        assert call(folder, "stop", "--pause").code == 0
        turn.output = "x"
    client, page = serve([folder]), ""
    while "no one decided about" not in page:
        page = client.get("/").text
    assert "sequencer resume" in page
    assert ">Approve<" not in page
