"""The project's documents, taken apart: pages, fenced blocks, commands, links, words in code.

Between ``<!-- run: start -->`` and ``<!-- run: end -->`` every console block is meant to be
run, in order; a YAML block that begins with ``# orchestration.yaml`` there is that file, and
a block behind ``<!-- file: NAME -->`` is the file of that name. An example's page is run in a
copy of its folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sequencer.testing import ScratchProject
from tests import forked
from tests.isolation import FAKE_PROGRAMS

ROOT = Path(__file__).parents[2]
RUN_START, RUN_END = "<!-- run: start -->", "<!-- run: end -->"
_FENCE = re.compile(r"^(`{3,})(\w*)\s*$")
_FILE = re.compile(r"<!-- file: (\S+) -->")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#{1,6} (.+)$")


AT_THE_ROOT = (
    *("README", "CHANGELOG", "CONTRIBUTING"),
    *("AGENTS", "CODE_OF_CONDUCT", "SECURITY", "SUPPORT"),
)


def pages() -> list[Path]:
    """Return every Markdown page that users read."""
    found = [ROOT / f"{name}.md" for name in AT_THE_ROOT] + [ROOT / "skills/sequencer/SKILL.md"]
    found += sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "examples").rglob("README.md"))
    return found


def shown(page: Path) -> str:
    """Return the page's name for messages and test ids."""
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Fence:
    """One fenced block."""

    page: Path
    line: int
    language: str
    lines: tuple[str, ...]
    is_run: bool
    file: str | None = None
    """What the page says that the block is the content of."""

    @property
    def text(self) -> str:
        """Return the block's content."""
        return "\n".join(self.lines) + "\n"

    @property
    def where(self) -> str:
        """Return page and line."""
        return f"{shown(self.page)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command line of a console block, and what the page shows below it."""

    text: str
    output: tuple[str, ...]
    where: str


def fences(page: Path) -> list[Fence]:
    """Return the fenced blocks of *page*, in order."""
    found: list[Fence] = []
    is_run, opened, language = False, 0, ""
    ticks, file = "", None
    body: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        match = _FENCE.match(line)
        if not opened and match:
            opened, ticks, language, body = number, match[1], match[2], []
        elif opened and line.strip() == ticks:
            found.append(Fence(page, opened, language, tuple(body), is_run, file))
            opened, file = 0, None
        elif opened:
            body.append(line)
        elif line.strip() in (RUN_START, RUN_END):
            is_run = line.strip() == RUN_START
        elif named := _FILE.fullmatch(line.strip()):
            file = named[1]
    assert not opened, f"{shown(page)}:{opened}: the block is not closed"
    return found


def commands(fence: Fence) -> list[Command]:
    """Return the command lines of a console block; of a sh block every line is one."""
    if fence.language == "sh":
        return [Command(line, (), fence.where) for line in fence.lines if line.strip()]
    found: list[Command] = []
    for line in fence.lines:
        if line.startswith("$ "):
            found.append(Command(line[2:], (), fence.where))
        else:
            assert found, f"{fence.where}: a console block begins with '$ '"
            last = found.pop()
            found.append(Command(last.text, (*last.output, line), last.where))
    return found


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line outside of fenced blocks."""
    ticks = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        match = _FENCE.match(line)
        if not ticks and match:
            ticks = match[1]
        elif ticks:
            ticks = "" if line.strip() == ticks else ticks
        else:
            yield number, line


def inline_code(page: Path) -> Iterator[tuple[str, str]]:
    """Yield place and content of each `code` in the prose of *page*."""
    for number, line in prose(page):
        for match in _CODE.finditer(line):
            yield f"{shown(page)}:{number}", match[1]


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield place and target of each link in the prose of *page*."""
    for number, line in prose(page):
        for match in _LINK.finditer(_CODE.sub("", line)):
            yield f"{shown(page)}:{number}", match[1]


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of *page* make, as GitHub does it."""
    found = set()
    for _, line in prose(page):
        if match := _HEADING.match(line):
            words = re.sub(r"[^\w\- ]", "", match[1].lower())
            found.add(words.strip().replace(" ", "-"))
    return found


def clean_environment(home: Path) -> dict[str, str]:
    """Return an environment with `sequencer` on PATH and nothing of this machine's accounts."""
    programs = Path(sys.executable).parent
    return {
        "HOME": str(home),
        # Beside the home folder, which is a page's project as well.
        "XDG_STATE_HOME": f"{home}-state",
        "SEQUENCER_TRUST": "all",
        "LANG": "C.UTF-8",
        "PATH": f"{programs}:{FAKE_PROGRAMS}:/usr/local/bin:/usr/bin:/bin",
        "COLUMNS": "200",
        "NO_COLOR": "1",
        # Whoever types a page's commands has told git who they are.
        **{
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "A Reader"), ("EMAIL", "reader@example.org"))
        },
        # A test run that measures coverage wants that of its children too.
        **{k: v for k, v in os.environ.items() if k.startswith("COVERAGE_")},
    }


