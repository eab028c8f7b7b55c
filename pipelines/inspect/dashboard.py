"""Show the studies in the browser: live tables and charts by optuna-dashboard, on this machine only."""

from pathlib import Path
from threading import Thread
from wsgiref.simple_server import make_server

from competition.config.errors import UserError
from competition.tuning.storage import open_storage
from pipelines.execution.selection import selected_members
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path

PORT = 8080


def run(job: Job) -> None:
    """tune.storage, or the journal of the newest study under tune/ -> a page on 127.0.0.1 until Ctrl-C"""
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        remedy = "`make dashboard` installs it, or .venv/bin/pip install optuna-dashboard"
        raise UserError(f"optuna-dashboard is not installed; {remedy}") from None
    storage, source = job.params.tune.storage, "tune.storage"
    newest = Path()
    if not storage:
        journals = [path for name in selected_members(job) for path in job.path("tune", name).glob("*/study.log")]
        if not journals:
            raise UserError(f"no study is under {display_path(job.path('tune'))}; `make tune` makes one")
        newest = max(journals, key=lambda path: path.stat().st_mtime)
        source = display_path(newest)
    text = job.options.address
    host, _, port = text.rpartition(":")
    # Only this machine, because the dashboard asks for no password.
    if host not in ("127.0.0.1", "localhost", "::1") or not port.isdecimal():
        raise UserError(
            f"ADDRESS={text}: the dashboard has no password and can delete studies, so it listens on 127.0.0.1 only; from another "
            f"machine: ssh -L {PORT}:127.0.0.1:{PORT} MACHINE"
        )
    host = "127.0.0.1" if host == "localhost" else host
    try:
        server = make_server(host, int(port), wsgi(open_storage(storage, newest)))
    except OSError as error:
        remedy = "name another port: ADDRESS=127.0.0.1:0"
        raise UserError(f"{host}:{port} cannot be used ({error.strerror}); {remedy}") from None
    with server:
        job.echo(f"dashboard: {source} on http://{host}:{server.server_port}; Ctrl-C ends it")
        # Ctrl-C interrupts the main thread; in that of the server a request would swallow it.
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        while serving.is_alive():
            serving.join(1.0)
