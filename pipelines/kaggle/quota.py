"""Show the hours of TPU and GPU that are left this week."""

from competition.kernels import api as kernels
from pipelines.terminal.runner import Job, kaggle_client


def run(job: Job) -> None:
    """Kaggle's quota -> the screen"""
    quota = kernels.quota(kaggle_client(job))
    hours = (("TPU", quota.tpu_used, quota.tpu_allowed), ("GPU", quota.gpu_used, quota.gpu_allowed))
    for name, used, allowed in hours:
        job.echo(f"quota: {name}: {max(0.0, allowed - used):.1f} h left of {allowed:.1f}")
    job.echo(f"quota: renewed {quota.refresh[:16]} UTC")
