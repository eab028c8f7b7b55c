"""Child process: actions on a competition. Each takes an authenticated KaggleApi, `emit` and plain values."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from competition.files.child_process import Emit
from competition.kaggle.answers import UNREADABLE, nested, objects, text, utc_time, whole
from competition.kaggle.child_call import call, pages
from competition.kaggle.child_failure import ReportedFailure, failure_of

if TYPE_CHECKING:
    from kaggle.api.kaggle_api_extended import KaggleApi

PAGE = 100  # submissions
FULL_PAGE = 20  # rows of a page after which another one may follow although it names none


def whoami(api: "KaggleApi", emit: Emit) -> dict[str, str]:
    call(api, "competitions", "ListCompetitions", search="titanic")  # a wrong key is reported by the first request only
    return {"username": api.config_values.get(api.CONFIG_NAME_USER) or ""}


def competition(api: "KaggleApi", emit: Emit, slug: str) -> dict[str, object]:
    answer = call(api, "competitions", "GetCompetition", competitionName=slug)
    return {
        "title": text(answer.get("title")) or slug,
        "entered": _flag(answer.get("userHasEntered")),
        "deadline": utc_time(answer.get("deadline")),
        "daily": whole(answer.get("maxDailySubmissions")),
        "kernels_only": _flag(answer.get("isKernelsSubmissionsOnly")),
        "closed": _flag(answer.get("submissionsDisabled")),
    }


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def listing(api: "KaggleApi", emit: Emit, slug: str) -> dict[str, object]:
    """{"files": name -> bytes or None, "complete": bool}.

    complete=False: a row has no name, or Kaggle limited the rate of requests, and these are the pages before the limit.
    """
    files: dict[str, int | None] = {}
    unnamed_rows = 0

    def read_page(token: str) -> Mapping[str, object]:
        nonlocal unnamed_rows
        page = call(api, "competitions", "ListDataFiles", competitionName=slug, pageSize=200, pageToken=token)
        rows = page.get("files")
        unnamed_rows += sum(not text(nested(row).get("name")) for row in rows) if isinstance(rows, list) else 0
        return page

    try:
        for page in pages(read_page, "files"):
            files |= {text(file["name"]): whole(file.get("totalBytes")) for file in page if text(file.get("name"))}
            emit("progress", done=len(files), total=0)
    except Exception as error:
        if files and failure_of(error).get("status") == 429:
            return {"files": files, "complete": False}
        raise
    return {"files": files, "complete": not unnamed_rows}


def submit(api: "KaggleApi", emit: Emit, slug: str, path: str, message: str) -> dict[str, str]:
    """{"ref", "message"} of the new submission; ReportedFailure of kind "upload" if the upload was refused.

    The event "uploaded" is emitted after the upload: only later failures can hide a submission whose answer was lost.
    """
    from kaggle.api.kaggle_api_extended import ResumableUploadResult

    name, facts = Path(path).name, Path(path).stat()
    size = {"contentLength": facts.st_size, "lastModifiedEpochSeconds": int(facts.st_mtime)}
    upload = call(api, "competitions", "StartSubmissionUpload", competitionName=slug, fileName=name, **size)
    if not text(upload.get("createUrl")) or not text(upload.get("token")):
        raise ReportedFailure("answer", "it names no place for the upload")
    if api.upload_complete(path, text(upload["createUrl"]), True) != ResumableUploadResult.COMPLETE:
        raise ReportedFailure("upload", "Could not submit to competition")
    emit("uploaded")
    fields = {"blobFileTokens": text(upload["token"]), "submissionDescription": message}
    return _created(call(api, "competitions", "CreateSubmission", competitionName=slug, **fields))


def submit_kernel(
    api: "KaggleApi", emit: Emit, slug: str, message: str, source: Mapping[str, object]
) -> dict[str, str]:
    """Submit an output of a kernel. source: kernelOwner, kernelSlug, kernelVersion and fileName."""
    fields = {"submissionDescription": message, **source}
    return _created(call(api, "competitions", "CreateCodeSubmission", competitionName=slug, **fields))


def _created(answer: Mapping[str, object]) -> dict[str, str]:
    return {"ref": _ref(answer.get("ref")), "message": text(answer.get("message"))}


def submission(api: "KaggleApi", emit: Emit, ref: str) -> dict[str, str]:
    return _submission(call(api, "competitions", "GetSubmission", ref=int(ref)))


def submissions(api: "KaggleApi", emit: Emit, slug: str, newest: bool = False) -> list[dict[str, str]]:
    """All submissions of the team, the newest first; rows that are no objects come last, with the status UNREADABLE.

    newest: only those of the first page.
    """
    rows: list[dict[str, str]] = []
    unreadable_rows = 0
    number = 1  # of the page, for answers that name no next one

    def read_page(token: str) -> Mapping[str, object]:
        nonlocal unreadable_rows
        page = {"pageToken": token} if token else {"page": number} if number > 1 else {}
        answer = call(api, "competitions", "ListSubmissions", competitionName=slug, pageSize=PAGE, **page)
        listed = answer.get("submissions")
        unreadable_rows += sum(not isinstance(row, Mapping) for row in listed) if isinstance(listed, list) else 0
        return answer

    def all_rows() -> list[dict[str, str]]:
        return [*rows, *[{**_submission({}), "status": UNREADABLE}] * unreadable_rows]

    while True:
        before, page = len(rows), []
        for page in pages(read_page, "submissions"):
            known = {row["ref"] for row in rows}
            rows += [row for row in map(_submission, page) if row["ref"] not in known and (row["ref"] or number == 1)]
            emit("progress", done=len(rows), total=0)
            if newest:
                return all_rows()
        if len(page) < FULL_PAGE or not any(row["ref"] for row in rows[before:]):
            return all_rows()
        number += 1


def _submission(entry: Mapping[str, object]) -> dict[str, str]:
    """The fields of a submission as text, "" = missing. Scores and unknown states stay as Kaggle sends them."""
    return {
        "ref": _ref(entry.get("ref")),
        "file": text(entry.get("fileName")),
        "message": text(entry.get("description")),
        "status": text(entry.get("status")).removeprefix("SUBMISSION_STATUS_"),
        "public": text(entry.get("publicScore")),
        "private": text(entry.get("privateScore")),
        "error": text(entry.get("errorDescription")),
        "date": utc_time(entry.get("date")),
        "team": text(entry.get("teamName")),
    }


def _ref(value: object) -> str:
    """Number of a submission as text; "" for none."""
    number = whole(value)
    return (str(number) if number else "") if number is not None else text(value)


def leaderboard(api: "KaggleApi", emit: Emit, slug: str, rows: int) -> dict[str, object]:
    """The first `rows` rows of the public leaderboard, and this team's name and rank if Kaggle returns them."""
    about = call(api, "competitions", "GetCompetition", competitionName=slug)
    own = call(api, "competitions", "ListSubmissions", competitionName=slug, pageSize=20)
    top = call(api, "competitions", "GetLeaderboard", competitionName=slug, pageSize=rows)
    teams = [text(entry.get("teamName")) for entry in objects(own.get("submissions"))]
    return {
        "rank": whole(about.get("userRank")) or 0,
        "teams": whole(about.get("teamCount")) or 0,
        "team": next(filter(None, teams), ""),
        "rows": [
            {
                "team": text(entry.get("teamName")),
                "score": text(entry.get("score")),
                "date": utc_time(entry.get("submissionDate")),
            }
            for entry in objects(top.get("submissions"))[:rows]
        ],
    }


def limits(api: "KaggleApi", emit: Emit, slug: str) -> dict[str, object]:
    answer = call(api, "competitions", "GetSubmissionLimits", competitionName=slug)
    return {
        "today": whole(answer.get("numToday")),
        "total": whole(answer.get("numTotal")),
        "left": whole(answer.get("numAllowedNow")),
        "by_total": answer.get("limitedByTotal") is True,
    }
