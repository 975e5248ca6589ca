"""``activity:`` in orchestration.yaml: the sinks, and the fields that each kind needs.

A secret is never a value in the file, only the name of a variable. This name must end like the
name of a secret (``_TOKEN``), because redaction finds secrets by the names of their variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Struct

from sequencer import extensions
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import AfterValidator, Field, Refusal, model_validator
from sequencer.model.addresses import may_receive_secrets
from sequencer.model.step import Name

_SECRET_NAME = re.compile(r"(?:[A-Za-z0-9_]*_)?(?:KEY|TOKEN|SECRET|PASSWORD)", re.IGNORECASE)
_TELLTALE = re.compile(
    r"authorization|proxy-authorization|cookie|.*(?:key|token|secret|password|signature)",
    re.IGNORECASE,
)
_OWN_HEADERS = frozenset(
    {"content-length", "content-type", "host", "idempotency-key", "transfer-encoding"}
    | {"x-sequencer-signature"}
)


def _check_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ValueError("expected a full http:// or https:// address")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "an address can't hold credentials; headers_env takes them from a variable"
        )
    return text


def _check_secret_name(name: str) -> str:
    if _SECRET_NAME.fullmatch(name) is None:
        raise ValueError(
            "the name of a variable with a secret must end in _TOKEN, _KEY, _SECRET or _PASSWORD; "
            "then its value is hidden in logs"
        )
    return name


_VARIABLE = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)
VariableName = Annotated[str, _VARIABLE]
SecretName = Annotated[str, _VARIABLE, AfterValidator(_check_secret_name)]
Url = Annotated[
    str,
    Field(min_length=1, max_length=2000, pattern=r"^[!-~]+$"),
    AfterValidator(_check_url),
]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", max_length=100)]
HeaderValue = Annotated[str, Field(pattern=r"^[ -~\t]*$", max_length=2000)]


class _Kind(Struct, frozen=True):
    """The fields of an entry of one kind; each group of needed fields has alternatives."""

    needs: tuple[tuple[str, ...], ...]
    may: tuple[str, ...]


KINDS: Mapping[str, _Kind] = {
    "jsonl": _Kind((), ("path",)),
    "webhook": _Kind((("url",),), ("headers", "headers_env", "secret_env")),
    "linear": _Kind(
        (("agent_session_id", "agent_session_id_env", "from_request"),), ("token_env", "url")
    ),
    "github": _Kind(
        (("repository",), ("issue", "issue_env", "from_request")), ("token_env", "api_url")
    ),
}
"""Fields by kind."""


_OF_OTHERS = _Kind((), ("path", "url", "headers", "headers_env", "secret_env", "token_env"))
"""The fields that an entry may have if a package provides its kind."""


def _check_kind(kind: str) -> str:
    if kind not in KINDS and not extensions.has_provider(extensions.SINKS, kind):
        kinds = (*KINDS, *extensions.names(extensions.SINKS))
        raise Refusal.from_unknown_name("sink kind", kind, kinds)
    return kind


class SinkOptions(Frozen):
    """One of ``activity.sinks``."""

    kind: Annotated[str, AfterValidator(_check_kind)]
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """jsonl: a file in the project or the run's folder; None: ``activity.jsonl`` in the latter."""
    url: Url | None = None
    """webhook: the address to post to. linear: the address of another API."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    headers_env: dict[HeaderName, SecretName] = Field(default_factory=dict)
    """Header -> variable with its value."""
    secret_env: SecretName | None = None
    """webhook: variable with the key for the signature."""
    token_env: SecretName | None = None
    """linear, github: variable with the token; None: LINEAR_TOKEN, GITHUB_TOKEN."""
    agent_session_id: Annotated[str, Field(max_length=100, pattern=r"^[\w-]+$")] | None = None
    agent_session_id_env: VariableName | None = None
    repository: (
        Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}/[A-Za-z0-9._-]{1,100}$")] | None
    ) = None
    """owner/name"""
    issue: int | None = Field(default=None, ge=1, le=2**53)
    issue_env: VariableName | None = None
    from_request: bool | None = None
    """linear, github: use the issue that the run was made from; other runs don't use the sink."""
    api_url: Url | None = None

    @model_validator(mode="after")
    def _check_kind_options(self) -> SinkOptions:
        kind_fields = KINDS.get(self.kind, _OF_OTHERS)
        allowed_names = {
            "kind",
            *kind_fields.may,
            *(name for group in kind_fields.needs for name in group),
        }
        foreign_names = sorted(self.model_fields_set - allowed_names)
        if foreign_names:
            names_text = ", ".join(sorted(allowed_names - {"kind"}))
            raise ValueError(f"kind {self.kind} has no {foreign_names[0]}; it has {names_text}")
        for group in kind_fields.needs:
            chosen_names = [name for name in group if getattr(self, name) not in (None, False)]
            if not chosen_names:
                message = f"kind {self.kind} needs {' or '.join(group)}"
                # A separate type: if the value was refused too, only that error is reported.
                raise Refusal("sink_missing", {"message": message}, "{message}")
            if len(chosen_names) > 1:
                raise ValueError(f"{' and '.join(chosen_names)} are alternatives; leave one out")
        return self

    @model_validator(mode="after")
    def _check_header_names(self) -> SinkOptions:
        for name in (*self.headers, *self.headers_env):
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"header {name} is set by the sink itself")
        for name in self.headers:
            if _TELLTALE.fullmatch(name):
                raise ValueError(f"header {name} is a secret; headers_env takes it from a variable")
        if self.repository is not None and self.repository.split("/")[1] in (".", ".."):
            raise ValueError("write repository as owner/name")
        return self

    @model_validator(mode="after")
    def _check_encryption(self) -> SinkOptions:
        has_secret = bool(self.token_variable or self.headers_env)
        for name in ("url", "api_url"):
            address = getattr(self, name)
            if has_secret and address is not None and not may_receive_secrets(address):
                raise ValueError(f"{name}: a secret is sent there, so it must start with https://")
        return self

    @property
    def token_variable(self) -> str:
        """Return the variable with the token; empty for a kind without one."""
        default = {"linear": "LINEAR_TOKEN", "github": "GITHUB_TOKEN"}.get(self.kind, "")
        return self.token_env or default


class ActivityOptions(Frozen):
    """``activity:``, where the events of a run are posted."""

    sinks: dict[Name, SinkOptions] = Field(default_factory=dict)
    thoughts: bool = True
    """Post thoughts and actions too, at most one in ``min_interval_s``."""
    min_interval_s: float = Field(default=2.0, ge=0, le=3_600, allow_inf_nan=False)
    """Seconds between two thoughts or actions of a run, of any agent; for each sink."""
    comment_tools: tuple[Annotated[str, Field(min_length=1)], ...] = (
        "mcp__linear__create_comment",
        "mcp__github__add_issue_comment",
    )
    """Tools that an agent can't use in a step with ``no_comment``."""
    drain_s: float = Field(default=5.0, ge=0, le=300, allow_inf_nan=False)
    """For this many seconds after its end, an invocation still starts posts."""


class SinkPlace(Struct, frozen=True):
    """The folders of a run and its project, and the environment."""

    run_folder: Path
    project_dir: Path
    environment: Mapping[str, str]
    identifier: str = ""
    """The issue that the run was made from: ``acme/app#7``, ``ENG-42``."""
    session: str = ""
    """The session of the agent in Linear that was asked for the run."""
