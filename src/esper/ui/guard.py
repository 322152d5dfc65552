"""Check every request before it is answered: method, host and token; and add headers to every answer."""

import hmac
import ipaddress
import json
from hashlib import sha256
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Return whether a name or address is this machine's own, which no other machine reaches."""
    try:
        return host.casefold() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Return whether a host is given as an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_of(header: str) -> str:
    """Return the host of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].casefold()
    return header.partition(":")[0].casefold()


def equal(given: str, known: str) -> bool:
    """Compare two secrets in a time that says nothing about them."""
    return hmac.compare_digest(*(sha256(x.encode("utf-8", "replace")).digest() for x in (given, known)))


class Guard:
    """Middleware that refuses what the server must not answer.

    Args:
        app: The application behind it.
        token: What a request must know; None: nothing.
        hosts: Names under which the server may be addressed, besides those of this machine. Another name in the Host
            header is a page of somebody else whose name was made to point here.
    """

    def __init__(self, app: ASGIApp, token: str | None = None, hosts: tuple[str, ...] = ()) -> None:
        self.app, self.token = app, token
        self.hosts = {host.casefold() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answered = self._refusal(scope) or self.app
        await answered(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not passed on; None for one that is."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return _problem("This page can only be read: use GET.", 405, {"Allow": "GET, HEAD"})
        if len(headers.getlist("host")) != 1 or not self._is_known(host_of(headers["host"])):
            return _problem("Open this page by its address or as localhost, not by another name.", 400)
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return _problem("A page of another site asked for this.", 400)
        return None if self.token is None else self._authorized(scope, headers, self.token)

    def _is_known(self, host: str) -> bool:
        return is_loopback(host) or host in self.hosts or (self.token is not None and is_address(host))

    def _authorized(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.casefold() == "bearer" and equal(bearer.strip(), token):
            return None
        given = _query(scope)
        if any(name == "token" and equal(value, token) for name, value in given):
            rest = urlencode([(name, value) for name, value in given if name != "token"])
            # one slash in front: with two, the rest would be another host
            answer = RedirectResponse(f"/{quote(scope['path'].lstrip('/'))}{'?' + rest if rest else ''}", 303)
            answer.set_cookie(_cookie(scope), _proof(token), httponly=True, samesite="strict", path="/")
            return answer
        if equal(Request(scope).cookies.get(_cookie(scope), ""), _proof(token)):
            return None
        return _problem("A token is needed: open the address that `esper ui` printed, with its ?token=.", 401)


def _query(scope: Scope) -> list[tuple[str, str]]:
    try:
        return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=50)
    except ValueError:
        return []


def _cookie(scope: Scope) -> str:
    """Return the name of the cookie: browsers share cookies between the ports of a machine."""
    return f"esper_ui_{(scope.get('server') or ('', 0))[1]}"


def _proof(token: str) -> str:
    """Return what the cookie holds: proof that the token is known, without the token."""
    return hmac.new(token.encode("utf-8", "replace"), b"esper ui", sha256).hexdigest()


def _problem(said: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps({"problem": said}), status, headers, media_type="application/json")
