"""Child process that runs one action of the `kaggle` package.

client.py starts this module, writes one JSON request to its stdin and reads JSON lines from its stdout: any number of
events, then one {"event": "result"} or {"event": "error"}. Everything that the package prints goes to stderr.
The process exits when its stdin closes, that is, when the parent dies.
"""

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from competition.kaggle import child_competition, child_download, child_kernel
from competition.kaggle.child_failure import ReportedFailure, failure_of


def main() -> None:
    """Read one request, run its action, write its events and its result."""
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
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    code = 1
    try:
        api = _api()
        emit("ready")  # restarts the stall timer: importing the package takes seconds on a busy machine
        emit("result", value=_action(request["action"])(api, emit, **request["arguments"]))
        code = 0
    except BaseException as error:  # the parent turns it into a message for the user
        emit("error", **failure_of(error))
    os._exit(code)  # the package leaves threads behind on some errors


def _exit_with_parent(parent: TextIO) -> None:
    """Exit this process when the parent's end of the pipe closes.

    parent: a file of its own, not sys.stdin. The package calls exit(), which closes sys.stdin and waits for its
    readers, so that an expired token would hang the process.
    """
    while parent.readline():
        pass
    shutil.rmtree(os.environ.get("KAGGLE_CONFIG_DIR", ""), ignore_errors=True)  # a killed parent does not remove it
    os._exit(1)


def _api() -> Any:
    """An authenticated KaggleApi. The import authenticates but hides its errors, so authenticate again to get them."""
    import kaggle

    try:
        if not getattr(kaggle.api, "_authenticated", False):
            kaggle.api.authenticate()
    except SystemExit as error:
        raise ReportedFailure("credentials", "it has expired, or it is wrong") from error
    return kaggle.api


def _action(name: str) -> Callable[..., Any]:
    """The function that client.py calls an action: a public one of these modules."""
    modules = (child_competition, child_download, child_kernel)
    return next(vars(module)[name] for module in modules if name in vars(module))


if __name__ == "__main__":
    main()
