"""Child process: actions on a competition. Each takes an authenticated KaggleApi, `emit` and plain values."""

from typing import Any

from competition.kaggle.child_failure import Emit, ReportedFailure, failure_of


def whoami(api: Any, emit: Emit) -> dict[str, str]:
    api.competitions_list(search="titanic")  # a wrong key is reported by the first request only
    return {"username": api.config_values.get(api.CONFIG_NAME_USER) or ""}


def competition(api: Any, emit: Emit, slug: str) -> dict[str, Any]:
    answer = _competition(api, slug)
    return {
        "title": answer.title,
        "entered": bool(answer.user_has_entered),
        "deadline": answer.deadline.isoformat() if answer.deadline else "",
        "daily": answer.max_daily_submissions,
        "kernels_only": bool(answer.is_kernels_submissions_only),
        "closed": bool(answer.submissions_disabled),
    }


def _competition(api: Any, slug: str) -> Any:
    from kagglesdk.competitions.types.competition_api_service import ApiGetCompetitionRequest

    request = ApiGetCompetitionRequest()
    request.competition_name = slug
    with api.build_kaggle_client() as kaggle:
        return kaggle.competitions.competition_api_client.get_competition(request)


def listing(api: Any, emit: Emit, slug: str) -> dict[str, Any]:
    """{"files": name -> bytes, "complete": bool}.

    An empty page may name a next one; a repeated page token ends the listing. If Kaggle limits the rate of requests,
    return the pages before the limit, with complete=False.
    """
    files: dict[str, int] = {}
    token: str | None = None
    read_tokens: set[str | None] = set()
    while token not in read_tokens:
        read_tokens.add(token)
        try:
            page = api.competition_list_files(slug, token, 200)
        except Exception as error:
            if files and failure_of(error).get("status") == 429:
                return {"files": files, "complete": False}
            raise
        files |= {file.name: file.total_bytes for file in page.files or []}
        token = page.next_page_token or None
        emit("progress", done=len(files), total=0)
    return {"files": files, "complete": True}


def submit(api: Any, emit: Emit, slug: str, path: str, message: str) -> dict[str, Any]:
    """{"ref", "message"} of the new submission; ReportedFailure of kind "upload" if the upload was refused.

    The event "uploaded" is emitted after the upload: only later failures can hide a submission whose answer was lost.
    """
    upload = api.upload_complete

    def upload_and_report(*arguments: Any, **options: Any) -> Any:
        result = upload(*arguments, **options)
        emit("uploaded")
        return result

    api.upload_complete = upload_and_report
    answer = api.competition_submit(path, message, slug, quiet=True)
    if not answer.ref and answer.message == api.COMPETITION_SUBMIT_UPLOAD_FAILED_MESSAGE:
        raise ReportedFailure("upload", answer.message)
    return {"ref": answer.ref or 0, "message": answer.message or ""}


def submit_kernel(
    api: Any, emit: Emit, slug: str, kernel: str, version: int, file: str, message: str
) -> dict[str, Any]:
    answer = api.competition_submit_code(file, message, slug, kernel, version, quiet=True)
    return {"ref": answer.ref or 0, "message": answer.message or ""}


def submission(api: Any, emit: Emit, ref: int) -> dict[str, Any]:
    from kagglesdk.competitions.types.competition_api_service import ApiGetSubmissionRequest

    request = ApiGetSubmissionRequest()
    request.ref = ref
    with api.build_kaggle_client() as kaggle:
        return _submission(kaggle.competitions.competition_api_client.get_submission(request))


def submissions(api: Any, emit: Emit, slug: str) -> list[dict[str, Any]]:
    """The newest 100 submissions."""
    return [_submission(entry) for entry in api.competition_submissions(slug, page_size=100) or [] if entry]


def _submission(entry: Any) -> dict[str, Any]:
    return {
        "ref": entry.ref,
        "file": entry.file_name or "",
        "message": entry.description or "",
        "status": entry.status.name.rsplit("_", 1)[-1],
        "public": entry.public_score or "",
        "private": entry.private_score or "",
        "error": entry.error_description or "",
        "date": entry.date.isoformat() if entry.date else "",
    }


def leaderboard(api: Any, emit: Emit, slug: str, rows: int) -> dict[str, Any]:
    """The first `rows` rows of the public leaderboard, and this team's name and rank if Kaggle returns them."""
    competition = _competition(api, slug)
    own = [entry for entry in api.competition_submissions(slug, page_size=20) or [] if entry]
    top = [entry for entry in api.competition_leaderboard_view(slug, page_size=rows) or [] if entry]
    return {
        "rank": competition.user_rank or 0,
        "teams": competition.team_count or 0,
        "team": next((entry.team_name for entry in own if entry.team_name), ""),
        "rows": [
            {
                "team": entry.team_name or "",
                "score": entry.score or "",
                "date": entry.submission_date.isoformat() if entry.submission_date else "",
            }
            for entry in top[:rows]
        ],
    }


def limits(api: Any, emit: Emit, slug: str) -> dict[str, int]:
    answer = api.competition_get_submission_limits(slug)
    return {"today": answer.num_today, "total": answer.num_total, "left": answer.num_allowed_now}
