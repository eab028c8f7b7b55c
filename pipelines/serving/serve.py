"""Serve an export over HTTP: TensorFlow Serving's REST shape, and a page to drop photos on."""

import ipaddress
import time

from competition.config.errors import UserError
from competition.serving.bundle import CARD, load_bundle
from competition.serving.served_models import export_name
from competition.training.backend import is_installed
from competition.workspace.dependencies import export_path
from pipelines.execution.selection import selected_folds
from pipelines.terminal.runner import Job, image_cache

PACKAGES = ("starlette", "python-multipart", "uvicorn", "prometheus-client")


def run(job: Job) -> None:
    """export/<name>/ -> a server, until SIGTERM or Ctrl-C"""
    missing = [package for package in PACKAGES if not is_installed(package)]
    if missing:
        raise UserError(f"the server needs {', '.join(missing)}; install goldfold[serve]")
    from competition.serving.app import create_app
    from competition.serving.engines import open_engine
    from competition.serving.requests import Limits
    from competition.serving.server import listen, run_server
    from competition.serving.similar import TrainingImages, cached_training_images

    folds = selected_folds(job) if job.options.fold else []
    folder, limits = export_path(job.work, export_name(job.options.member, folds)).parent, Limits()
    bundle, started = load_bundle(folder), time.monotonic()
    listener = listen(job.options.address)
    host, port = listener.getsockname()[:2]
    is_loopback = ipaddress.ip_address(host).is_loopback
    engine = open_engine(job.options.engine, folder)
    if job.path("data", "manifest.json").is_file() and job.prepared.digest != bundle.data:
        job.echo("serve: the export was made from other data than work/ holds now; `make export` makes it again")

    def training_images() -> TrainingImages | None:
        if not is_loopback or not job.path("data", "manifest.json").is_file():
            return None
        prepared = job.prepared
        sizes = [*bundle.sizes, *(member.image_size for member in job.params.members.values())]
        return cached_training_images(prepared, sizes, engine, image_cache(job).folder)

    job.echo(f"serve: {bundle.title} with {engine.name}, loaded in {time.monotonic() - started:.1f} s")
    if not is_loopback:
        job.echo(
            "serve: anyone who reaches this address can use the server; there is no password and no encryption, so put a "
            "proxy with both before it; training images are not shown"
        )
    shown = f"[{host}]" if ":" in host else host
    card = (folder / CARD).read_text(encoding="utf-8")
    app = create_app(engine, limits, training_images, is_loopback, card)
    run_server(app, listener, limits, lambda: job.echo(f"serve: http://{shown}:{port}/ (Ctrl-C stops)"))
    job.echo("serve: stopped")
