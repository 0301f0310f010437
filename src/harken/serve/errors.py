"""Errors as clients see them: the status, and the body that OpenAI's clients read, or a line."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from logging import getLogger
from types import MappingProxyType
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from harken.errors import AudioError, Cancelled, CheckpointNotFound, HarkenError, OptionError

log = getLogger("harken.serve")

NORMAL, POLICY_VIOLATION, TOO_BIG = 1000, 1008, 1009
SERVER_FAULT, RESTART, TRY_LATER = 1011, 1012, 1013
"""Codes with which a WebSocket is closed (RFC 6455, section 7.4.1, and the registry of IANA)."""
CLOSE_CODES = {413: TOO_BIG, 429: TRY_LATER, 500: SERVER_FAULT, 503: TRY_LATER}
"""Close codes of errors, by their status; a client's own errors are violations of policy."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the errors of a file system that takes no more."""
MAX_LINE_CHARS = 300


class RequestError(HarkenError):
    """A request that is refused.

    Parameters
    ----------
    message : str
        One line that names the field, the value and what is allowed.
    status : int
        Status of the HTTP response.
    type : str
        ``"invalid_request_error"``, ``"authentication_error"``, ``"rate_limit_error"`` or ``"server_error"``.
    code : str, optional
        A word for programs.
    param : str, optional
        Field of the request that is wrong.
    retry_after_s : float, optional
        Seconds after which it may succeed.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(_printable(message))
        self.status, self.type, self.code = status, type, code
        self.param = None if param is None else _printable(param)
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """Return the body of the response."""
        error = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def close_code(self) -> int:
        """Code to close a WebSocket with."""
        return RESTART if self.code == "draining" else CLOSE_CODES.get(self.status, POLICY_VIOLATION)

    def headers(self) -> dict[str, str]:
        """Return the headers of the response; they tell clients whether to try again."""
        if self.retry_after_s is None:
            return {"x-should-retry": "false"}
        return {"retry-after": str(max(1, round(self.retry_after_s)))}


def json_error(problem: RequestError) -> Response:
    """Return the response with an error as in OpenAI's API."""
    return JSONResponse(problem.body(), problem.status, problem.headers())


def plain_error(problem: RequestError) -> Response:
    """Return it for clients that take any body for subtitles, which a line without an arrow is not."""
    line = f"error: {problem}"[:MAX_LINE_CHARS].replace("-->", "->")
    return PlainTextResponse(f"{line}\n", problem.status, problem.headers())


def object_in(text: str | bytes, otherwise: RequestError, **reading: Any) -> dict[str, Any]:
    """Return the JSON object in a text of a client, read as by `json.loads`; raise the error if there is none."""
    try:
        value = json.loads(text, **reading)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise otherwise
    return value


def too_long(duration_s: float, max_s: float) -> RequestError:
    """Return the error for a recording that is longer than allowed."""
    message = f"the recording has at least {duration_s:.0f} s; allowed are {max_s:g} s"
    return RequestError(message, status=413, code="audio_too_long", param="file")


def busy(message: str, retry_after_s: float) -> RequestError:
    """Return the error for work that there is no room for at present."""
    return RequestError(
        message, status=429, type="rate_limit_error", code="server_busy", retry_after_s=retry_after_s
    )


def draining() -> RequestError:
    """Return the error for work that comes while the server ends."""
    return ended("the server is about to end")


def ended(reason: str) -> RequestError:
    """Return the error for work that will not be finished."""
    return RequestError(reason, status=503, type="server_error", code="draining", retry_after_s=5)


def request_error(error: BaseException, params: Mapping[str, str] = MappingProxyType({})) -> RequestError:
    """Return what a client is told about an error; one that nothing was meant to raise belongs into the log.

    The names of request fields are `params`, by the options that they set.
    """
    match error:
        case RequestError():
            error.param = params.get(error.param or "", error.param)
            return error
        case AudioError():
            return RequestError(str(error), code="invalid_audio", param=params.get("file", "file"))
        case OptionError(field=field):
            param = params.get(field, field)
            return RequestError(str(error).replace(field, param, 1), code="invalid_value", param=param)
        case CheckpointNotFound():
            return RequestError(str(error), code="model_not_found", param="model")
        case Cancelled():
            return RequestError("the request was cancelled", status=499, code="cancelled")
        case MemoryError():
            return _no_room("memory", "out_of_memory")
        case OSError(errno=reason) if reason in FULL:
            return _no_room("space for temporary files", "out_of_space")
        case _:
            log.error("unforeseen error", exc_info=error)
            # Its text may hold paths, or what was said.
            message = f"{type(error).__name__}: the server did not foresee this; its log has the details"
            return RequestError(message, status=500, type="server_error", code="internal_error")


def _printable(text: str) -> str:
    """Return a text that can be sent: keys of JSON may hold half a character."""
    return text.encode(errors="backslashreplace").decode()


def _no_room(what: str, code: str) -> RequestError:
    message = f"the server has not enough {what} for this request"
    return RequestError(message, status=503, type="server_error", code=code, retry_after_s=30)
