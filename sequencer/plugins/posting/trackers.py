"""The sinks for issue trackers: a GitHub issue or pull request, and a session in Linear.

GitHub comments are permanent and cause email, so thoughts and actions are not posted there.
GitHub has no idempotency keys: each comment ends with a mark, and if an earlier try may have
arrived, the newest comments are searched for the mark first.

In Linear, thoughts and actions are ephemeral: the next one replaces them. The id of a result is
made from its key, so Linear answers a second try with a conflict. The shapes follow Linear's
published schema and its page "Developing the Agent Interaction".

Not promised: only one comment per result, if more than `SEARCHED` other comments came meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from sequencer.plugins.posting.protocol import Activity, ActivityType, Post, Refused, Unreachable
from sequencer.plugins.posting.web import (
    Answer,
    HttpSink,
    Web,
    judge,
    limit_pause,
    parse_number,
    retry_after_s,
)

API_URL = "https://api.github.com"
API_VERSION = "2022-11-28"
SEARCHED = 500
"""Maximum number of comments since the result that are searched for its mark."""
PAGE = 100
SECONDARY_PAUSE_S = 60.0
"""GitHub's advice if a limit is reached and no header gives a time."""
_FORBIDDEN, _TOO_MANY = 403, 429
_CLOCKS_APART = timedelta(hours=1)


def format_mark(key: str) -> str:
    """Return the HTML comment that marks a posted result.

    >>> format_mark("run:3:0"), format_mark("a--b>:3:0")
    ('<!-- sequencer:run:3:0 -->', '<!-- sequencer:a-_b_:3:0 -->')
    """
    safe_key = re.sub(r"[^A-Za-z0-9:._-]", "_", key).replace("--", "-_")
    return f"<!-- sequencer:{safe_key} -->"


