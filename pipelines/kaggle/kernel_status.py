"""Show the status of the kernel on Kaggle or, with --log, follow its log while it runs."""

from competition.kaggle.errors import SITE
from competition.kernels import api as kernels
from competition.kernels.api import KernelVersion
from competition.kernels.push import read_push_intent
from pipelines.terminal.job import Job, kaggle_client


def run(job: Job) -> None:
    """kernel/run.json, Kaggle -> the screen; nothing is changed"""
    client, settings, competition = kaggle_client(job), job.params.kernel, job.params.competition.name
    intent = read_push_intent(job.path("kernel", "run.json")) if job.path("kernel", "run.json").exists() else None
    if intent is not None and not intent.version:
        job.echo(f"kernel: Kaggle never confirmed the push of run {intent.run}; `make kernel` looks for it")
    owner, slug = (intent.owner, intent.slug) if intent else kernels.owner_and_slug(client, settings, competition)
    # Version 0 stands for the newest of this competition's kernel.
    kernel = KernelVersion(owner, slug, intent.version if intent else 0, f"{SITE}/code/{owner}/{slug}")
    label = f"{kernel.owner}/{kernel.slug}" + (f" version {kernel.version}" if kernel.version else "")
    if job.options.log:
        show = lambda text: job.echo(*(f"kernel | {line}" for line in text.splitlines()))  # noqa: E731
        state = kernels.follow(client, kernel, show, 0, 0)
    else:
        state = kernels.status(client, kernel.owner, kernel.slug, kernel.version)
    job.echo(f"kernel: {label}: {state.status}" + (f" ({state.message})" if state.message else ""))
    job.echo(f"kernel: see {kernel.url}; `make kernel` imports its results")
