"""Runs in the environment of Apache Beam, started by `make convert`.

python -m pipelines.execution.convert_beam TARGET    converts the work list in the target; stdin: the options of Beam, a JSON list

Every user of the machine can read a command line, so the options, which may hold a password, are not in it.
"""

import json
import sys

from competition.config.errors import UserError
from competition.storage import files
from competition.tfrecord_export.beam import FOLDER, run_pipeline

if __name__ == "__main__":
    try:
        folder = f"{sys.argv[1]}/{FOLDER}"
        paths = [f"{folder}/{name}" for name in files.names(folder)]
        if not paths:
            raise UserError(f"{folder} holds no work list: run make convert, which writes it")
        run_pipeline(paths, json.load(sys.stdin))
    except UserError as error:
        sys.exit(f"goldfold: {error}")
