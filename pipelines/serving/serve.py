"""Serve an export over HTTP: TensorFlow Serving's REST shape, and a page to drop photos on."""

import ipaddress
import time
from collections.abc import Sequence

from competition.config.errors import UserError, how_to_install
from competition.serving.bundle import CARD, Bundle, load_bundle
from competition.serving.served_models import export_name, select
from competition.training.backend import is_installed
from pipelines.execution.selection import selected_folds
from pipelines.terminal.output import display_path
from pipelines.terminal.runner import Job, image_cache

PACKAGES = ("starlette", "python-multipart", "uvicorn")


def run(job: Job) -> None:
    """export/<name>/ -> a server, until SIGTERM or Ctrl-C"""
    folds = selected_folds(job) if job.options.fold else []
    manifest = job.path("export", export_name(job.options.member, folds), "manifest.json")
    folder = manifest.parent
    if not manifest.is_file():
        others = [path.parent.name for path in sorted(folder.parent.glob("*/manifest.json"))]
        finished = f"; finished are {', '.join(others)}" if others else ""
        raise UserError(
            f"{display_path(folder)} holds no finished export; `make export{chosen(job)}` makes it{finished}"
        )
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
        job.echo(*outdated_lines(job, bundle, folds))

    def training_images() -> TrainingImages | None:
        if not (is_loopback and has_data):
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


def outdated_lines(job: Job, bundle: Bundle, folds: Sequence[int]) -> list[str]:
    """A line if the export was made from other data, models or blend than these parameters have now."""
    again = f"`make export{chosen(job)}` makes it again"
    if job.prepared.digest != bundle.data:
        return [f"serve: the export was made from other data than work/ holds now; {again}"]
    try:
        current = select(job.workspace, job.options.member, folds)
    except UserError:  # an export serves on where its models are gone
        return []
    if current.digest == bundle.digest:
        return []
    return [f"serve: the export is of an earlier blend or of other fold models; {again}"]


def chosen(job: Job) -> str:
    """The variables that select the export, as they were given: " MEMBER=cnn FOLD=0,2"; "" of the blend."""
    given = (("MEMBER", job.options.member), ("FOLD", job.options.fold))
    return "".join(f" {name}={value}" for name, value in given if value)
