"""Steps: how the settings of an agent's node are a step's fields."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from sequencer.model.step import ModelName, Name, Output, Retry, Step, ToolName
from sequencer.resolution.flowcharts.definition import STEP_FIELDS, RetrySettings
from sequencer.resolution.flowcharts.problems import Findings
from sequencer.resolution.flowcharts.sections import NodeSource

TOOLS: tuple[str, ...] = get_args(ToolName)
DEFAULT_INITIAL_DELAY_MS = 1000
DEFAULT_MAX_DELAY_MS = 60_000
_SECOND_MS = 1000
_PROVIDER: TypeAdapter[str] = TypeAdapter(Name)
_MODEL: TypeAdapter[str] = TypeAdapter(ModelName)


def step_of(name: str, source: NodeSource, retry: RetrySettings | None, findings: Findings) -> Step:
    """Return what the agent *name* runs; *retry* is what the front matter says.

    What can't be a step's field is told and left out.
    """
    values = source.values
    fields: dict[str, Any] = {field: getattr(values, field) for field in STEP_FIELDS}
    limit_ms = values.limit_ms
    fields |= {
        "text": source.prompt or None,
        "executor": values.agent or values.executor,
        "tools": _tools(name, source, findings),
        "timeout_s": None if limit_ms is None else limit_ms / _SECOND_MS,
        "retry": retry_of(retry, values.own_retry),
        "continue_session": values.continues or None,
        "output": _output(source),
    }
    fields |= _model(name, source, findings)
    # What nobody wrote is left to the defaults that a project has for its steps.
    written = {field: value for field, value in fields.items() if value is not None}
    try:
        return Step(name=name, **written)
    except ValidationError as refused:
        first = refused.errors()[0]
        at = source.section.prompt.line if source.section else 1
        detail = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        findings.error("E-NODE", name, detail, (at, 1))
        return Step.model_construct(name=name)


def retry_of(flow: RetrySettings | None, own: RetrySettings) -> Retry | None:
    """Return *own* laid over *flow*, field by field; None if neither says anything."""
    if flow is None and own == RetrySettings():
        return None
    base = flow or RetrySettings()

    def either(field: str, default: Any) -> Any:
        value = getattr(own, field)
        value = getattr(base, field) if value is None else value
        return default if value is None else value

    return Retry(
        max_attempts=either("max_attempts", 1),
        backoff=either("backoff", "fixed"),
        initial_delay_s=either("initial_delay", DEFAULT_INITIAL_DELAY_MS) / _SECOND_MS,
        max_delay_s=either("max_delay", DEFAULT_MAX_DELAY_MS) / _SECOND_MS,
    )


def _output(source: NodeSource) -> Output | None:
    written = source.values.whole_output
    if written.key is None and written.format is None and written.json_schema is None:
        return None
    return Output.model_validate(
        {"key": written.key, "format": written.format or "text", "schema": written.json_schema}
    )


def _tools(name: str, source: NodeSource, findings: Findings) -> dict[str, bool] | None:
    tools = source.values.tools
    for tool in tools or ():
        if tool not in TOOLS:
            at, hint = source.at("tools", tool), findings.known(tool, TOOLS)
            findings.error("E-TOOLS", name, f"there is no tool {tool!r}", at, hint)
    return None if tools is None else {tool: tools[tool] for tool in tools if tool in TOOLS}


def _model(name: str, source: NodeSource, findings: Findings) -> dict[str, str]:
    """Return provider and model of ``provider/name``, or the model alone."""
    written = source.values.model
    if written is None:
        return {}
    provider, slash, model = written.partition("/")
    try:
        if not slash:
            return {"model": _MODEL.validate_python(written)}
        return {
            "provider": _PROVIDER.validate_python(provider),
            "model": _MODEL.validate_python(model),
        }
    except ValidationError as refused:
        text = refused.errors()[0]["msg"].removeprefix("Value error, ")
        detail = f"{written!r} is no model: {text[:1].lower()}{text[1:]}"
        hint = "write provider/name, anthropic/claude-sonnet-4 for example"
        findings.error("E-MODEL", name, detail, source.at("model"), hint)
        return {}
