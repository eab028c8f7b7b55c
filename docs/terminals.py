"""Commands on a pseudo-terminal."""

import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence
from fcntl import ioctl
from pathlib import Path

from builders import ROOT

ROWS = 50


def on_terminal(command: Sequence[str], columns: int, folder: Path = ROOT, **environment: str) -> str:
    """What a command writes to stdout if that is a terminal of so many columns; its progress bars are on stderr."""
    reading, writing = pty.openpty()
    ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    hidden = ("COLUMNS", "LINES", "NO_COLOR")  # COLUMNS would hide the size of the terminal
    inherited = {n: value for n, value in os.environ.items() if n not in hidden}
    variables = {**inherited, "TERM": "xterm-256color", **environment}
    process = subprocess.Popen(command, cwd=folder, stdout=writing, env=variables)
    os.close(writing)
    parts = []
    try:
        while part := os.read(reading, 65536):
            parts.append(part)
    except OSError:  # the process has ended
        pass
    os.close(reading)
    output = b"".join(parts).decode().replace("\r\n", "\n")
    assert process.wait() == 0, f"{command}: {output[-2000:]}"
    return output