class GithubSink(HttpSink):
    """Posts comments to one issue."""

    kind: ClassVar[str] = "github"
    max_chars: ClassVar[int] = 60_000
    """GitHub accepts 65,536 characters per comment."""
    takes_thoughts: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        *,
        token: str,
        repository: str,
        issue: int,
        api_url: str = API_URL,
        web: Web | None = None,
    ) -> None:
        """Comment on *issue* of *repository* (``owner/name``)."""
        owner, _, repository_name = repository.partition("/")
        place = f"repos/{quote(owner, safe='')}/{quote(repository_name, safe='')}"
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": API_VERSION,
        }
        super().__init__(
            name, f"{api_url.rstrip('/')}/{place}/issues/{issue}/comments", headers, web
        )

    def post(self, post: Post) -> None:
        """Post a result as a comment, unless it exists; thoughts and actions are ignored.

        Raises: see `Sink.post`.
        """
        if post.key is None:
            return
        if post.may_be_there and self._has_comment(format_mark(post.key), post.activity.at):
            return
        body = f"{result_text(post.activity)}\n\n{format_mark(post.key)}"
        judge_github(self._send({"body": body}))

    def _has_comment(self, mark: str, start_time: str) -> bool:
        """Return whether a comment since *start_time* ends with *mark*.

        Only the end is checked: the text above is from an agent, which could forge a mark.
        """
        query = {"since": _subtract_clock_skew(start_time), "per_page": str(PAGE)}
        for page in range(1, SEARCHED // PAGE + 1):
            url = f"{self._url}?{urlencode({**query, 'page': str(page)})}"
            answer = self._web.send("GET", url, self._headers)
            judge_github(answer)
            comments = _parse_comments(answer.text)
            bodies = (str(comment.get("body", "")) for comment in comments)
            if any(body.rstrip().endswith(mark) for body in bodies):
                return True
            if len(comments) < PAGE:
                break
        return False


def judge_github(answer: Answer) -> None:
    """Check that *answer* is a success.

    Raises:
        Unreachable, Refused: see `Sink.post`. A limit is status 403 or 429.
    """
    if answer.status in (_FORBIDDEN, _TOO_MANY):
        pause = _github_pause(answer)
        if pause is not None:
            raise Unreachable("GitHub's rate limit is reached", pause)
    judge(answer)


def _github_pause(answer: Answer) -> float | None:
    """Return the pause for the rate limit in *answer*; None: it is not about a limit."""
    pause_s = retry_after_s(answer)
    if pause_s is not None:
        return pause_s
    if answer.headers.get("x-ratelimit-remaining", "").strip() == "0":
        reset = parse_number(answer.headers.get("x-ratelimit-reset"))
        return SECONDARY_PAUSE_S if reset is None else limit_pause(reset - time.time())
    is_limit = answer.status == _TOO_MANY or "rate limit" in answer.text.lower()
    return SECONDARY_PAUSE_S if is_limit else None


def _subtract_clock_skew(timestamp: str) -> str:
    """Return a time safely before *timestamp*: this machine's clock may differ from GitHub's."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        moment = datetime.now(UTC) - timedelta(days=7)
    return (moment.astimezone(UTC) - _CLOCKS_APART).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse_comments(text: str) -> list[dict[str, Any]]:
    try:
        comments = json.loads(text)
    except (ValueError, RecursionError):
        comments = None
    if not isinstance(comments, list):
        # Without the list, the comment may exist already, and posting could duplicate it.
        raise Unreachable("the answer is not from GitHub")
    return [comment for comment in comments if isinstance(comment, dict)]


_MARK = re.compile(r"([\\`*_{}\[\]<>#|~@])")


def escape_markdown(text: str) -> str:
    r"""Return *text* as Markdown that shows it as it is, on one line.

    >>> escape_markdown("fix_all *now*\n@team")
    'fix\\_all \\*now\\* \\@team'
    """
    return _MARK.sub(r"\\\1", " ".join(text.split()))


def result_text(activity: Activity) -> str:
    """Return a result as text: a title with the step, the body, figures, and the question."""
    # The end of a flowchart's or a team's run does not belong to a step.
    step = f"**{escape_markdown(activity.step)}**" if activity.step else ""
    title = f"{step} {escape_markdown(activity.title)}".strip()
    metrics = "" if activity.metrics is None else activity.metrics.format_text(escape_markdown)
    parts = (title, activity.body.strip(), metrics, activity.question)
    return "\n\n".join(part for part in parts if part)


LINEAR_URL = "https://api.linear.app/graphql"
MUTATION = (
    "mutation AgentActivityCreate($input: AgentActivityCreateInput!) "
    "{ agentActivityCreate(input: $input) { success } }"
)
COMMENT = (
    "mutation CommentCreate($input: CommentCreateInput!) "
    "{ commentCreate(input: $input) { success } }"
)
_PERSONAL_KEY = "lin_api_"
"""Prefix of a personal key, which is sent unchanged; the token of an app is a bearer token."""
_RESETS = ("requests", "complexity", "endpoint-requests")
_TEMPORARY = frozenset({"INTERNAL_SERVER_ERROR", "LOCK_TIMEOUT", "SERVICE_UNAVAILABLE"})
_ERRORS_IN_BODY = frozenset({200, 400})
_CREDENTIALS = frozenset({"AUTHENTICATION_ERROR", "FORBIDDEN"})


def activity_id(key: str) -> str:
    """Return the UUID of the result with *key*: always the same; version 4, as Linear requires.

    >>> activity_id("run:3:0") == activity_id("run:3:0"), uuid.UUID(activity_id("run:3:0")).version
    (True, 4)
    """
    return str(uuid.UUID(bytes=hashlib.sha256(key.encode()).digest()[:16], version=4))


def _authorization(token: str) -> str:
    return token if token.startswith(_PERSONAL_KEY) else f"Bearer {token}"


class LinearSink(HttpSink):
    """Posts to one agent session."""

    kind: ClassVar[str] = "linear"
    max_chars: ClassVar[int] = 60_000
    takes_thoughts: ClassVar[bool] = True

    def __init__(
        self, name: str, token: str, session_id: str, url: str = LINEAR_URL, web: Web | None = None
    ) -> None:
        """Post to the agent session *session_id* with an app's *token*."""
        super().__init__(name, url, {"Authorization": _authorization(token)}, web)
        self._session_id = session_id

    def post(self, post: Post) -> None:
        fields: dict[str, Any] = {
            "agentSessionId": self._session_id,
            "content": build_content(post.activity),
        }
        known_id = None if post.key is None else activity_id(post.key)
        if known_id is None:
            fields["ephemeral"] = True
        else:
            fields["id"] = known_id
        request = {"query": MUTATION, "variables": {"input": fields}}
        answer = self._send(request)
        judge_linear(answer, known_id)


class LinearCommentSink(HttpSink):
    """Comments on one issue; the comment's id is made from the result's key."""

    kind: ClassVar[str] = "linear"
    max_chars: ClassVar[int] = 60_000
    takes_thoughts: ClassVar[bool] = False

    def __init__(
        self, name: str, token: str, issue: str, url: str = LINEAR_URL, web: Web | None = None
    ) -> None:
        """Comment on the *issue*, as ENG-42, with a *token*."""
        super().__init__(name, url, {"Authorization": _authorization(token)}, web)
        self._issue = issue

    def post(self, post: Post) -> None:
        """Post a result as a comment; thoughts and actions are ignored.

        Raises: see `Sink.post`.
        """
        if post.key is None:
            return
        known_id = activity_id(post.key)
        fields = {"id": known_id, "issueId": self._issue, "body": result_text(post.activity)}
        answer = self._send({"query": COMMENT, "variables": {"input": fields}})
        judge_linear(answer, known_id, "commentCreate")


def build_content(activity: Activity) -> dict[str, str]:
    """Return the ``content`` of the mutation's input."""
    kind = str(activity.type)
    if activity.type is ActivityType.ACTION:
        content = {"type": kind, "action": activity.action or "tool"}
        # The schema requires a parameter for every action.
        content["parameter"] = activity.parameter or ""
        return content if activity.result is None else {**content, "result": activity.result}
    if activity.type is ActivityType.THOUGHT and activity.is_ephemeral:
        return {"type": kind, "body": activity.body}
    return {"type": kind, "body": result_text(activity)}


def judge_linear(
    answer: Answer, known_id: str | None, mutation: str = "agentActivityCreate"
) -> None:
    """Check that *answer* to *mutation* says that the post exists, perhaps from an earlier try.

    Raises:
        Unreachable, Refused: see `Sink.post`. GraphQL reports errors with status 200 too,
            and limits with status 400.
    """
    document = _parse_object(answer.text)
    errors = _errors(document)
    codes = {str(_extensions(error).get("code")) for error in errors}
    if "RATELIMITED" in codes:
        raise Unreachable("Linear's rate limit is reached", _linear_pause(answer))
    if known_id is not None and any(_is_conflict(error, known_id) for error in errors):
        return
    if codes & _CREDENTIALS:
        raise Unreachable(f"Linear refuses the token: {_format_errors(errors)}")
    if codes & _TEMPORARY:
        raise Unreachable(f"Linear: {_format_errors(errors)}")
    if not errors or answer.status not in _ERRORS_IN_BODY:
        judge(answer)
    if errors:
        raise Refused(f"Linear: {_format_errors(errors)}", status=answer.status, answer=answer.text)
    payload = _object_in(_object_in(document, "data"), mutation)
    if payload.get("success") is False:
        raise Refused("Linear reports no success", status=answer.status, answer=answer.text)
    if payload.get("success") is not True:
        raise Unreachable("the answer is not from Linear")


def _linear_pause(answer: Answer) -> float:
    """Return the seconds until the reached limit is reset; Linear's headers have milliseconds."""
    pause_s = retry_after_s(answer)
    if pause_s is not None:
        return pause_s
    resets = []
    for name in _RESETS:
        remaining = parse_number(answer.headers.get(f"x-ratelimit-{name}-remaining"))
        reset = parse_number(answer.headers.get(f"x-ratelimit-{name}-reset"))
        if reset is not None and (remaining is None or remaining <= 0):
            resets.append(reset / 1000 - time.time())
    return limit_pause(max(resets, default=60.0))


def _is_conflict(error: dict[str, Any], known_id: str) -> bool:
    is_conflict = str(error.get("message", "")).lower().startswith("conflict on insert")
    texts = f"{error.get('message')} {_extensions(error).get('userPresentableMessage')}"
    return is_conflict and known_id in texts


def _format_errors(errors: list[dict[str, Any]]) -> str:
    texts = [
        _extensions(error).get("userPresentableMessage") or error.get("message") for error in errors
    ]
    return "; ".join(" ".join(str(text).split())[:200] for text in texts[:3])


def _extensions(error: dict[str, Any]) -> dict[str, Any]:
    return _object_in(error, "extensions")


def _object_in(fields: dict[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def _errors(document: dict[str, Any]) -> list[dict[str, Any]]:
    errors = document.get("errors")
    return (
        [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    )


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
