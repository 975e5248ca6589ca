"""HTTP requests, the meaning of their answers, and the webhook sink.

Credentials never follow a redirect, and certificates are verified. An answer is read up to a size
and a deadline, so that a slow sink can't block the others for long. A webhook's result has the
header ``Idempotency-Key``, so that the receiver recognizes a repeated one; with a secret, the
body is signed. `httpx2` is loaded with the first request.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from sequencer.plugins.posting.protocol import LONGEST_PAUSE_S, Post, Refused, Unreachable

if TYPE_CHECKING:
    import httpx2


TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 256 * 1024
_RETRYABLE = frozenset(
    {
        # Credentials or address are wrong: a person can fix them, so keep the activity.
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
        # Temporary.
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_EARLY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)


class Answer(Struct, frozen=True):
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    text: str

    @property
    def is_success(self) -> bool:
        """Return whether the request succeeded."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


class Web:
    """Sends requests and keeps the connections open."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        """Open no connection yet; *timeout_s* is for each part of a request."""
        self._timeout_s = timeout_s
        self._client: httpx2.Client | None = None

    def send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> Answer:
        """Send one request and return its answer, with any status.

        Raises:
            Unreachable: there was no answer; the request may have arrived.
        """
        import httpx2  # noqa: PLC0415 - takes 0.1 s, and most runs post nothing

        client = self._connect()
        deadline = time.monotonic() + 2 * self._timeout_s
        pieces, size = [], 0
        try:
            with client.stream(method, url, headers=headers, content=content) as response:
                for piece in response.iter_bytes():
                    pieces.append(piece)
                    size += len(piece)
                    if size > MAX_ANSWER_BYTES or time.monotonic() > deadline:
                        break
        except httpx2.TimeoutException as error:
            raise Unreachable(f"no answer within {self._timeout_s:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        fields = {name.lower(): value for name, value in response.headers.items()}
        text = b"".join(pieces)[:MAX_ANSWER_BYTES].decode("utf-8", "replace")
        return Answer(response.status_code, fields, text)

    def _connect(self) -> httpx2.Client:
        import httpx2  # noqa: PLC0415 - see `send`

        if self._client is None:
            try:
                self._client = httpx2.Client(timeout=self._timeout_s, follow_redirects=False)
            except (ImportError, OSError, ValueError) as error:
                # The environment names a proxy or certificates that can't be used.
                raise Unreachable(f"can't connect: {error}") from error
        return self._client

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None


def judge(answer: Answer, clock: Callable[[], float] = time.time) -> None:
    """Check that *answer* is a success.

    Raises:
        Unreachable: another try may help, or a person must fix the credentials or the address.
        Refused: the sink will never accept the activity.
    """
    if answer.is_success:
        return
    reason = f"HTTP {answer.status}"
    is_server = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
        # Don't follow the redirect: a token must not go to an address that no person has set.
        target = answer.headers.get("location", "somewhere else")
        raise Unreachable(f"{reason}: it redirects to {target}; set the url to that")
    if is_server or answer.status in _RETRYABLE:
        raise Unreachable(reason, retry_after_s(answer, clock))
    raise Refused(reason, status=answer.status, answer=answer.text)


def retry_after_s(answer: Answer, clock: Callable[[], float] = time.time) -> float | None:
    """Return the pause in ``Retry-After``, which is a number of seconds or a date."""
    header = answer.headers.get("retry-after", "").strip()
    if not header:
        return None
    seconds = parse_number(header)
    if seconds is None:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - clock()
        except (ValueError, OverflowError):
            return None
    return limit_pause(seconds)


def limit_pause(seconds: float) -> float:
    """Return *seconds* limited to a valid pause, because an answer may have any number."""
    return min(max(seconds, 0.0), LONGEST_PAUSE_S)


def parse_number(text: str | None) -> float | None:
    """Return *text* as a finite number, or None."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


SIGNATURE = "X-Sequencer-Signature"


def signature(secret: str, body: bytes) -> str:
    """Return the value of the header that proves the sender of *body*.

    >>> signature("s3cret", b"{}")[:23]
    'sha256=adbde1ce40c89c14'
    """
    digest = hmac.new(secret.encode("utf-8", "surrogateescape"), body, hashlib.sha256)
    return f"sha256={digest.hexdigest()}"


class HttpSink:
    """The base of sinks that post to a URL."""

    def __init__(self, name: str, url: str, headers: Mapping[str, str], web: Web | None) -> None:
        """Post to *url* with *headers*."""
        self.name = name
        self._url = url
        self._headers = {**headers, "User-Agent": "sequencer"}
        self._web = web or Web()

    def _send(self, fields: Mapping[str, Any]) -> Answer:
        headers = {**self._headers, "Content-Type": "application/json"}
        return self._web.send("POST", self._url, headers, json.dumps(fields).encode())

    def close(self) -> None:
        """Close the connections; the sink may be used again."""
        self._web.close()


class WebhookSink(HttpSink):
    """Posts to one URL."""

    kind: ClassVar[str] = "webhook"
    max_chars: ClassVar[int] = 250_000
    takes_thoughts: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        url: str,
        headers: Mapping[str, str],
        secret: str | None = None,
        web: Web | None = None,
    ) -> None:
        """Post to *url* with *headers*, signed with *secret* if there is one."""
        super().__init__(name, url, headers, web)
        self._secret = secret

    def post(self, post: Post) -> None:
        """Send *post* in one request, signed if there is a secret; any 2xx means success.

        Raises: see `Sink.post`.
        """
        body = json.dumps(post.document(), ensure_ascii=False).encode("utf-8", "replace")
        headers = {**self._headers, "Content-Type": "application/json; charset=utf-8"}
        if post.key is not None:
            headers["Idempotency-Key"] = post.key
        if self._secret is not None:
            headers[SIGNATURE] = signature(self._secret, body)
        judge(self._web.send("POST", self._url, headers, body))
