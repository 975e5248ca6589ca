"""Ticks and the pages: what is installed for systemd, launchd and cron, and what it starts."""

from __future__ import annotations

import json
import os
import plistlib
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import forked
from tests.loopback import free_ports
from tests.web.deliveries import make_project

ODD = "my 50% \"app\" $HOME & 'x'"

FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >> "$HOME/calls"
case "$(basename "$0") $*" in
  "crontab -l")
    [ ! -e "$HOME/broken" ] || { echo "crontab: Input/output error" >&2; exit 1; }
    [ -e "$HOME/crontab" ] || { echo "no crontab for me" >&2; exit 1; }
    cat "$HOME/crontab" ;;
  "crontab -") cat > "$HOME/crontab" ;;
  *is-active*) echo active ;;
esac
"""


class Home:
    """A user's home with programs that note how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = make_project(folder / ODD)
        programs = folder / "bin"
        programs.mkdir()
        for name in ("systemctl", "launchctl", "crontab"):
            path = programs / name
            path.write_text(FAKE, encoding="utf-8")
            path.chmod(0o755)
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "SEQUENCER_TRUST": "all",
        }
        self.environment.pop("SEQUENCER_TOKEN", None)

    def schedule(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.sequencer("schedule", *words)

    def sequencer(self, *words: str) -> subprocess.CompletedProcess[str]:
        return forked.run(
            [sys.executable, "-m", "sequencer", *words],
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    @property
    def calls(self) -> str:
        path = self.folder / "calls"
        return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def installed_file(home: Home, kind: str) -> Path:
    places = {
        "systemd": home.folder / "config/systemd/user",
        "launchd": home.folder / "Library/LaunchAgents",
        "cron": home.folder,
    }
    found = [*places[kind].glob("crontab" if kind == "cron" else "sequencer-*")]
    return found[0] if found else places[kind] / "none"


@pytest.mark.parametrize("kind", ["systemd", "launchd", "cron"])
def test_a_service_is_installed_shown_and_removed(home: Home, kind: str) -> None:
    (home.folder / "crontab").write_text("0 1 * * * other\n", encoding="utf-8")
    before = home.schedule("show", "--with", kind)
    assert (before.returncode, "not installed" in before.stdout) == (1, True)
    for times in range(2):
        done = home.schedule("install", "--web", "--with", kind, "--port", "8999")
        assert done.returncode == 0, done.stderr
        assert ("was replaced" in done.stderr) == bool(times)
    if kind == "cron":
        # What is started by hand until the machine starts again serves the printed link.
        assert "start it by hand: " in done.stderr
        assert "--port=8999" in done.stderr
        assert "web.token" in done.stderr
    token = home.folder / "state/sequencer/web.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    link = f"http://sequencer.localhost:8999/login?token={token.read_text().strip()}"
    assert done.stdout.strip() == link
    text = installed_file(home, kind).read_text(encoding="utf-8")
    assert token.read_text().strip() not in text
    assert text.count("--port=8999") == 1
    assert home.schedule("show", "--with", kind).returncode == 0
    assert home.schedule("remove", "--web", "--with", kind).returncode == 0
    assert home.schedule("show", "--with", kind).returncode == 1
    assert "was not installed" in home.schedule("remove", "--web", "--with", kind).stderr
    if kind == "cron":
        assert (home.folder / "crontab").read_text(encoding="utf-8") == "0 1 * * * other\n"


def test_the_other_lines_of_a_crontab_are_preserved_byte_for_byte(home: Home) -> None:
    table = home.folder / "crontab"
    # A line end for Python and none for cron, a byte that is no UTF-8, an empty line.
    before = b"# old:\f* * * * * evil\n\n0 4 * * * echo \xe9 \xe2\x80\xa8 \x85\n"
    table.write_bytes(before)
    assert home.schedule("install", "--with", "cron").returncode == 0
    assert table.read_bytes().startswith(before)
    assert home.schedule("remove", "--with", "cron").returncode == 0
    assert table.read_bytes() == before
    table.unlink()
    assert home.schedule("install", "--with", "cron").returncode == 0
    assert table.read_text().count("\n") == 1


def test_a_timer_for_a_client_without_a_time_limit_gives_a_warning(home: Home) -> None:
    config = home.project / "orchestration.yaml"
    config.write_text("agent: claude\nsteps: [{name: build, text: Build.}]\n", encoding="utf-8")
    said = home.schedule("install", "--with", "cron").stderr
    warning = "notice: agent claude: no time limit in build: if the client hangs, the run hangs"
    assert said.count(warning) == 1
    assert "step_defaults: {timeout_s: 7200, idle_timeout_s: 900}" in said
    assert home.schedule("install", "--with", "cron", "--all").stderr.count(warning) == 1
    with config.open("a", encoding="utf-8") as file:
        file.write("step_defaults: {idle_timeout_s: 900}\n")
    assert "no time limit" not in home.schedule("install", "--with", "cron").stderr


def test_a_timer_with_an_unusable_fallback_gives_a_warning(home: Home) -> None:
    (home.project / "orchestration.yaml").write_text(
        "agent: {default: claude, fallback: [codex]}\nlimits: {cost_usd: 10}\n"
        "step_defaults: {max_cost_usd: 3, timeout_s: 60}\nsteps: [{name: build, text: Build.}]\n",
        encoding="utf-8",
    )
    said = home.schedule("install", "--with", "cron").stderr
    assert "fallback 'codex' never performs step build in place of 'claude'" in said
    assert "does not support max_cost_usd" in said
    # One that stands in but has no price under a cap on costs is no better.
    config = home.project / "orchestration.yaml"
    config.write_text(config.read_text().replace("max_cost_usd: 3, ", ""), encoding="utf-8")
    said = home.schedule("install", "--with", "cron").stderr
    assert "agent 'codex' may never report its cost, so limits.cost_usd can't count it" in said


@pytest.mark.parametrize("action", ["install", "remove", "show"])
def test_an_unreadable_crontab_is_not_replaced(home: Home, action: str) -> None:
    (home.folder / "crontab").write_text("0 1 * * * other\n")
    (home.folder / "broken").touch()
    done = home.schedule(action, "--with", "cron")
    assert done.returncode == 2
    assert "Input/output error" in done.stderr
    assert (home.folder / "crontab").read_text() == "0 1 * * * other\n"


def test_systemd_accepts_the_unit(home: Home) -> None:
    keys = home.folder / "my keys.env"
    done = home.schedule("install", "--web", "--with", "systemd", "--env-file", str(keys))
    assert done.returncode == 0, done.stderr
    assert "systemctl --user restart sequencer-web-" in home.calls
    unit = installed_file(home, "systemd")
    assert f"EnvironmentFile=-{keys}" in unit.read_text(encoding="utf-8")
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze")
    found = subprocess.run(
        [analyze, "verify", "--user", str(unit)], capture_output=True, text=True, check=False
    )
    assert unit.name not in found.stderr, found.stderr


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("kind", ["systemd", "launchd", "cron"])
def test_ticks_are_installed_beside_the_pages(home: Home, kind: str) -> None:
    assert home.schedule("install", "--web", "--with", kind).returncode == 0
    for every in ("15", "30"):
        done = home.schedule("install", "--with", kind, "--every", every)
        assert done.returncode == 0, done.stderr
        assert f"every {every} minutes" in done.stderr
    shown = home.schedule("show", "--with", kind).stdout
    assert len(re.findall("(?m)^(?:ticks|pages): installed", shown)) == 2
    assert "not installed" not in shown
    assert home.schedule("remove", "--with", kind).returncode == 0
    after = home.schedule("show", "--with", kind)
    assert after.stdout.startswith("ticks: not installed\npages: installed")
    assert home.schedule("remove", "--web", "--with", kind).returncode == 0
    left = installed_file(home, kind)
    assert not left.exists() or left.read_text(encoding="utf-8") == ""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("kind", ["systemd", "launchd", "cron"])
def test_an_installed_tick_runs_a_step_of_its_own_project(home: Home, kind: str) -> None:
    first = home.project
    (first / "orchestration.yaml").write_text("agent: rehearsal\nsteps: [one]\n", encoding="utf-8")
    (first / "prompts" / "one.md").write_text("x\n", encoding="utf-8")
    assert home.schedule("install", "--with", kind).returncode == 0
    # Another project whose folder has the same name replaces nothing.
    home.project = make_project(home.folder / "second" / ODD)
    assert home.schedule("install", "--with", kind).returncode == 0
    assert home.schedule("remove", "--with", kind).returncode == 0
    path = installed_file(home, kind)
    path = path.with_suffix(".service") if kind == "systemd" else path
    text = path.read_text(encoding="utf-8")
    environment = {"HOME": str(home.folder), "PATH": "/usr/bin:/bin", "SEQUENCER_TRUST": "all"}
    if kind == "launchd":
        told = plistlib.loads(text.encode())
        assert told["StartInterval"] == 3600
        argv = told["ProgramArguments"]
    elif kind == "cron":
        assert text.startswith("0 * * * * ")
        argv = ["/bin/sh", "-c", text.strip().removeprefix("0 * * * * ").replace(r"\%", "%")]
    else:
        assert path.with_suffix(".timer").read_text(encoding="utf-8").count("60min") == 1
        line = re.search(r"(?m)^ExecStart=(.*)$", text)
        assert line is not None
        argv = shlex.split(line[1].replace("%%", "%").replace("$$", "$"))
    done = subprocess.run(
        argv, cwd="/", env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (first / "sync/state.json").exists()


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("kind", ["launchd", "cron"])
def test_the_installed_service_starts_the_pages_with_the_keys(home: Home, kind: str) -> None:
    keys, port = home.folder / "my keys.env", free_ports(1)[0]
    keys.write_text("GITHUB_WEBHOOK_SECRET='a secret that is long enough'\n", encoding="utf-8")
    done = home.schedule(
        *("install", "--web", "--with", kind, "--port", str(port), "--env-file", str(keys))
    )
    assert done.returncode == 0, done.stderr
    path = installed_file(home, kind)
    if kind == "launchd":
        told = plistlib.loads(path.read_bytes())
        argv, folder = told["ProgramArguments"], told["WorkingDirectory"]
    else:
        line = path.read_text(encoding="utf-8").strip().removeprefix("@reboot ")
        argv, folder = ["/bin/sh", "-c", line.replace(r"\%", "%")], "/"
    bare = {"HOME": str(home.folder), "PATH": "/usr/bin:/bin", "SEQUENCER_TRUST": "all"}
    with subprocess.Popen(
        argv, cwd=folder, env=bare, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            said = [process.stderr.readline() for _ in range(2)]
            assert any("takes deliveries at /hooks/github" in line for line in said), said
            assert answers(port)
        finally:
            process.kill()


def answers(port: int) -> bool:
    for _ in range(100):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return True
        except OSError:
            time.sleep(0.05)
    return False


def test_a_short_key_is_refused_and_nothing_installed(home: Home) -> None:
    short = home.folder / "token"
    short.write_text("short\n", encoding="utf-8")
    short.chmod(0o600)
    done = home.schedule("install", "--web", "--with", "systemd", "--token-file", str(short))
    assert (done.returncode, "characters" in done.stderr) == (2, True)
    assert home.calls == ""


def test_an_agent_installs_nothing(home: Home) -> None:
    home.environment |= {"SEQUENCER_TOKEN": "1"}
    assert home.schedule("install", "--web", "--with", "cron").returncode == 2
    assert not (home.folder / "crontab").exists()


def test_the_words_of_the_command_line_are_intact(home: Home) -> None:
    home.schedule("install", "--web", "--with", "launchd", "--name", "hooks.example.com:443")
    told = plistlib.loads(installed_file(home, "launchd").read_bytes())
    words = shlex.split(told["ProgramArguments"][2])
    assert f"--config={home.project / 'orchestration.yaml'}" in words
    assert "--name=hooks.example.com:443" in words


HOW_TO = Path(__file__).parents[2] / "docs/how-to/start-from-an-issue.md"


def test_the_commands_of_the_how_to_guide_work_with_its_settings(home: Home) -> None:
    text = HOW_TO.read_text(encoding="utf-8")
    settings = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (home.project / "orchestration.yaml").write_text("\n".join(settings), encoding="utf-8")
    (home.project / "prompts" / "supervisor.md").write_text("x\n", encoding="utf-8")
    (home.project / "prompts" / "main.md").write_text("x\n", encoding="utf-8")
    home.environment |= {"GITHUB_TOKEN": "t-github", "LINEAR_TOKEN": "t-linear"}
    home.environment |= {"LINEAR_WEBHOOK_SECRET": "a secret that is long enough"}
    listed = json.loads(home.sequencer("check", "--settings", "--json").stdout)
    values = {one["key"]: one["value"] for one in listed}
    assert values["webhooks.github.repositories"] == ["acme/app"]
    assert values["webhooks.linear.teams"] == ["ENG"]
    commands = re.findall(r"^\$ sequencer (.*?)(?: \|\|.*)?$", text, re.MULTILINE)
    commands += re.findall(r"^sequencer (schedule install .*)$", text, re.MULTILINE)
    assert {one.split()[0] for one in commands} == {"check", "trust", "schedule"}
    for command in sorted(commands, key=lambda one: "install" not in one):
        argv = shlex.split(command.replace("~", str(home.folder)))
        argv += ["--with", "cron"] if argv[0] == "schedule" else []
        done = home.sequencer(*argv)
        # This machine has no agent, which 'check' says.
        wanted = (0, 2) if argv[0] == "check" else (0,)
        assert done.returncode in wanted, (command, done.stderr)
        if argv[0] == "check":
            said = [line for line in done.stdout.splitlines() if "webhooks" in line]
            assert len(said) == 1
            assert "GITHUB_WEBHOOK_SECRET is not set" in said[0]
    assert "--name=https://hooks.example.com" not in installed_file(home, "cron").read_text()


@pytest.mark.parametrize(
    "name", ["x:99999", "x:0", "a_b!", "https://x/y", "x y", "*.x", "", "ftp://x", "x:", "x:80:81"]
)
def test_a_name_that_no_host_has_is_refused(home: Home, name: str) -> None:
    for words in (("web", "--port", "0", "--no-browser"), ("schedule", "print", "--web")):
        refused = home.sequencer(*words, "--name", name)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"--name: {name!r}" in refused.stderr


@pytest.mark.parametrize("name", ["hooks.example.com", "https://x/", "HTTP://a_b:80", "[::1]:8420"])
def test_a_name_that_a_host_may_have_is_taken(home: Home, name: str) -> None:
    assert home.schedule("print", "--web", "--name", name).returncode == 0


def test_an_address_of_another_machine_is_not_blamed_on_the_port(home: Home) -> None:
    key = home.folder / "key"
    key.write_text("0123456789" * 5)
    key.chmod(0o600)
    bind = ("--bind", "192.0.2.1", "--token-file", str(key))
    refused = home.sequencer("web", "--port", "0", "--no-browser", *bind)
    assert refused.returncode == 2
    assert "can't listen at 192.0.2.1" in refused.stderr
    assert "--bind needs an address of this machine" in refused.stderr
