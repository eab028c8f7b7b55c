"""Child process: convert exceptions of the package, of requests and of the disk to a kind and a message."""

import contextlib
import errno
import json
import os
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from competition.kaggle.answers import nested, text

if TYPE_CHECKING:
    from requests import Response

DISK = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR}


class ReportedFailure(Exception):
    """Failure detected by an action itself. kind: one of those of errors.KaggleError."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def failure_of(error: BaseException) -> dict[str, object]:
    """kind, status, message, retry_after of any exception of the package, of requests or of the disk."""
    import requests

    answer = getattr(error, "response", None)
    if isinstance(error, ReportedFailure):
        return {"kind": error.kind, "message": str(error)}
    if isinstance(error, requests.exceptions.HTTPError) and answer is not None:
        if answer.status_code in {400, 403} and "xml" in answer.headers.get("Content-Type", ""):  # storage, not Kaggle
            return {"kind": "expired", "message": f"storage answered {answer.status_code}"}
        if answer.status_code in {404, 410} and answer.request.method == "GET":  # Kaggle's own calls are POST requests
            name = unquote(urlsplit(answer.url).path.rsplit("/", 1)[-1])
            return {"kind": "absent", "message": f"its storage answered {answer.status_code} for {name}"}
        wait = answer.headers.get("Retry-After")
        return {"kind": "http", "status": answer.status_code, "message": message_of(error, answer), "retry_after": wait}
    if isinstance(error, json.JSONDecodeError):  # the base class of requests' own
        return {"kind": "answer", "message": "the answer is not JSON"}
    if isinstance(error, OSError) and error.errno in DISK:
        return {"kind": "disk", "message": os.strerror(error.errno)}
    network_errors = (requests.exceptions.RequestException, OSError, EOFError)
    if isinstance(error, network_errors) or type(error).__module__.startswith("urllib3"):
        return {"kind": "connection", "message": connection_problem(error)}
    if isinstance(error, KeyboardInterrupt):
        return {"kind": "interrupted", "message": "interrupted"}
    if any(frame.filename.endswith("kaggle_object.py") for frame in traceback.extract_tb(error.__traceback__)):
        return {"kind": "answer", "message": "the kaggle package cannot read it"}  # its message classes
    return {"kind": "client", "message": f"{type(error).__name__}: {error}"}


# Exception names -> message; the first match counts. requests wraps urllib3's errors, which wrap the system's.
CONNECTION = (
    # urllib3 reports these as proxy errors as well, although the proxy was reached
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
    """Short description of a connection error; never its raw text, which may contain a signed link."""
    waiting, names = [error], {}
    while waiting:
        one = waiting.pop()
        if id(one) in names:
            continue
        names[id(one)] = type(one).__name__
        causes = (*one.args, getattr(one, "reason", None), one.__cause__, one.__context__)
        waiting += [cause for cause in causes if isinstance(cause, BaseException)]
    messages = (message for kinds, message in CONNECTION if kinds & set(names.values()))
    return next(messages, f"the client reports {type(error).__name__}")


def message_of(error: BaseException, answer: "Response") -> str:
    """The server's error message, from any of the three JSON layouts that it uses, or what requests says of the status."""
    message = ""
    with contextlib.suppress(ValueError):
        body = nested(answer.json())
        details = body.get("error") or body
        message = text(nested(details).get("message")) if isinstance(details, Mapping) else text(details)
    return message or str(error).split(" for url:")[0]
