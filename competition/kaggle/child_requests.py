"""Child process: requests to Kaggle's API, whose answers are plain data, and the description of what failed.

The `kaggle` package authenticates and addresses the requests. It does not read the answers: its message classes reject the
whole answer if one value is unknown to them, and its session follows redirects, which repeats a POST.
"""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from competition.kaggle.answers import nested, objects, text

if TYPE_CHECKING:
    from kagglesdk.kaggle_client import KaggleClient
    from requests import Response

TIMEOUT = (30, 300)  # seconds: to connect, between two reads
SERVICES = {
    "competitions": "competitions.CompetitionApiService",
    "datasets": "datasets.DatasetApiService",
    "kernels": "kernels.KernelsApiService",
}
MOST_EMPTY_PAGES = 100  # in a row, before a list is taken to be at its end
DISK = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR}
# Exception names -> what the user can change.
CONNECTION_HINTS = {
    "ProxyError": "HTTP_PROXY and HTTPS_PROXY name the proxy",
    "SSLError": "REQUESTS_CA_BUNDLE names another certificate",
    "NameResolutionError": "the host name could not be resolved",
}


class ReportedFailure(Exception):
    """Failure detected by an action itself: ReportedFailure(kind of errors.KaggleError, message)."""


class _Request(dict[str, object]):
    to_dict = dict  # as the package's HTTP client calls it


def call(kaggle: "KaggleClient", service: str, method: str, **fields: object) -> Mapping[str, object]:
    """POST one request and return the JSON object of the answer.

    service: key of SERVICES.  fields: of the request, as Kaggle names them; those that are None or "" are not sent.
    """
    import requests

    answer = send(kaggle, service, method, fields, allow_redirects=False)
    if answer.is_redirect:
        raise ReportedFailure("answer", "it leads to another page")
    body = answer.json()
    code = nested(body).get("code")
    if isinstance(code, int) and code >= 400:  # an error in spite of status 200
        answer.status_code = code
        raise requests.exceptions.HTTPError(text(nested(body).get("message")), response=answer)
    if not isinstance(body, dict):
        raise ReportedFailure("answer", f"it is no JSON object but {str(body)[:40]!r}")
    return body


def send(
    kaggle: "KaggleClient", service: str, method: str, fields: Mapping[str, object], **options: object
) -> "Response":
    """POST one request; raise the error of an HTTP status above 400.  options: of requests.Session.send."""
    http = kaggle.http_client()
    sent = _Request({name: value for name, value in fields.items() if value not in (None, "")})
    request = http._prepare_request(SERVICES[service], method, sent)
    settings = http._session.merge_environment_settings(request.url, {}, None, None, None)
    answer: Response = http._session.send(request, timeout=TIMEOUT, **{**settings, **options})
    answer.raise_for_status()
    return answer


def pages(
    kaggle: "KaggleClient", service: str, method: str, rows: str, **fields: object
) -> Iterator[list[Mapping[str, object]]]:
    """The rows of each page of a list. An empty page may name a next one; a token without one or a repeated one ends the list.

    rows: name of the field with the rows.  fields: of each request.
    """
    token, read_tokens, empty_pages = "", set[str](), 0
    while token not in read_tokens and empty_pages < MOST_EMPTY_PAGES:
        read_tokens.add(token)
        page = call(kaggle, service, method, **{**fields, "pageToken": token})
        entries = objects(page.get(rows))
        empty_pages = 0 if entries else empty_pages + 1
        yield entries
        token = text(page.get("nextPageToken"))  # "" was read first


def failure_of(error: BaseException) -> dict[str, object]:
    """kind, status, message, retry_after of any exception of the package, of requests or of the disk."""
    import requests

    answer = getattr(error, "response", None)
    if isinstance(error, ReportedFailure):
        return dict(zip(("kind", "message"), error.args, strict=True))
    if isinstance(error, requests.exceptions.HTTPError) and answer is not None:
        if answer.status_code in {400, 403} and "xml" in answer.headers.get("Content-Type", ""):  # storage, not Kaggle
            return {"kind": "expired", "message": f"storage answered {answer.status_code}"}
        if answer.status_code in {404, 410} and answer.request.method == "GET":  # Kaggle's own calls are POST requests
            name = unquote(urlsplit(answer.url).path.rsplit("/", 1)[-1])
            return {"kind": "absent", "message": f"its storage answered {answer.status_code} for {name}"}
        message = ""  # of the server, from any of the three JSON layouts that it uses
        with contextlib.suppress(ValueError):
            details = nested(answer.json()).get("error") or answer.json()
            message = text(nested(details).get("message")) if isinstance(details, Mapping) else text(details)
        message = message or str(error).split(" for url:")[0]
        wait = answer.headers.get("Retry-After")
        return {"kind": "http", "status": answer.status_code, "message": message, "retry_after": wait}
    if isinstance(error, json.JSONDecodeError):  # the base class of requests' own
        return {"kind": "answer", "message": "the answer is not JSON"}
    if isinstance(error, OSError) and error.errno in DISK:
        return {"kind": "disk", "message": os.strerror(error.errno)}
    network_errors = (requests.exceptions.RequestException, OSError, EOFError)
    if isinstance(error, network_errors) or type(error).__module__.startswith("urllib3"):
        # Types, never texts, which may contain a signed link. requests wraps urllib3's errors, which wrap the system's.
        names: list[str] = []
        cause: BaseException | None = error
        while cause is not None:
            names.append(type(cause).__name__)
            cause = cause.__cause__ or cause.__context__
        hints = [hint for name, hint in CONNECTION_HINTS.items() if name in names]
        return {"kind": "connection", "message": "; ".join([names[-1], *hints])}
    return {"kind": "client", "message": f"{type(error).__name__}: {error}"}
