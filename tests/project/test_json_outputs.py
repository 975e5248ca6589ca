"""What commands print with --json is what its schema in the documents says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.project.documents import ROOT
from tests.unit.cli.calling import call, project

SCHEMAS: dict[str, Any] = json.loads((ROOT / "docs" / "reference" / "json.schema.json").read_text())
CONFIGURATION = """\
agent: rehearsal
workflows:
  short: {kind: procedure, steps: [supervisor]}
  careful: {kind: procedure, steps: [supervisor, {name: main, requires_approval: true}, reviewer]}
"""


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = project(tmp_path_factory.mktemp("json") / "p", CONFIGURATION)
    assert call(folder, "run", "--max-steps", "3", "--quiet").code == 0
    assert call(folder, "run", "--run", "gate", "--workflow", "careful", "--quiet").code == 4
    assert call(folder, "run", "--run", "ended", "--workflow", "short", "--quiet").code == 0
    return folder


def printed(folder: Path, words: str) -> list[Any]:
    """Return each document that ``sequencer WORDS --json`` prints."""
    ended = call(folder, *words.split(), "--json")
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines() if line]


@pytest.mark.parametrize("words", SCHEMAS["$defs"])
def test_each_output_is_as_its_schema_says(worked: Path, words: str) -> None:
    schema = SCHEMAS["$defs"][words]
    jsonschema.Draft202012Validator.check_schema(schema)
    found = printed(worked, words)
    assert found
    for document in found:
        jsonschema.validate(document, schema)
        # What nobody wrote down is nothing that a program can rely on.
        first = document[0] if isinstance(document, list) else document
        assert first.keys() <= schema.get("items", schema)["properties"].keys()


def test_a_schema_refuses_another_commands_output(worked: Path) -> None:
    (status,) = printed(worked, "status")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(status, SCHEMAS["$defs"]["plan"])
    del status["step_index"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(status, SCHEMAS["$defs"]["status"])
