"""Serve an export over HTTP: TensorFlow Serving's REST shape, and a page to drop photos on."""

import contextlib
import ipaddress
import time

from competition.config.errors import UserError, how_to_install
from competition.serving.bundle import CARD, Bundle, load_bundle
from competition.serving.served_models import select
from competition.training.backend import is_installed
from competition.workspace.dependencies import export_path
from pipelines.terminal.job import Job, image_cache
from pipelines.terminal.output import display_path

PACKAGES = ("starlette", "uvicorn")


def run(job: Job) -> None:
    """export/<name>/ -> a server, until SIGTERM or Ctrl-C"""
    manifest = export_path(job.work, job.options.member)
    folder = manifest.parent
    if not manifest.is_file():
        others = [path.parent.name for path in sorted(folder.parent.glob("*/manifest.json"))]
        finished = f"; finished are {', '.join(others)}" if others else ""
        of_member = f" MEMBER={job.options.member}" if job.options.member else ""
        raise UserError(f"{display_path(folder)} holds no finished export; `make export{of_member}` makes it{finished}")
    if job.options.check:  # before `make` installs the packages
        return
    missing = [package for package in PACKAGES if not is_installed(package)]
    if missing:
        raise UserError(f"the server needs {', '.join(missing)}; {how_to_install('serve')}")
    from competition.serving.app import create_app
    from competition.serving.engines import Engine
    from competition.serving.requests import Limits
    from competition.serving.server import listen, run_server
    from competition.serving.similar import TrainingImages, cached_training_images

    bundle, started, limits = load_bundle(folder), time.monotonic(), Limits()
    listener = listen(job.options.address)
    host, port = listener.getsockname()[:2]
    is_loopback = ipaddress.ip_address(host).is_loopback
    engine = Engine(job.options.engine, folder, bundle)
    if has_data := job.path("data", "manifest.json").is_file():
        job.echo(*outdated_lines(job, bundle))

    def training_images() -> TrainingImages | None:
        if not (is_loopback and has_data):
            return None
        return cached_training_images(job.prepared, engine, image_cache(job).folder)

    job.echo(f"serve: {bundle.title} with {engine.name}, loaded in {time.monotonic() - started:.1f} s")
    if not is_loopback:
        job.echo(
            "serve: anyone who reaches this address can use the server; there is no password and no encryption, so put a "
            "proxy with both before it; training images are not shown"
        )
    shown = f"[{host}]" if ":" in host else host
    card = (folder / CARD).read_text(encoding="utf-8")
    announce = lambda: job.echo(f"serve: http://{shown}:{port}/ (Ctrl-C stops)")  # noqa: E731
    app = create_app(engine, limits, training_images, is_loopback, card, announce)
    run_server(app, listener, limits)
    job.echo("serve: stopped")


def outdated_lines(job: Job, bundle: Bundle) -> list[str]:
    """A line if the export was made from other data, models or blend than these parameters have now."""
    with contextlib.suppress(UserError):  # an export serves on where its models are gone
        if (job.prepared.digest, select(job.workspace, job.options.member).digest) != (bundle.data, bundle.digest):
            of_member = f" MEMBER={job.options.member}" if job.options.member else ""
            problem = "the export is of other data, of an earlier blend or of other fold models"
            return [f"serve: {problem}; `make export{of_member}` makes it again"]
    return []
