"""In the child: what is asked about a competition. Each takes an authenticated KaggleApi, `emit` and plain values."""

from typing import Any

from competition.kaggle.child_failure import Emit, ReportedFailure, failure_of


def whoami(api: Any, emit: Emit) -> dict[str, str]:
    api.competitions_list(search="titanic")  # a wrong key only shows at the first call
    return {"username": api.config_values.get(api.CONFIG_NAME_USER) or ""}


def competition(api: Any, emit: Emit, slug: str) -> dict[str, Any]:
    from kagglesdk.competitions.types.competition_api_service import ApiGetCompetitionRequest

    request = ApiGetCompetitionRequest()
    request.competition_name = slug
    with api.build_kaggle_client() as kaggle:
        found = kaggle.competitions.competition_api_client.get_competition(request)
    return {
        "slug": found.ref.rstrip("/").rsplit("/", 1)[-1],
        "title": found.title,
        "entered": bool(found.user_has_entered),
        "deadline": found.deadline.isoformat() if found.deadline else "",
        "daily": found.max_daily_submissions,
        "metric": found.evaluation_metric,
        "kernels_only": bool(found.is_kernels_submissions_only),
        "closed": bool(found.submissions_disabled),
    }


def listing(api: Any, emit: Emit, slug: str) -> dict[str, Any]:
    """{"files": name -> bytes, "complete": bool}.

    A page may be empty and still name a next one; a token that comes back ends the walk. Thousands of files are many
    pages, and Kaggle limits the rate: the pages before the limit are then returned, with complete=False.
    """
    files: dict[str, int] = {}
    token: str | None = None
    seen: set[str | None] = set()
    while token not in seen:
        seen.add(token)
        try:
            page = api.competition_list_files(slug, token, 200)
        except Exception as error:
            if files and failure_of(error).get("status") == 429:
                return {"files": files, "complete": False}
            raise
        files |= {file.name: file.total_bytes for file in page.files or []}
        token = page.next_page_token or None
        emit("progress", done=len(files), total=0)
        if token is None:
            break
    return {"files": files, "complete": True}


def submit(api: Any, emit: Emit, slug: str, path: str, message: str) -> dict[str, Any]:
    """{"ref", "message"}. An upload that was refused never became a submission: kind "upload".

    The event "uploaded" separates what surely was no submission yet from what may be one although its answer is lost.
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
    """The newest hundred."""
    return [_submission(found) for found in api.competition_submissions(slug, page_size=100) or [] if found]


def _submission(found: Any) -> dict[str, Any]:
    return {
        "ref": found.ref,
        "file": found.file_name or "",
        "message": found.description or "",
        "status": found.status.name.rsplit("_", 1)[-1],
        "public": found.public_score or "",
        "private": found.private_score or "",
        "error": found.error_description or "",
        "date": found.date.isoformat() if found.date else "",
    }


def leaderboard(api: Any, emit: Emit, slug: str, rows: int) -> dict[str, Any]:
    """The first `rows` of the public leaderboard, this team's name and rank, as far as Kaggle names them."""
    from kagglesdk.competitions.types.competition_api_service import ApiGetCompetitionRequest

    request = ApiGetCompetitionRequest()
    request.competition_name = slug
    with api.build_kaggle_client() as kaggle:
        about = kaggle.competitions.competition_api_client.get_competition(request)
    own = [entry for entry in api.competition_submissions(slug, page_size=20) or [] if entry]
    top = [entry for entry in api.competition_leaderboard_view(slug, page_size=rows) or [] if entry]
    return {
        "rank": about.user_rank or 0,
        "teams": about.team_count or 0,
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
    found = api.competition_get_submission_limits(slug)
    return {"today": found.num_today, "total": found.num_total, "left": found.num_allowed_now}
