"""Run stages as a user does: real processes on a small digits competition in its own folder."""

import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT
from preloaded import READ_AT_IMPORT, run_preloaded

from competition.config.errors import UserError
from competition.config.params_file import load_params, parse_overrides
from competition.ensemble.settings import validate_params
from competition.input_pipeline.named_augmentations import augmentation_named
from competition.workspace.current_blend import stored_blends
from competition.workspace.workspace import Workspace as Results
from pipelines.terminal.job import Job
from pipelines.terminal.options import Options
from pipelines.terminal.verbs import CHAINS, MODULES

PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: small, adapter: digits}}
prepare: {{folds: 3}}
device: {{checkpoint_minutes: 0}}
train: {{epochs: 4, batch: 32, steps_per_call: 5}}
members:
  slim: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}
  wide: {{architecture: cnn, image_size: 16, alpha: 0.5, weights: none}}
predict: {{batch: 100, views: [identity, shift_up]}}
policy: {{rounds: 2}}
blend: {{rounds: 3, bags: 2}}
honest: {{resamples: 50}}
"""
# Code before "download": the first 600 of scikit-learn's 1,797 digits (450 train, 150 test). More rows only take longer.
FEWER_DIGITS = """
from sklearn import datasets
load_digits = datasets.load_digits
datasets.load_digits = lambda **options: tuple(part[:600] for part in load_digits(**options))
"""
MAIN_JOB = ("download", "prepare", "resolve", "tune", "train", "predict", "blend")


@dataclass(frozen=True)
class StageResult:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Workspace:
    """A folder with params.yaml, work/ and submissions/."""

    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / "work" / "small"

    @property
    def params(self) -> Path:
        return self.folder / "params.yaml"

    @property
    def submissions(self) -> Path:
        return self.folder / "submissions"

    def fold(self, member: str, fold: int) -> Path:
        """Folder of a fold model of the member's only run."""
        (folder,) = self.work.glob(f"members/{member}/*/fold{fold}")
        return folder

    def views(self, member: str, fold: int) -> Path:
        """Folder of the only predictions of a fold model of the member's only run."""
        (folder,) = (self.fold(member, fold) / "views").iterdir()
        return folder

    @property
    def blend(self) -> Path:
        """Folder of the blend that was made or confirmed last."""
        folder = stored_blends(self.work)[0][0]
        assert folder is not None
        return folder

    @property
    def scores(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.blend / "scores.json").read_text())
        return content

    @property
    def page(self) -> str:
        return (self.work / "report.html").read_text(encoding="utf-8")

    def ledger(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.submissions / "ledger.jsonl").read_text().splitlines()]

    def command(self, stage: str, *arguments: str, sets: str = "") -> list[str]:
        folders = ["--params", self.params, "--work", self.folder / "work", "--submissions", self.submissions]
        alone = ["--alone"] if stage in CHAINS else []
        python = [sys.executable, "-m", "pipelines"]
        return [*python, stage.replace("_", "-"), *alone, *map(str, folders), "--set", sets, *arguments]

    def run(
        self, stage: str, *arguments: str, sets: str = "", cwd: Path = ROOT, code: str = "", **environment: str
    ) -> StageResult:
        """Run a stage.  code: Python code that runs first in the same process."""
        command, variables = self.command(stage, *arguments, sets=sets), {**os.environ, **environment}
        if code or not needs_new_python(environment):
            return self.result(*run_preloaded(command[2], command[3:], cwd, variables, code))
        result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=variables, timeout=600)
        return self.result(result.returncode, result.stdout, result.stderr)

    def result(self, code: int, out: str, err: str) -> StageResult:
        """Without the parameter file's name in printed commands, so that tests read as with params.yaml, the default."""
        named = re.compile(f" (--params |PARAMS=){re.escape(str(self.params))}")
        return StageResult(code, named.sub("", out), named.sub("", err))

    def do(self, stage: str, *arguments: str, sets: str = "") -> str:
        """Run a stage, expect exit code 0 and return its stdout."""
        result = self.run(stage, *arguments, sets=sets)
        assert result.code == 0, f"{stage}: {result.out}\n{result.err}"
        return result.out

    def do_in_one_process(
        self, *stages: str, arguments: Sequence[str] = (), cwd: Path = ROOT, code: str = "", **environment: str
    ) -> str:
        """Run the stages in one process, as make does, expect exit code 0 and return its stdout.

        arguments: of each stage.  code: see run.
        """
        words = [word for stage in stages for word in ("+", *self.command(stage, *arguments)[3:])][1:]
        result = self.result(*run_preloaded("pipelines", words, cwd, {**os.environ, **environment}, code))
        assert result.code == 0, f"{stages}: {result.out}\n{result.err}"
        return result.out

    def refused(self, stage: str, *arguments: str, sets: str = "") -> str:
        """Run a stage, expect a UserError (one sentence, no traceback, exit code 1) and return its stderr."""
        result = self.run(stage, *arguments, sets=sets)
        assert result.code == 1 and result.err.startswith("goldfold: ") and "Traceback" not in result.err, (
            f"{result.out}\n{result.err}"
        )
        return result.err

    def stopped(self, signal_number: int, wait_for: str, stage: str, *arguments: str) -> StageResult:
        """Start a stage, send a signal once a file matches `wait_for` below work/, and wait for its end."""

        def send(process: ForkServerProcess) -> None:
            while process.is_alive() and not any(self.work.glob(wait_for)):
                time.sleep(0.001)
            if process.is_alive():
                assert process.pid
                os.kill(process.pid, signal_number)

        command = self.command(stage, *arguments)
        return self.result(*run_preloaded(command[2], command[3:], ROOT, os.environ, meanwhile=send))

    def copy_to(self, folder: Path) -> "Workspace":
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return Workspace(folder)

    def weights(self) -> dict[str, str]:
        """member/fold -> sha256 of its weights."""
        return {
            f"{file.parts[-4]}/{file.parts[-2]}": hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(self.work.glob("members/*/*/fold*/weights.npz"))
        }

    def files(self) -> dict[str, tuple[int, int]]:
        """Path -> (inode, modification time) of every result; equal values mean the file was not touched.

        Locks and the image cache are excluded: reading the cache changes its files.
        """
        return {
            path.relative_to(self.folder).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in self.folder.rglob("*")
            if path.is_file() and path.suffix != ".lock" and path.parent.name != "cache"
        }

    def submission(self) -> bytes:
        (file,) = self.submissions.glob("*.csv")
        return file.read_bytes()

    def job(self, sets: str = "", **options: Any) -> Job:
        """The job of a stage for `stage.run(job)`: in this process, which suffices for stages that start no device."""
        overrides = tuple(parse_overrides(sets))
        params = validate_params(load_params(self.params, overrides))
        for augmentation in {name for member in params.members.values() for name in member.train.augment}:
            augmentation_named(augmentation, params.plugins)  # an unknown name is an error
        results = Results(self.work, params, overrides)
        return Job(results, Options(self.params, sets, self.folder / "work", **options), self.submissions)

    def here(self, *stages: str, sets: str = "", **options: Any) -> str:
        """Run stages that start no device in this process, without a new one, and return their lines."""
        lines: list[str] = []
        for stage in stages:
            job = self.job(sets, **options)
            importlib.import_module(MODULES[stage.replace("_", "-")]).run(job)
            lines += job.echoed
        return "\n".join(lines)

    def refused_here(self, stage: str, sets: str = "", **options: Any) -> str:
        """Run a stage in this process, expect a UserError and return its sentence."""
        with pytest.raises(UserError) as refused:
            self.here(stage, sets=sets, **options)
        return str(refused.value)


def needs_new_python(environment: Mapping[str, str]) -> bool:
    """Return True if Python or a package reads one of the variables when it is imported. The project is on the path anyway."""
    return any(n.startswith(READ_AT_IMPORT) and (n, v) != ("PYTHONPATH", str(ROOT)) for n, v in environment.items())


def new_workspace(folder: Path, params: str = PARAMS) -> Workspace:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(params)
    return Workspace(folder)
