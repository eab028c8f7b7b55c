"""One request in a child process: JSON in, events as JSON lines out, and the child never outlives its parent.

`run_child` is the parent's side, `answer_parent` the child's. The child writes any number of events and, last, one
{"event": "result", "value": ...} or {"event": "error", ...}. Everything else that it prints goes to its stderr. It exits
when its stdin closes, that is, when the parent dies; the parent kills it, with its own children, when it stops reading.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

Event = dict[str, Any]
Emit = Callable[..., None]  # emit(event, **values): sends an event to the parent


class ChildStalled(Exception):
    """The child sent no event in time."""


class ChildEnded(Exception):
    """The child ended without a result or an error; the message is what it printed to stderr."""


def run_child(
    module: str,
    request: Mapping[str, object],
    environment: Mapping[str, str],
    stall: float,
    interpreter: str = sys.executable,
) -> Generator[Event, None, None]:
    """Start `python -m module`, send it the request, and yield its events; the last one is its result or its error.

    environment: all variables of the child.  stall: seconds without an event after which ChildStalled is raised.
    interpreter: path of the child's Python.
    """
    child = subprocess.Popen(
        [interpreter, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches this process only, which then kills the child
    )
    assert child.stdin and child.stdout and child.stderr
    lines: queue.Queue[str | None] = queue.Queue()
    printed: list[str] = []
    readers = [
        threading.Thread(target=_read_lines, args=(child.stdout, lines.put), daemon=True),
        threading.Thread(target=_read_lines, args=(child.stderr, lambda line: printed.append(line or "")), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        with contextlib.suppress(BrokenPipeError):  # it ended at once: the queue says so
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
        while (line := lines.get(timeout=stall)) is not None:
            event: Event = json.loads(line)
            yield event
            if event["event"] in ("result", "error"):
                return
        readers[1].join(timeout=5)
        raise ChildEnded("".join(printed))
    except queue.Empty:
        raise ChildStalled(f"no progress for {stall:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for reader in readers:  # before the pipes are closed, from which they read
            reader.join(timeout=5)
        for stream in (child.stdin, child.stdout, child.stderr):
            with contextlib.suppress(OSError):
                stream.close()


def _read_lines(stream: IO[str], on_line: Callable[[str | None], None]) -> None:
    """Pass each line to `on_line`, and None at the end, which is also reached if another thread closes the stream."""
    with contextlib.suppress(ValueError):
        for line in stream:
            on_line(line)
    on_line(None)


def answer_parent(
    answer: Callable[[Event, Emit], Any],
    describe: Callable[[BaseException], Event],
    at_parents_end: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Read the request, send the value of `answer` as the result, and end this process.

    answer: called with the request and `emit`.  describe: the values of the error event of an exception.
    at_parents_end: called if the parent has died.
    """
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # everything printed from now on goes to stderr, also by child processes
    sys.stdout = sys.stderr
    guard = threading.Lock()

    def emit(event: str, **values: Any) -> None:
        with guard:
            pipe.write(json.dumps({"event": event, **values}) + "\n")
            pipe.flush()

    parent = os.fdopen(os.dup(0), encoding="utf-8")
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    request = json.loads(parent.readline())

    def exit_with_parent() -> None:  # `parent` is a file of its own: a library that calls exit() closes sys.stdin
        while parent.readline():
            pass
        at_parents_end()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
    code = 1
    try:
        emit("result", value=answer(request, emit))
        code = 0
    except BaseException as error:  # the parent turns it into a message for the user
        emit("error", **describe(error))
    os._exit(code)  # libraries may leave threads behind
