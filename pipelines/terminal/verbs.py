"""The verbs: their help, their options and what follows them.

Standard library only: make_variables, which checks the variables of a make call, reads it before .venv exists. The texts of
`make help` and `make help-all` are in the Makefile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

COMMON = ("params", "sets", "work", "submissions", "debug", "verbose")


@dataclass(frozen=True)
class Verb:
    """What `goldfold VERB` and `goldfold VERB --help` need.

    help: one line.  options: names of fields of Options beside the common ones.  defaults: of those whose default differs
    from that in Options.  next: the verb that usually follows this stage; a verb of CHAINS prints that of its last stage.
    """

    help: str
    options: Sequence[str] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    next: str = ""


SELECTION = ("member", "fold")
BUDGET = ("hours", "budget")
# Folder of pipelines/ -> its verbs, in the order in which they are used.
FOLDERS: dict[str, dict[str, Verb]] = {
    "main_job": {
        "download": Verb("Download the competition, verify and index it.", ("force", "alone"), next="prepare"),
        "prepare": Verb("Index the images, assign folds and write records.", ("folds_from", "force"), next="train"),
        "resolve": Verb("Choose where records are read from on this machine.", ("force",)),
        "tune": Verb(
            "Search hyperparameters.", ("member", "workers", "join", "cluster", "as_part", "force"), next="train"
        ),
        "train": Verb(
            "Tune, then train every fold model that is not current.",
            (*SELECTION, *BUDGET, "cluster", "debug_rows", "force", "alone"),
            next="predict",
        ),
        "budget": Verb("Find the best members within a stated time.", (*BUDGET, "cluster"), next="predict"),
        "predict": Verb(
            "Predict out-of-fold and test rows under every view, then blend.",
            (*BUDGET, "allow_partial", "cluster", "force", "alone"),
            next="blend",
        ),
        "blend": Verb("Choose views, blend and decision rule.", (*BUDGET, "allow_partial", "force"), next="report"),
        "submit": Verb("Submit once and wait for the score.", ("file", "again"), next="submissions"),
    },
    "inspect": {
        "doctor": Verb("Check this machine and its results, or explain an error.", ("explain",)),
        "runs": Verb("List the runs with their difference from the parameters, scores, time and size.", ("member",)),
        "adopt": Verb("Write a run or a trial into the parameter file.", ("run", "trial"), next="train"),
        "prune": Verb("List runs that nothing uses; --force removes them.", ("force",)),
        "report": Verb("Write report.html.", BUDGET),
        "list-blends": Verb(
            "Compare the blend methods and views of the current parameters by honest score.", ("allow_partial",)
        ),
        "compare-blends": Verb("Compare two blends: difference and changed rows.", ("a", "b")),
        "compare-submissions": Verb("Compare two submissions: ids and classes that differ.", ("a", "b")),
        "bench": Verb("Measure images per second.", SELECTION),
        "noise": Verb("Measure the spread of a member's score over seeds.", ("member", "seeds", "force"), next="blend"),
        "grad-cam": Verb("Show what the network looks at in wrong and right rows.", ("member", "force"), next="report"),
        "label-issues": Verb("List labels that are probably wrong.", next="report"),
        "debug": Verb("Train eagerly on few rows, with checks and pictures.", (*SELECTION, "debug_rows"), next="train"),
        "dashboard": Verb("Show the studies in the browser.", ("member", "address"), {"address": "127.0.0.1:8080"}),
        "folds": Verb("Export the folds as CSV for models trained elsewhere."),
        "grade": Verb("Score a submission of a local competition.", ("file",), next="report"),
    },
    "kaggle": {
        "kernel": Verb(
            "Train and predict missing fold models on Kaggle.",
            (*SELECTION, *BUDGET, "inline", "again", "force"),
            next="predict",
        ),
        "kernel-status": Verb("Show the status or the log of the kernel.", ("log",)),
        "quota": Verb("Show the hours of TPU and GPU that are left this week."),
        "submissions": Verb("List submissions with expected and public scores."),
        "leaderboard": Verb("Show the top of the public leaderboard and the own rank.", ("top",)),
    },
    "machines": {
        "preflight": Verb(
            "Compile the members for a TPU that need not be attached.",
            ("member", "topology", "mode", "pair", "backend", "limit", "if_tpu", "force"),
            {"topology": "v5e-8"},
            next="plan",
        ),
        "plan": Verb("Estimate hours, sessions and cost.", ("member", "topology", "machines"), next="train"),
        "bucket": Verb("Synchronise results with storage.bucket.", ("force",)),
        "convert": Verb("Convert images to TFRecord shards.", ("source", "target", "force")),
    },
    "serving": {
        "export": Verb("Export the blend or a member for serving.", ("member", "format", "force"), next="serve"),
        "predict-folder": Verb("Predict a folder of new images into a CSV file.", ("folder", "out", "member")),
        "serve": Verb("Serve an export over HTTP, with a page to try it.", ("member", "engine", "check", "address")),
    },
}
VERBS = {name: verb for verbs in FOLDERS.values() for name, verb in verbs.items()}
MODULES = {name: f"pipelines.{folder}.{name.replace('-', '_')}" for folder, verbs in FOLDERS.items() for name in verbs}
# Verb of the main job -> the stages that it runs; with --alone only that of its own name.
CHAINS = {
    "download": ("download", "prepare"),
    "train": ("resolve", "preflight", "tune", "train"),
    "predict": ("predict", "blend"),
}
TRAIN_IN_BUDGET = ("resolve", "preflight", "budget")  # the stages of train with HOURS or BUDGET
# Options of a stage within a chain, where they differ from those of the verb alone.
IN_CHAIN: dict[str, dict[str, Any]] = {
    "resolve": {"force": False},  # FORCE=1 of train is about fold models
    "preflight": {"mode": "ops", "if_tpu": True, "force": False},
    "tune": {"cluster": "", "as_part": True, "force": False},
}
