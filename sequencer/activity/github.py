"""The sink that is a GitHub issue or pull request: a comment for each result.

Comments stay for ever and send mails, so thoughts and actions are not posted here. GitHub
knows no idempotency key: each comment ends with a mark, and where an earlier try may have
arrived the newest comments are searched for it first.

Not promised: one comment only, where more than `LOOKED_AT` others came in between.
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from sequencer.activity.markdown import result_text
from sequencer.activity.protocol import Post, Unreachable
from sequencer.activity.web import Answer, Web, bounded, judge, number, retry_after_s

API_URL = "https://api.github.com"
API_VERSION = "2022-11-28"
LOOKED_AT = 500
"""Comments since the result that are searched for its mark."""
PAGE = 100
SECONDARY_PAUSE_S = 60.0
"""GitHub's own advice where a limit is reached and no header says for how long."""
_FORBIDDEN, _TOO_MANY = 403, 429
_CLOCKS_APART = timedelta(hours=1)


def mark(key: str) -> str:
    """Return the comment in HTML by which a result is known again.

    >>> mark("run:3:0"), mark("a--b>:3:0")
    ('<!-- sequencer:run:3:0 -->', '<!-- sequencer:a-_b_:3:0 -->')
    """
    safe = re.sub(r"[^A-Za-z0-9:._-]", "_", key).replace("--", "-_")
    return f"<!-- sequencer:{safe} -->"


class GithubSink:
    """Posts comments to one issue."""

    kind: ClassVar[str] = "github"
    max_chars: ClassVar[int] = 60_000
    """GitHub takes 65,536 in all."""
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
        self.name = name
        owner, _, repository_name = repository.partition("/")
        place = f"repos/{quote(owner, safe='')}/{quote(repository_name, safe='')}"
        self._url = f"{api_url.rstrip('/')}/{place}/issues/{issue}/comments"
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": API_VERSION,
            "User-Agent": "sequencer",
        }
        self._web = web or Web()

    def post(self, post: Post) -> None:
        """See `Sink.post`; a thought or an action is left out."""
        if post.key is None:
            return
        if post.may_be_there and self._is_there(mark(post.key), post.activity.at):
            return
        body = f"{result_text(post.activity)}\n\n{mark(post.key)}"
        headers = {**self._headers, "Content-Type": "application/json"}
        content = json.dumps({"body": body}).encode()
        judge_answer(self._web.send("POST", self._url, headers, content))

    def _is_there(self, wanted: str, at: str) -> bool:
        """Return whether a comment since *at* ends with *wanted*.

        At the end, because what an agent wrote stands above it and must not pass for a mark.
        """
        query = {"since": _since(at), "per_page": str(PAGE)}
        for page in range(1, LOOKED_AT // PAGE + 1):
            url = f"{self._url}?{urlencode({**query, 'page': str(page)})}"
            answer = self._web.send("GET", url, self._headers)
            judge_answer(answer)
            comments = _comments(answer.text)
            if any(str(c.get("body", "")).rstrip().endswith(wanted) for c in comments):
                return True
            if len(comments) < PAGE:
                break
        return False

    def close(self) -> None:
        """See `Sink.close`."""
        self._web.close()


def judge_answer(answer: Answer) -> None:
    """Return if *answer* is a success.

    Raises:
        Unreachable, Refused: see `Sink.post`. A limit is status 403 or 429.
    """
    if answer.status in (_FORBIDDEN, _TOO_MANY):
        pause = _pause(answer)
        if pause is not None:
            raise Unreachable("GitHub's rate limit is reached", pause)
    judge(answer)


def _pause(answer: Answer) -> float | None:
    """Return how long to wait for the limit that *answer* tells of; None: it tells of none."""
    asked = retry_after_s(answer)
    if asked is not None:
        return asked
    if answer.headers.get("x-ratelimit-remaining", "").strip() == "0":
        reset = number(answer.headers.get("x-ratelimit-reset"))
        return SECONDARY_PAUSE_S if reset is None else bounded(reset - time.time())
    is_limit = answer.status == _TOO_MANY or "rate limit" in answer.text.lower()
    return SECONDARY_PAUSE_S if is_limit else None


def _since(at: str) -> str:
    """Return a time safely before *at*: the clock here need not be GitHub's."""
    try:
        when = datetime.fromisoformat(at)
    except ValueError:
        when = datetime.now(UTC) - timedelta(days=7)
    return (when.astimezone(UTC) - _CLOCKS_APART).strftime("%Y-%m-%dT%H:%M:%SZ")


def _comments(text: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        # Without the list nobody knows whether it is there; posting could double it.
        raise Unreachable("the answer is not GitHub's")
    return [comment for comment in found if isinstance(comment, dict)]
