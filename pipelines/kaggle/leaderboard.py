"""Show the top of the public leaderboard and the rank of this team."""

from competition.kaggle import leaderboard
from competition.kaggle.client import competition_slug
from pipelines.terminal.job import Job, kaggle_client


def run(job: Job) -> None:
    """Kaggle's leaderboard -> the first TOP rows on the screen"""
    url = job.params.competition.slug
    if not url:
        job.echo(
            f"leaderboard: {job.params.competition.name} is not on Kaggle (competition.slug is empty); `make submissions` "
            "lists its blends with their honest scores"
        )
        return
    slug = competition_slug(url)
    rows, own_team, sentence = leaderboard.read(kaggle_client(job), slug, job.options.top)
    for rank, (team, score, date) in enumerate(rows, 1):
        marker = "  <- this team" if own_team and team == own_team else ""
        job.echo(f"{rank:>5}  {score:<10}  {date[:10]}  {team}{marker}")
    if not rows:
        job.echo(f"leaderboard: no team has a score on {slug} yet")
    job.echo(f"leaderboard: {sentence}")
