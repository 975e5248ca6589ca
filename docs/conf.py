"""The site of these documents: ``sphinx-build -W -c docs . site``, from the project's root.

Sphinx reads the Markdown that GitHub shows; nothing is written twice. Charts are drawn by
sequencer itself, so that a page loads nothing from anywhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
PAGES: dict[str, dict[str, list[str]]] = {
    "README": {
        "First steps": ["docs/tutorial", "docs/cookbook/README", "examples/README"],
        "Coming from": ["docs/coming-from/*"],
        "Loops": [
            "docs/how-to/two-terminals",
            "docs/how-to/review-cadence",
            "docs/how-to/checks-as-steps",
            "docs/how-to/evidence",
            "docs/how-to/router",
            "docs/how-to/several-runs",
            "docs/how-to/run-worktree",
            "docs/how-to/try-prompts",
        ],
        "Requests and flows": [
            "docs/how-to/start-from-a-request",
            "docs/how-to/start-from-an-issue",
            "docs/how-to/procedures-of-your-own",
            "docs/how-to/draw-a-flow-and-run-it",
            "docs/how-to/answer-a-flow",
            "docs/how-to/teams",
            "docs/how-to/team-worktrees",
        ],
        "Unattended": [
            "docs/how-to/unattended",
            "docs/how-to/limits-and-budgets",
            "docs/how-to/trust-a-project",
            "docs/how-to/stop-and-resume",
            "docs/how-to/when-something-went-wrong",
        ],
        "Look": [
            "docs/how-to/web",
            "docs/how-to/gantt",
            "docs/how-to/metrics",
            "docs/how-to/post-activity",
        ],
        "Several machines": [
            "docs/how-to/two-machines",
            "docs/how-to/many-machines",
            "docs/how-to/temporal-in-production",
            "docs/how-to/windows-and-macos",
        ],
        "Agents and programs": [
            "docs/how-to/choose-agents",
            "docs/how-to/where-you-work",
            "docs/how-to/hooks",
            "docs/how-to/use-from-python",
            "skills/sequencer/SKILL",
        ],
        "Reference": ["docs/reference/*", "docs/glossary", "CHANGELOG"],
        "How it works": [
            "docs/protocol",
            "docs/architecture",
            "docs/decisions/README",
            "CONTRIBUTING",
            "AGENTS",
        ],
        "The project": ["SUPPORT", "SECURITY", "CODE_OF_CONDUCT"],
    },
    "docs/cookbook/README": {"": ["docs/cookbook/*"]},
    "docs/decisions/README": {"": ["docs/decisions/0*"]},
    "examples/README": {"": ["examples/*/README"]},
    "examples/flows/README": {"": ["examples/flows/*"]},
    "examples/hooks/README": {"": ["examples/hooks/*/README"]},
}
"""What stands below a page in the list at the left, by caption."""

project = "Sequencer"
extensions = ["myst_parser"]
include_patterns = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "AGENTS.md", "CODE_OF_CONDUCT.md"),
    *("SECURITY.md", "SUPPORT.md", "skills/sequencer/SKILL.md", "docs/**.md"),
    *("examples/README.md", "examples/**/README.md", "examples/flows/*.md"),
]
root_doc = "README"
suppress_warnings = ["myst.header"]  # a page may skip a level, as GitHub's do
myst_heading_anchors = 6
html_theme = "furo"
html_title = "Sequencer"
html_copy_source = html_show_sourcelink = html_show_sphinx = False
pygments_style, pygments_dark_style = "friendly", "monokai"


def contents(page: str, groups: dict[str, list[str]]) -> str:
    """Return the directives that put the pages of *groups* below *page*."""
    text = ""
    for caption, patterns in groups.items():
        found = [
            path.relative_to(ROOT).with_suffix("").as_posix()
            for pattern in patterns
            for path in sorted(ROOT.glob(f"{pattern}.md"))
        ]
        listed = "".join(f"/{name}\n" for name in found if name != page)
        named = f":caption: {caption}\n" if caption else ""
        text += f"\n\n```{{toctree}}\n:hidden:\n{named}\n{listed}```\n"
    return text


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Give *page* its part of the list; a flow its chart's prompts as they are written."""
    del app
    if page.startswith("examples/flows/") and not page.endswith("README"):
        source[0] = f"# {Path(page).name}\n\n````text\n{source[0]}\n````\n"
        chart = re.search(r"^```mermaid\n.*?^```\n", source[0], re.DOTALL | re.MULTILINE)
        source[0] = source[0].replace("\n\n", f"\n\n{chart[0] if chart else ''}\n", 1)
    if page in PAGES:
        source[0] += contents(page, PAGES[page])


def draw_charts(app: Sphinx, document: nodes.document) -> None:
    """Put pictures in the place of Mermaid charts; those that are no flowcharts stay text."""
    del app
    for block in list(document.findall(nodes.literal_block)):
        if block.get("language") == "cron":
            block["language"] = "text"
        if block.get("language") != "mermaid":
            continue
        block["language"] = "text"
        with tempfile.TemporaryDirectory() as folder:
            chart, svg = Path(folder, "workflow.mmd"), Path(folder, "workflow.svg")
            chart.write_text(block.astext())
            command = [sys.executable, "-m", "sequencer", "plan", chart.name, "--svg", svg.name]
            subprocess.run(command, cwd=folder, check=False, capture_output=True)
            if svg.exists():
                html = f'<div style="overflow-x: auto">{svg.read_text()}</div>'
                block.replace_self(nodes.raw("", html, format="html"))


def add_front(app: Sphinx, error: Exception | None) -> None:
    """Let the address of the folder show the first page."""
    if error is None:
        shutil.copyfile(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what is done at each point of a build."""
    app.connect("source-read", add_contents)
    app.connect("doctree-read", draw_charts)
    app.connect("build-finished", add_front)
    return {"parallel_read_safe": True}
