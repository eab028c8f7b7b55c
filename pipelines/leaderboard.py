"""The top of the public leaderboard, and where this team stands on it."""

from competition.kaggle import leaderboard
from competition.kaggle.client import slug_of
from pipelines.cli import main
from pipelines.runner import Job, kaggle_client, printable


def run(job: Job) -> None:
    """Kaggle's leaderboard -> the first TOP rows on the screen"""
    name = job.params.competition.slug
    if not name:
        job.echo(f"leaderboard: {job.params.competition.name} is not on Kaggle; `make grade` scores it here")
        return
    slug = slug_of(name)
    board = leaderboard.read(kaggle_client(job), slug, job.options.top)
    for place, row in enumerate(board.rows, 1):
        own = "  <- this team" if board.team and row.team == board.team else ""
        job.echo(f"{place:>5}  {row.score:<10}  {row.date[:10]}  {printable(row.team)}{own}")
    if not board.rows:
        job.echo(f"leaderboard: nobody has a score on {slug} yet")
    job.echo(f"leaderboard: {printable(leaderboard.standing(board))}")


if __name__ == "__main__":
    main("leaderboard")
