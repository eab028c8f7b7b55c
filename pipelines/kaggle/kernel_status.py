"""Show the status of the kernel on Kaggle or, with --log, follow its log while it runs."""

from competition.kaggle.client import Client
from competition.kaggle.errors import SITE
from competition.kernels import api as kernels
from competition.kernels.api import KernelVersion
from competition.kernels.push import read_push_intent
from pipelines.terminal.runner import Job, kaggle_client


def run(job: Job) -> None:
    """kernel/run.json, Kaggle -> the screen; nothing is changed"""
    client = kaggle_client(job)
    kernel = kernel_of(job, client)
    label = f"{kernel.owner}/{kernel.slug}" + (f" version {kernel.version}" if kernel.version else "")
    if job.options.log:
        show = lambda text: job.echo(*(f"kernel | {line}" for line in text.splitlines()))  # noqa: E731
        state = kernels.follow(client, kernel, show, 0, 0)
    else:
        state = kernels.status(client, kernel.owner, kernel.slug, kernel.version)
    job.echo(f"kernel: {label}: {state.status}" + (f" ({state.message})" if state.message else ""))
    job.echo(f"kernel: see {kernel.url}; `make kernel` imports its results")


def kernel_of(job: Job, client: Client) -> KernelVersion:
    """Return the version that is running, else version 0, which stands for the newest of this competition's kernel."""
    state, settings = job.path("kernel", "run.json"), job.params.kernel
    if state.exists():
        push = read_push_intent(state)
        if push.version:
            return push.pushed
        job.echo(f"kernel: Kaggle never confirmed the push of run {push.run}; `make kernel` looks for it")
        owner, slug = push.owner, push.slug
    else:
        owner = settings.owner or kernels.username(client)
        slug = settings.slug or kernels.default_slug(job.params.competition.name)
    return KernelVersion(owner, slug, 0, f"{SITE}/code/{owner}/{slug}")
