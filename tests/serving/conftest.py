"""The fixtures of servers.py."""

from servers import rows, small_server  # noqa: F401
