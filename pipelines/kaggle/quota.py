"""Show the hours of TPU and GPU that are left this week."""

from competition.kernels import api as kernels
from pipelines.terminal.job import Job, kaggle_client


def run(job: Job) -> None:
    """Kaggle's quota -> the screen"""
    quota = kernels.quota(kaggle_client(job))
    job.echo(*(f"quota: {summary}" for summary in quota.summary.values()))
    job.echo(f"quota: renewed {quota.refresh[:16]} UTC" if quota.refresh else "quota: Kaggle does not say until when")
