"""Access to the page's server: only a browser that opened it under an allowed host name. Every other request gets 403.

The page compiles and runs code, so a website in the same browser must not reach it: neither under its own name that resolves to
this machine (a foreign Host), nor from its pages (a foreign Origin). This check runs before Streamlit's own checks. Those cover
only the WebSocket, and they ask an external service for this machine's address before they refuse an Origin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from streamlit import config

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_EVERYWHERE = ("", "0.0.0.0", "::")  # addresses for listening on all interfaces; they are not host names

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class KnownHostsOnly:
    """ASGI middleware: 403 for an HTTP request or a WebSocket with a foreign Host, or with an Origin that is not this page."""

    def __init__(self, app: Callable[[_Message, _Receive, _Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        why = refusal(scope["headers"]) if scope["type"] in ("http", "websocket") else ""
        if not why:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            # Closed before it is accepted, so the server answers 403.
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        else:
            await send({"type": "http.response.start", "status": 403,
                        "headers": [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]})
            await send({"type": "http.response.body", "body": f"{why}\n".encode()})


def refusal(headers: list[tuple[bytes, bytes]]) -> str:
    """Why a request with these headers is refused; "" if it is allowed."""
    hosts = [value.decode("latin-1") for name, value in headers if name.lower() == b"host"]
    origins = [value.decode("latin-1") for name, value in headers if name.lower() == b"origin"]
    if len(hosts) != 1 or not _known(hosts[0]):
        return (f"This server does not accept the host name {', '.join(hosts)[:100]!r}. Open it as localhost or 127.0.0.1, or "
                f"start the server with --server.allowedHosts and that name.")
    if any(_netloc(origin) != hosts[0].lower() for origin in origins):
        return f"A page of {', '.join(origins)[:100]!r} may not use this server."
    return ""


def known_hosts() -> set[str]:
    """The loopback names, `server.address` and `server.allowedHosts`."""
    asked = (config.get_option("server.address") or "", *config.get_option("server.allowedHosts"))
    return {*LOOPBACK, *(name.strip().lower() for name in asked)} - {*_EVERYWHERE}


def _known(host: str) -> bool:
    try:
        parts = urlsplit(f"//{host}")
        name = (parts.hostname or "").rstrip(".")
        _ = parts.port  # raises ValueError if the port is not a number
    except ValueError:
        return False
    if parts.netloc != host or parts.username is not None:
        return False
    known = known_hosts()
    return name in known or "*" in known or any(k.startswith("*.") and name.endswith(k[1:]) for k in known)


def _netloc(origin: str) -> str:
    """`http://127.0.0.1:8501` -> `127.0.0.1:8501`; "" for `null` and for anything that is not an address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
