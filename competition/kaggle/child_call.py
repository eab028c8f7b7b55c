"""Child process: one request to Kaggle's API, whose answer is returned as plain data.

The `kaggle` package authenticates and addresses the request. It does not read the answer: its message classes reject the
whole answer if one value is unknown to them, and its session follows redirects, which repeats a POST.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from competition.kaggle.answers import nested, objects, text
from competition.kaggle.child_failure import ReportedFailure

TIMEOUT = (30, 300)  # seconds: to connect, between two reads
MOST_EMPTY_PAGES = 100  # in a row, before a list is taken to be at its end
SERVICES = {
    "competitions": "competitions.CompetitionApiService",
    "datasets": "datasets.DatasetApiService",
    "kernels": "kernels.KernelsApiService",
}


class _Message(dict[str, object]):
    """A request as the package's HTTP client expects it."""

    @staticmethod
    def to_dict(message: "_Message") -> dict[str, object]:
        return dict(message)


def call(api: Any, service: str, method: str, **fields: object) -> Mapping[str, object]:
    """POST one request and return the JSON object of the answer.

    service: key of SERVICES.  fields: of the request, as Kaggle names them; those that are None or "" are not sent.
    """
    import requests

    answer = _send(api, service, method, fields, allow_redirects=False)
    answer.raise_for_status()
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


def open_download(api: Any, method: str, **fields: object) -> Any:
    """Request a file of a competition and follow Kaggle to the storage; return the answer with its body unread."""
    answer = _send(api, "competitions", method, fields, stream=True)
    answer.raise_for_status()
    return answer


def _send(api: Any, service: str, method: str, fields: Mapping[str, object], **options: object) -> Any:
    message = _Message({name: value for name, value in fields.items() if value not in (None, "")})
    with api.build_kaggle_client() as kaggle:
        http = kaggle.http_client()
        request = http._prepare_request(SERVICES[service], method, message)
        settings = http._session.merge_environment_settings(request.url, {}, None, None, None)
        return http._session.send(request, timeout=TIMEOUT, **{**settings, **options})


def pages(read_page: Callable[[str], Mapping[str, object]], rows: str) -> Iterator[list[Mapping[str, object]]]:
    """The rows of each page of a list. An empty page may name a next one; a repeated token ends the list.

    read_page: called with the token of the page, "" = the first.  rows: name of the field with the rows.
    """
    token, read_tokens, empty_pages = "", set[str](), 0
    while token not in read_tokens and empty_pages < MOST_EMPTY_PAGES:
        read_tokens.add(token)
        page = read_page(token)
        entries = objects(page.get(rows))
        empty_pages = 0 if entries else empty_pages + 1
        yield entries
        token = text(page.get("nextPageToken"))
        if not token:
            return
