"""The sink that is an address of one's own: each activity is POSTed as a JSON document.

A result has the header ``Idempotency-Key``, by which the receiver knows one that came
twice. With a secret the body is signed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import ClassVar

from sequencer.activity.protocol import Post
from sequencer.activity.web import Web, judge

SIGNATURE = "X-Sequencer-Signature"


def signature(secret: str, body: bytes) -> str:
    """Return the value of the header that proves who sent *body*.

    >>> signature("s3cret", b"{}")[:23]
    'sha256=adbde1ce40c89c14'
    """
    digest = hmac.new(secret.encode("utf-8", "surrogateescape"), body, hashlib.sha256)
    return f"sha256={digest.hexdigest()}"


class WebhookSink:
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
        self.name = name
        self._url = url
        self._headers = dict(headers)
        self._secret = secret
        self._web = web or Web()

    def post(self, post: Post) -> None:
        """See `Sink.post`; every 2xx is taken for yes."""
        body = json.dumps(post.document(), ensure_ascii=False).encode("utf-8", "replace")
        headers = {
            **self._headers,
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "sequencer",
        }
        if post.key is not None:
            headers["Idempotency-Key"] = post.key
        if self._secret is not None:
            headers[SIGNATURE] = signature(self._secret, body)
        judge(self._web.send("POST", self._url, headers, body))

    def close(self) -> None:
        """See `Sink.close`."""
        self._web.close()
