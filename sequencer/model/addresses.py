"""Which addresses a secret may be sent to."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def may_receive_secrets(url: str) -> bool:
    """Return whether a secret may be sent to *url*: by https, or to this machine itself.

    >>> [may_receive_secrets(u) for u in ("https://a.org", "http://127.0.0.1:8", "http://a.org")]
    [True, True, False]
    >>> [may_receive_secrets(f"http://[::ffff:{number}.0.0.1]/") for number in (127, 8)]
    [True, False]
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return (parts.scheme == "https" and host != "") or (
        parts.scheme == "http" and _is_this_machine(host)
    )


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    # Before 3.13, Python does not know that ::ffff:127.0.0.1 is this machine.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
