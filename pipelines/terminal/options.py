"""The options of the verbs, each with its type, default and help text. Standard library only, as verbs.py."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def option(default: Any, help: str, **settings: Any) -> Any:
    """A field of Options.

    settings: as of typer.Option, and for cli.parameter: choices: the accepted texts; min: of a whole number, 0 without it;
    unit: makes it any number above 0, instead of a whole number from `min`, and names it in a refusal; flag: instead of --NAME.
    """
    return field(default=default, metadata={"help": help, **settings})


@dataclass(frozen=True)
class Options:
    """The options of all verbs; verbs.VERBS says which verb has which. One that its verb lacks or that is not given has its default."""

    params: Path = option(ROOT / "params.yaml", "Parameter file; params.yaml by default.")
    sets: str = option("", 'Overrides of parameters: "train.epochs=3 members.cnn.image_size=32".', flag="--set")
    work: Path = option(ROOT / "work", "Folder of all results but submissions; work/ by default.")
    submissions: Path = option(ROOT / "submissions", "Folder of submissions and their ledger; submissions/ by default.")
    force: bool = option(False, "Compute again although the result is current.")
    debug: bool = option(
        False, "Print full tracebacks; of `train`: instead of training, train eagerly on few rows, as `debug`."
    )
    verbose: bool = option(False, "Print the details behind the summary.")
    alone: bool = option(False, "Only the stage of this name, not those that the verb runs before or after it.")
    as_part: bool = option(False, "Tune as a part of `train`: only tune.members, silently if there are none.")
    member: str = option("", "Only this member.", metavar="NAME")
    fold: str = option("", "Only these folds, e.g. 0 or 0,2.", metavar="NUMBERS")
    allow_partial: bool = option(False, "Continue although fold models are missing.")
    debug_rows: int = option(256, "Largest number of rows to train on.", min=1)
    a: str = option("", "First digits of a submission's name.", metavar="DIGEST")
    b: str = option("", "First digits of the other submission's name.", metavar="DIGEST")
    file: str = option("", "This submission instead of the newest.", metavar="NAME")
    again: bool = option(False, "Repeat what is otherwise done once: submit the same file, or push another kernel.")
    run: str = option("", "A run listed by `runs`: MEMBER@DIGITS.", metavar="RUN")
    folds_from: str = option("", "Take groups and folds from this index.csv.", metavar="FILE")
    explain: str = option("", "Explain this error message.", metavar="TEXT")
    topology: str = option("", "TPU: v2-8, v3-8, v4-8, v5e-1/4/8, v5p-8, v6e-1/4/8.", metavar="NAME")
    mode: str = option(
        "compile",
        "compile; quick: least compiler effort, approximate memory; ops: lower only, takes seconds.",
        choices=("compile", "quick", "ops"),
    )
    pair: str = option("newest", "jax and libtpu: newest, or those of Kaggle's image.", choices=("newest", "kaggle"))
    backend: str = option("", "Overrides device.backend.", choices=("tensorflow", "jax"))
    limit: float = option(3600.0, "Seconds that one step may take to be lowered or compiled.", unit="seconds")
    if_tpu: bool = option(False, "Do nothing without an attached TPU.")
    log: bool = option(False, "Print the kernel's log and follow it while the kernel runs.")
    # A larger index does not fit into the kernel's one file and is sent as a dataset.
    inline: int = option(350_000, "Largest compressed index, in bytes, that is sent inside the kernel.", min=0)
    top: int = option(20, "Number of rows.", min=1)
    seeds: int = option(3, "Number of seeds.", min=1)
    workers: int = option(1, "Processes of this machine, or of the cluster, that run trials of one study.", min=1)
    join: bool = option(False, "Only run trials of a study that another process leads.")
    trial: str = option("", "A trial of a study: MEMBER:NUMBER.", metavar="TRIAL")
    source: str = option("", "Overrides convert.source: folder to convert, local or gs://.", metavar="FOLDER")
    target: str = option("", "Overrides convert.target: folder of the shards, local or gs://.", metavar="FOLDER")
    folder: str = option("", "Folder of images to predict.", metavar="FOLDER")
    out: str = option("predictions.csv", "File of the predictions.", metavar="FILE")
    format: str = option("", "saved_model, onnx, or both separated by a comma.", metavar="NAMES")
    engine: str = option("onnx", "What computes the predictions.", choices=("onnx", "saved_model"))
    check: bool = option(False, "Only check that there is an export to serve.")
    address: str = option("127.0.0.1:8501", "Address and port to listen on; port 0 = any.", metavar="HOST:PORT")
    cluster: str = option("", "Run on this Ray cluster: auto, or its address (docs/cluster.md).", metavar="HOST:PORT")
    # 0 = not given. `--hours 0` is refused by cli.parameter: training without a budget could take hours.
    hours: float = option(0.0, "Choose and train members within so many hours (docs/budget.md).", unit="hours")
    budget: str = option("", "A name of hours: quick 0.1, good 1, best 8.", choices=("quick", "good", "best"))
    machines: int = option(0, "Also estimate training on this many machines; 0 = not asked for.", min=0)


FIELDS = {field.name: field for field in fields(Options)}


def flag_of(name: str) -> str:
    """The flag of a field: --allow-partial."""
    return str(FIELDS[name].metadata.get("flag", f"--{name.replace('_', '-')}"))


def make_name(name: str) -> str:
    """The variable of make that gives the same option: ALLOW_PARTIAL, SET."""
    return flag_of(name)[2:].replace("-", "_").upper()
