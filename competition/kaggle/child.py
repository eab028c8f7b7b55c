"""Child process that runs one action of the `kaggle` package, for client.py. See competition/files/child_process.py."""

import os
import shutil
from functools import partial

from competition.files.child_process import Emit, Event, answer_parent
from competition.kaggle import child_competition, child_download, child_kernel
from competition.kaggle.child_failure import ReportedFailure, failure_of


def answer(request: Event, emit: Emit) -> object:
    """Run the action of the request, a public function of one of these modules, and return its value."""
    import kaggle  # authenticates, but hides its errors, so authenticate again to get them

    try:
        if not getattr(kaggle.api, "_authenticated", False):
            kaggle.api.authenticate()
    except SystemExit as error:
        raise ReportedFailure("credentials", "it has expired, or it is wrong") from error
    api = kaggle.api
    emit("ready")  # restarts the stall timer: importing the package takes seconds on a busy machine
    modules = (child_competition, child_download, child_kernel)
    action = next(vars(module)[request["action"]] for module in modules if request["action"] in vars(module))
    return action(api, emit, **request["arguments"])


if __name__ == "__main__":
    # The folder of the package's settings and upload links, which a killed parent leaves.
    links = os.environ.get("KAGGLE_CONFIG_DIR", "")
    answer_parent(answer, failure_of, partial(shutil.rmtree, links, ignore_errors=True))
