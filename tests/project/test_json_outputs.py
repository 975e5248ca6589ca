"""What commands print with --json is what its schema in the documents says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import jsonschema
import pytest

from sequencer import open_run
from tests.clones import git
from tests.project.documents import ROOT
from tests.unit.cli.calling import call, list_verbs, project
from tests.unit.store import broken_runs

SCHEMAS: dict[str, Any] = json.loads((ROOT / "docs" / "reference" / "json.schema.json").read_text())
CONFIGURATION = """\
agent: rehearsal
agents:
  broken: {kind: command, argv: ["false"], free: true}
workflows:
  asks: flows/asks.md
  short: {kind: procedure, steps: [supervisor]}
  careful: {kind: procedure, steps: [supervisor, {name: main, requires_approval: true}, reviewer]}
  bad: {kind: procedure, steps: [{name: main, agent: broken}]}
schedules:
  ended: {workflow: short, at: "0 2 * * *"}
  yearly: {workflow: short, at: "0 2 1 1 *"}
"""
FLOW = """\
---
id: asks
---

```mermaid
flowchart TD
  a[Build] --> b{{Is it good?}}
  b -->|yes| c[Ship]
  b -->|no| a
```

### a
Build it.

### b
Is it good?

### c
Ship it.
"""
ENDS = {"tick --run bad": 1, "tick --run gate": 4}
"""Exit codes of those that print facts and end with another one than 0."""


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = project(tmp_path_factory.mktemp("json") / "p", CONFIGURATION)
    (folder / "flows").mkdir()
    (folder / "flows" / "asks.md").write_text(FLOW)
    assert call(folder, "run", "--max-steps", "3", "--quiet").code == 0
    assert call(folder, "run", "--run", "gate", "--workflow", "careful", "--quiet").code == 4
    assert call(folder, "run", "--run", "ended", "--workflow", "short", "--quiet").code == 0
    asked = call(folder, "run", "--run", "flow", "--workflow", "asks", "--quiet")
    assert asked.code == 4, asked.err
    assert call(folder, "run", "--run", "bad", "--workflow", "bad", "--quiet").code == 1
    return folder


def _changed(folder: Path) -> None:
    text = f"workflow: {{name: review_cadence, review_every_n: 2}}\n{CONFIGURATION}"
    (folder / "orchestration.yaml").write_text(text)


def _shared(folder: Path) -> None:
    with (folder / "orchestration.yaml").open("a") as file:
        file.write("store: {kind: git}\n")
    shutil.rmtree(folder / "sync")
    shutil.rmtree(folder / "logs")
    remote = folder.with_name("remote")
    git(folder.parent, "init", "-q", "--bare", str(remote))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "first")
    git(folder, "remote", "add", "origin", str(remote))
    git(folder, "push", "-q", "origin", "main")
    ended = call(folder, "run", "--max-steps", "1", "--quiet")
    assert ended.code == 0, ended.err


def _broken(folder: Path) -> None:
    (folder / "sync" / "state.json").write_text("{")


BEFORE: dict[str, Callable[[Path], object]] = {
    "resume": lambda folder: call(folder, "stop", "--pause"),
    "adopt": _changed,
    "takeover --force": lambda folder: broken_runs.hold(open_run(folder).store),
    "sync": _shared,
    "plan --commit": lambda folder: git(folder, "init", "-q", "-b", "main"),
    "repair --apply --accept-journal": _broken,
    "trust --list": lambda folder: call(folder, "trust", "--yes"),
}
"""What is done first, each in a copy of its own."""


def printed(worked: Path, words: str, folder: Path) -> list[Any]:
    """Return each document that ``sequencer WORDS --json`` prints, in a copy at *folder*."""
    shutil.copytree(worked, folder)
    if words in BEFORE:
        BEFORE[words](folder)
    ended = call(folder, *words.split(), "--json")
    assert ended.code == ENDS.get(words, 0), ended.err
    return [json.loads(line) for line in ended.out.splitlines() if line]


def schema_of(words: str) -> dict[str, Any]:
    return {**SCHEMAS, "$ref": f"#/$defs/{quote(words.replace('/', '~1'))}"}


def known_keys(schema: dict[str, Any]) -> set[str]:
    """Return the keys that *schema* tells of an object, or of the entries of a list."""
    while "$ref" in schema:
        *way, last = unquote(schema["$ref"]).removeprefix("#/$defs/").rsplit("/items", 1)
        schema = SCHEMAS["$defs"][way[0]]["items"] if way else SCHEMAS["$defs"][last]
    if "anyOf" in schema:
        return set().union(*map(known_keys, schema["anyOf"]))
    return known_keys(schema["items"]) if "items" in schema else set(schema["properties"])


@pytest.mark.parametrize("words", SCHEMAS["$defs"])
def test_each_output_matches_its_schema(worked: Path, words: str, tmp_path: Path) -> None:
    found = printed(worked, words, tmp_path / "p")
    assert found
    for document in found:
        jsonschema.Draft202012Validator(schema_of(words)).validate(document)
        # What nobody wrote down is nothing that a program can rely on.
        for each in document if isinstance(document, list) else [document]:
            assert each.keys() <= known_keys(SCHEMAS["$defs"][words])


def test_each_command_with_json_has_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS)
    with_json = {
        name
        for name in list_verbs()
        if re.search(r"^  --json\b", call(ROOT, name, "--help-all").out, re.MULTILINE)
    }
    assert with_json
    assert with_json == {words.split()[0] for words in SCHEMAS["$defs"]}


def test_a_schema_refuses_another_commands_output(worked: Path, tmp_path: Path) -> None:
    (status,) = printed(worked, "status", tmp_path / "p")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(status, schema_of("plan"))
    del status["step_index"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(status, schema_of("status"))
