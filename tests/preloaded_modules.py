"""What the fork server of preloaded.py imports: the large packages and the project."""

import importlib
import pkgutil
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO

import pandas  # noqa: F401
import pydantic  # noqa: F401
import rich.progress  # noqa: F401
import ruamel.yaml  # noqa: F401
import scipy.optimize  # noqa: F401
import sklearn.metrics  # noqa: F401
import yaml  # noqa: F401

import competition
import pipelines
from competition.training.backend import start_tensorflow

start_tensorflow()

# What `import kaggle` imports, which takes most of the time of a request; it itself reads the credentials of a process.
for name in ("kagglesdk", "bleach", "dateutil.parser", "dotenv", "slugify", "tqdm", "tarfile"):
    with suppress(ImportError):
        importlib.import_module(name)

# A module that looks whether its output is a terminal is imported as if it were none, as in a stage, whose output is a file.
with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
    for package in (competition, pipelines):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__"):
                with suppress(ImportError):  # an optional package is not installed
                    importlib.import_module(module.name)
