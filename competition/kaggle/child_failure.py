"""In the child: any exception of the package, of requests or of the disk as a kind and a message."""

import contextlib
import errno
import json
import os
from collections.abc import Callable
from typing import Any

Emit = Callable[..., None]  # emit(event, **values): what an action tells the parent on the way
DISK = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR}


class ReportedFailure(Exception):
    """A failure this module itself found; `kind` is one of those of kaggle_client.KaggleError."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def failure_of(error: BaseException) -> dict[str, Any]:
    """kind, status, message, retry_after of any exception of the package, of requests or of the disk."""
    import requests

    answer = getattr(error, "response", None)
    if isinstance(error, ReportedFailure):
        return {"kind": error.kind, "message": str(error)}
    if isinstance(error, requests.exceptions.HTTPError) and answer is not None:
        if answer.status_code in {400, 403} and "xml" in answer.headers.get("Content-Type", ""):  # storage, not Kaggle
            return {"kind": "expired", "message": f"storage answered {answer.status_code}"}
        wait = answer.headers.get("Retry-After")
        return {"kind": "http", "status": answer.status_code, "message": message_of(error, answer), "retry_after": wait}
    if isinstance(error, json.JSONDecodeError):  # requests' own is one, too
        return {"kind": "answer", "message": "the answer is not JSON"}
    if isinstance(error, OSError) and error.errno in DISK:
        return {"kind": "disk", "message": os.strerror(error.errno)}
    if isinstance(error, requests.exceptions.RequestException | OSError | EOFError) or (
        type(error).__module__.startswith("urllib3")
    ):
        return {"kind": "connection", "message": connection_problem(error)}
    if isinstance(error, KeyboardInterrupt):
        return {"kind": "interrupted", "message": "interrupted"}
    return {"kind": "client", "message": f"{type(error).__name__}: {error}"}


# Exception names -> what happened; the first row that matches counts. requests wraps urllib3, which wraps the system's.
CONNECTION = (
    # urllib3 calls these errors of the proxy, too, although the proxy was reached
    ({"ConnectionResetError", "BrokenPipeError"}, "connection reset"),
    ({"RemoteDisconnected", "IncompleteRead", "EOFError"}, "connection closed in the middle"),
    ({"ProxyError"}, "the proxy did not answer; HTTP_PROXY and HTTPS_PROXY name it"),
    ({"SSLError", "SSLCertVerificationError"}, "the certificate was not accepted; REQUESTS_CA_BUNDLE names another"),
    ({"NameResolutionError", "gaierror"}, "the host name could not be resolved"),
    ({"ConnectionRefusedError"}, "connection refused"),
    ({"ReadTimeout", "ReadTimeoutError", "ConnectTimeout", "ConnectTimeoutError", "TimeoutError"}, "no answer in time"),
    ({"ProtocolError", "NewConnectionError", "ConnectionError"}, "no connection"),
    ({"TooManyRedirects"}, "redirected without end"),
)


def connection_problem(error: BaseException) -> str:
    """What happened to the connection, in a few words; never the raw text, which may hold a signed link."""
    waiting, names = [error], {}
    while waiting:
        one = waiting.pop()
        if id(one) in names:
            continue
        names[id(one)] = type(one).__name__
        inside = (*one.args, getattr(one, "reason", None), one.__cause__, one.__context__)
        waiting += [other for other in inside if isinstance(other, BaseException)]
    known = (words for kinds, words in CONNECTION if kinds & set(names.values()))
    return next(known, f"the client reports {type(error).__name__}")


def message_of(error: BaseException, answer: Any) -> str:
    """What the server said, from any of the three shapes of its errors."""
    with contextlib.suppress(Exception):
        told = answer.json()
        inner = told.get("error", told)
        return str(inner.get("message") if isinstance(inner, dict) else inner)
    return str(error).split(" for url:")[0]
