"""Run the application with uvicorn: a limit on connections, graceful stop on SIGTERM."""

import signal
import socket

import uvicorn
from starlette.types import ASGIApp

from competition.config.errors import UserError
from competition.serving.requests import Limits

# Of every answer.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def listen(address: str) -> socket.socket:
    """Open a listening socket.  address: HOST:PORT, port 0 = any free one.  Raises UserError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise UserError(f"ADDRESS={address}: expected HOST:PORT, for example 127.0.0.1:8501")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family, backlog=1024)
    except OSError as error:
        raise UserError(f"ADDRESS={address} cannot be used ({error.strerror}); choose another port") from None


def run_server(app: ASGIApp, listener: socket.socket, limits: Limits) -> None:
    """Serve until SIGTERM or SIGINT. Then no new connection is accepted, and running requests get limits.stop_seconds.

    Raises KeyboardInterrupt after SIGINT.
    """

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        headers=[*HEADERS.items()],
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=round(limits.stop_seconds),
    )
    # uvicorn raises the signal again after its graceful stop; without this the process would end by SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])
