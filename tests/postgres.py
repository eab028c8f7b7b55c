"""A real PostgreSQL for tests."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def postgres() -> Iterator[str]:
    """URL of an empty database of a PostgreSQL that runs for this test on 127.0.0.1; skips the test without it."""
    pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
    commands = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    folder = commands[-1] if commands else Path(shutil.which("initdb") or "none").parent
    if not (folder / "initdb").exists():
        pytest.skip("PostgreSQL is not installed: `apt install postgresql`")
    # PostgreSQL does not run as root; Debian's package creates a user for it.
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    place = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        if os.geteuid() == 0:
            shutil.chown(place, user)
        data, as_user = str(place / "data"), {"user": user, "cwd": place, "capture_output": True, "check": True}
        subprocess.run([folder / "initdb", "-D", data, "-U", "goldfold", "--auth=trust", "--no-sync"], **as_user)
        options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={place} -c fsync=off"
        start = [folder / "pg_ctl", "-D", data, "-w", "-l", str(place / "log"), "-o", options, "start"]
        subprocess.run(start, user=user, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        yield f"postgresql+psycopg://goldfold@127.0.0.1:{port}/postgres"
        subprocess.run([folder / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **as_user)
    finally:
        shutil.rmtree(place, ignore_errors=True)
