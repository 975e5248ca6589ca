"""The JSON schema of orchestration.yaml, made of the schema's classes and the reference page.

``python -m tests.unit.settings.schema_of_the_file`` writes it into the package.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sequencer import Step
from sequencer.files.keys import known_keys
from sequencer.frozen.base import json_schema
from sequencer.plugins.teams.team import STEP_FIELDS
from sequencer.project.legacy import TEAM_KEYS, TOLERATE_KEY, tables
from sequencer.project.schema import Schema
from sequencer.project.sources import RENAMED

ROOT = Path(__file__).parents[3]
FILE = ROOT / "sequencer" / "builtin" / "orchestration.schema.json"
PAGE = ROOT / "docs" / "reference" / "configuration.md"
ROW = re.compile(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \| (.+) \|$", re.MULTILINE)
TEXT = {"type": "string"}
SHORT: dict[str, Any] = {
    "AgentSelection": TEXT,
    "WorkflowChoice": TEXT,
    "WorkflowDefinition": TEXT,
    "Step": TEXT,
    "Retry": {"type": "integer", "minimum": 1, "maximum": 100},
    "RouterMode": {"enum": ["default", "router", "first", "only"]},
}
"""What may stand where a mapping or a word of that class is expected."""


def made() -> str:
    whole = json_schema(Schema)
    kinds = whole["$defs"]
    kinds["Role"]["properties"].pop("step")
    kinds["Role"]["properties"] |= {
        name: field for name, field in kinds["Step"]["properties"].items() if name in STEP_FIELDS
    }
    for key in ("name", "requires_approval", "approval"):
        kinds["TaskEntry"]["properties"].pop(key)
    kinds["TaskEntry"]["properties"] |= {"id": {}, "blocked_by": {}}
    kinds["StepChange"]["properties"].pop("name")
    kinds["StepDefaults"]["properties"] = {
        name: field
        for name, field in kinds["StepDefaults"]["properties"].items()
        if name in known_keys(Schema, ("step_defaults",))
    }
    kinds["WorkflowDefinition"].pop("required", None)
    describe(whole)
    for written, kept in RENAMED.items():
        if kept[0] in ("limits", "retry"):
            kinds[{"limits": "RunLimits", "step_defaults": "StepDefaults"}[str(written[0])]][
                "properties"
            ][written[1]] = {"deprecated": True}
    old = tables()
    other = {*old.flat_keys, *old.commit_keys, *old.ignored_keys, TOLERATE_KEY}
    other |= {str(path[0]) for path in TEAM_KEYS}
    whole["properties"] |= {key: {"deprecated": True} for key in sorted(other)}
    whole["patternProperties"] = {"^(auto_?commit_|max_[a-z_]+_bytes$)": {"deprecated": True}}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    head |= {"title": "orchestration.yaml of sequencer"}
    whole["properties"]["setup"]["items"] = {}
    return json.dumps({**head, **plain(whole)}, ensure_ascii=False, separators=(",", ":")) + "\n"


def rows(title: str) -> dict[str, str]:
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    # A sentence that is nothing but a link leads nowhere from an editor.
    bare = re.compile(r"(?<=\.) (?:\[[^\]]+\]\([^)]+\)\.?|See below\.)(?= |$)")
    links = re.compile(r"\[([^\]]+)\]\([^)]+\)")
    return {key: links.sub(r"\1", bare.sub("", text)) for key, text in ROW.findall(section)}


def describe(whole: dict[str, Any]) -> None:
    """Let each key say what the reference page says about it."""
    tops = {"Step fields": "Step", "Workflows": "WorkflowDefinition", "Keys": None}
    for title, kind in tops.items():
        for key, text in rows(title).items():
            here = whole["$defs"][kind] if kind else whole
            for part in key.removeprefix("workflows.NAME.").split("."):
                here = target(here, whole)["properties"].get(part, {})
            if "description" not in here:
                here["description"] = text
    fields = whole["$defs"]["Step"]["properties"]
    for name in ("StepChange", "StepDefaults", "TaskEntry", "Role"):
        for key, field in whole["$defs"][name]["properties"].items():
            if key in fields and key in Step.model_fields:
                field.setdefault("description", fields[key].get("description", ""))


def target(here: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    for one in (here, *here.get("anyOf", ())):
        if "$ref" in one:
            found: dict[str, Any] = whole["$defs"][one["$ref"].rpartition("/")[2]]
            return found
    return here


def plain(value: Any, *, is_fixer: bool = False) -> Any:
    """Return *value* without what says nothing, and with the short forms."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {
        key: plain(one, is_fixer=key == "fixer")
        for key, one in value.items()
        if not (key == "title" and isinstance(one, str)) and not (key == "default" and one is None)
    }
    kind = str(found.get("$ref", "")).rpartition("/")[2]
    if kind in SHORT and not is_fixer:
        found["anyOf"] = [{"$ref": found.pop("$ref")}, SHORT[kind]]
    if set(found) >= {"properties"} and isinstance(found.get("description"), str):
        found["description"] = found["description"].split("\n")[0].replace("``", "")
    return found


if __name__ == "__main__":
    FILE.write_text(made(), encoding="utf-8")