@dataclass(frozen=True)
class Ran:
    """A command that was run."""

    command: Command
    exit_code: int
    output: str


def run_region(page: Path, folder: Path) -> list[Ran]:
    """Run the marked region of *page* in *folder*, as one shell session without a network."""
    if page.is_relative_to(ROOT / "examples"):
        left = shutil.ignore_patterns("sync", "logs")
        shutil.copytree(page.parent, folder, dirs_exist_ok=True, ignore=left)
    # The README shows that the installed command works; the others, what it does.
    return run_fences(
        [fence for fence in fences(page) if fence.is_run],
        folder,
        is_installed=page == ROOT / "README.md",
    )


def run_fences(shown: Iterable[Fence], folder: Path, *, is_installed: bool = False) -> list[Ran]:
    """Run the commands of the fences *shown* in *folder*, see `run_region`."""
    script, listed = ["exec 2>&1"], []
    for fence in shown:
        is_configuration = fence.language == "yaml" and fence.lines[0] == "# orchestration.yaml"
        file = "orchestration.yaml" if is_configuration else fence.file
        if file is not None:
            script.append(f"cat > {file} <<'END OF FILE'\n{fence.text}END OF FILE")
        elif fence.language == "console":
            for command in commands(fence):
                listed.append(command)
                script.append(f'{command.text}\nprintf "\\n@@@ %d\\n" $?')
    environment = clean_environment(folder)
    if not is_installed:
        programs = folder.with_name(f"{folder.name}-programs")
        programs.mkdir()
        environment |= forked.put_on_path(programs)
        environment["PATH"] = f"{programs}:{environment['PATH']}"
    # Who reads the page has trusted nothing yet.
    del environment["SEQUENCER_TRUST"]
    # Whoever would leave this machine fails at once instead of hanging.
    environment |= {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    outputs = re.split(r"\n@@@ (\d+)\n", done.stdout)
    pairs = zip(outputs[::2], outputs[1::2], strict=False)
    ran = [Ran(c, int(code), out) for c, (out, code) in zip(listed, pairs, strict=False)]
    assert len(ran) == len(listed), f"only {len(ran)} of {len(listed)} commands ran: {done.stdout}"
    return ran


def matches(expected: str, line: str) -> bool:
    """Return whether *line* is what a page shows; its ``…`` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.rstrip().split("…"))
    return re.fullmatch(pattern, line.rstrip()) is not None


def ensure_shown(ran: Ran) -> None:
    """Fail unless every line that the page shows was printed, in order."""
    printed = iter(ran.output.splitlines())
    for expected in ran.command.output:
        found = any(matches(expected, line) for line in printed)
        assert found, f"{ran.command.where}: {ran.command.text!r} printed no {expected!r}:\n" + (
            ran.output
        )


def ensure_true(listed: list[Ran]) -> None:
    """Fail unless every command that a page runs succeeded, and printed what the page shows."""
    for ran in listed:
        where = f"{ran.command.where}: {ran.command.text}"
        assert ran.exit_code == 0, f"{where} ended with {ran.exit_code}:\n{ran.output}"
        assert "Traceback" not in ran.output, where
        ensure_shown(ran)


def refusal_of(folder: Path, name: str, text: str) -> str:
    """Return what `plan` says about the file *name* with a wrong *text*."""
    (folder / name).write_text(text)
    ran = ScratchProject(folder).run_command("plan", name)
    assert ran.exit_code == 2
    return ran.stderr


def offered(refused: str, complaint: str) -> list[str]:
    """Return the names that are known where *refused* has the *complaint* about an unknown one."""
    found = re.search(rf"[ :]{re.escape(complaint)}\n  (?:known keys|there are): (.*)\n", refused)
    assert found, (complaint, refused)
    return found[1].split(", ")
