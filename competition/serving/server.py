"""Run the application with uvicorn: a time limit for request headers, a limit on connections, graceful stop on SIGTERM."""

import asyncio
import resource
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from competition.config.errors import UserError
from competition.serving.requests import Limits

SPARE_FILES = 100  # open files that are not connections


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


def run_server(app: ASGIApp, listener: socket.socket, limits: Limits, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. Then no new connection is accepted, and running requests get limits.stop_seconds.

    announce: called when the server answers and Ctrl-C stops it: an earlier signal may interrupt, and be swallowed by, anything.
    Raises KeyboardInterrupt after SIGINT.
    """

    class AnnouncedServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            announce()

    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = uvicorn.Config(
        app,
        http=protocol(limits, min(limits.connections, open_files - SPARE_FILES)),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(limits.stop_seconds),
    )
    # uvicorn raises the signal again after its graceful stop; without this the process would end by SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: None)
    AnnouncedServer(config).run(sockets=[listener])


def protocol(limits: Limits, connections: int) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with a time limit for headers and at most `connections` connections; it has neither itself."""

    class LimitedProtocol(H11Protocol):
        _header_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > connections:
                transport.close()
            else:
                self._watch_header()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_header()

        def _watch_header(self) -> None:
            """Start the timer between two requests, stop it within one; bytes that trickle in do not start it again."""
            is_between = self.cycle is None or self.cycle.response_complete
            if is_between and self._header_timer is None:
                self._header_timer = self.loop.call_later(limits.header_seconds, self.transport.close)
            elif not is_between and self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

    return LimitedProtocol
