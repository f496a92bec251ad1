"""The policy around the whole application: every HTTP and WebSocket request passes here first."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kandev.errors import Forbidden, KandevError, Unauthorized
from kandev.gateway.login import login_page
from kandev.gateway.security import PAGE_HEADERS, Caller, Policy, caller_of, token_in_query, without_token

STATUS = {
    "BAD_REQUEST": 400,
    "UNAUTHORIZED": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "UNKNOWN_ACTION": 404,
    "CONFLICT": 409,
    "VALIDATION_ERROR": 422,
    "UNAVAILABLE": 503,
    "TIMEOUT": 504,
}


def refusal(error: KandevError) -> Response:
    """Return the HTTP answer for an error, with the same body as on the WebSocket."""
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
    return JSONResponse(error.payload(), status_code=STATUS.get(error.code, 500), headers=headers)


class Guard:
    """ASGI middleware. A refused WebSocket gets an HTTP answer instead of a handshake."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, redirect, or pass on."""
        caller = caller_of(scope["headers"], scope["query_string"])
        answer = self._answer(scope, caller)
        sends = _with_headers(send)
        if answer is None:
            await self._app(scope, receive, sends)
        elif scope["type"] == "websocket":
            await receive()  # websocket.connect, which is answered without a handshake
            await answer(scope, receive, sends)
        else:
            await answer(scope, receive, sends)

    def _answer(self, scope: Scope, caller: Caller) -> Response | None:
        path: str = scope["path"]
        try:
            self._policy.check_place(caller)
            if scope["type"] == "http" and path == "/healthz":
                return None
            if scope["type"] == "http" and _is_page(path) and (token := token_in_query(caller.query)):
                return self._without_token(path, caller, token)
            self._policy.check_token(caller)
        except Unauthorized as error:
            return login_page() if _is_page(path) and _is_browser(scope) else refusal(error)
        except Forbidden as error:
            return refusal(error)
        return None

    def _without_token(self, path: str, caller: Caller, token: str) -> Response:
        """Swap a token in a page's address for a cookie, so that it stays in no history and no Referer."""
        query = without_token(caller.query)
        answer = RedirectResponse(f"{path}?{query}" if query else path, status_code=303)
        if self._policy.accepts(token):
            answer.headers["Set-Cookie"] = self._policy.cookie()
        answer.headers["Cache-Control"] = "no-store"
        return answer


def _is_page(path: str) -> bool:
    return path == "/" or path.startswith("/tasks/")


def _is_browser(scope: Scope) -> bool:
    """Tell whether a person looks at the answer: programs do not ask for HTML."""
    accepted = Headers(scope=scope).get("accept", "")
    return scope["type"] == "http" and "text/html" in accepted


def _with_headers(send: Send) -> Send:
    async def sends(message: Message) -> None:
        if message["type"] in {"http.response.start", "websocket.http.response.start"}:
            headers = MutableHeaders(scope=message)
            for name, value in PAGE_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sends
