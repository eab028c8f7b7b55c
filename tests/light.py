"""Handwritten results of `make download predict`, sufficient for the stages that only use Kaggle."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pandas as pd
from builders import ROOT, competition, ledger_entry
from fake_kaggle.parts import FILES, Contest
from fake_kaggle.server import FakeKaggle
from preloaded import run_preloaded
from stages import StageResult, Workspace, needs_new_python

from competition.files.manifest import write_manifest
from competition.prepare.index import COLUMNS
from competition.submission import ledger

PARAMS = """
extends: {root}/params.yaml
competition: {{name: small, adapter: folder, slug: flowers}}
prepare: {{folds: 2}}
members:
  slim: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}
kaggle: {{max_attempts: 3, first_wait: 0.05, longest_wait: 3.0, stall: 600.0, listing_lag: 300.0, score_wait: 300.0, score_pause: 0.05}}
kernel: {{machine: "", devices: 1, internet: false, hours: 0.2, reserve: 0.01, pause: 0.1}}
"""
FORKING = """
from competition.files import child_process
from preloaded import ForkedPython, forking
child_process.subprocess = forking(ForkedPython)
"""
CSV = b"id,label\na,1\nb,0\n"
DIGEST = hashlib.sha256(CSV).hexdigest()


@dataclass
class KaggleSetup:
    kaggle: FakeKaggle
    workspace: Workspace
    home: Path

    def environment(self, **variables: str) -> dict[str, str]:
        return self.kaggle.environment(self.home, **variables)

    def run_meanwhile(self, meanwhile: Callable[[ForkServerProcess], None], stage: str) -> StageResult:
        """Run a stage and call meanwhile(its process)."""
        arguments, environment = self.workspace.command(stage)[3:], {**os.environ, **self.environment()}
        return StageResult(*run_preloaded("pipelines", arguments, ROOT, environment, FORKING, meanwhile))

    def run(self, stage: str, *arguments: str, sets: str = "", **variables: str) -> StageResult:
        code = "" if needs_new_python(variables) else FORKING
        result = self.workspace.run(stage, *arguments, sets=sets, code=code, **self.environment(**variables))
        assert "Traceback" not in result.err, result.err
        return result

    def do(self, stage: str, *arguments: str, sets: str = "", **variables: str) -> str:
        result = self.run(stage, *arguments, sets=sets, **variables)
        assert result.code == 0, f"{stage}: {result.out}\n{result.err}"
        return result.out

    def refused(self, stage: str, *arguments: str, sets: str = "", **variables: str) -> str:
        result = self.run(stage, *arguments, sets=sets, **variables)
        assert result.code == 1 and "goldfold: " in result.err, f"{result.out}\n{result.err}"
        return result.err

    def events(self) -> list[tuple[str, str]]:
        lines = (self.workspace.submissions / "ledger.jsonl").read_text().splitlines()
        return [(line["what"], line["ref"]) for line in map(json.loads, lines) if line["kind"] == "event"]


@contextmanager
def running_kaggle(folder: Path) -> Iterator[KaggleSetup]:
    """The server, with the small competition as flowers, and a workspace with one submission; all below `folder`."""
    (folder / "server").mkdir()
    with FakeKaggle(folder / "server") as kaggle:
        kaggle.contests["flowers"] = Contest(FILES)
        yield KaggleSetup(kaggle, light_workspace(folder), folder / "home")


def light_workspace(folder: Path) -> Workspace:
    workspace, home = Workspace(folder / "workspace"), folder / "home"
    data = workspace.work / "data"
    for folder_to_create in (data, workspace.work / "raw", workspace.submissions, home):
        folder_to_create.mkdir(parents=True)
    workspace.params.write_text(PARAMS.format(root=ROOT))
    flowers = competition(("0", "1"), name="small", slug="flowers", metric="macro_f1")
    (data / "competition.json").write_bytes(flowers.json_bytes())
    index = {"id": ["t0", "t1", "a", "b"], "label": [0, 1, -1, -1], "part": ["train"] * 2 + ["test"] * 2}
    index |= {"fold": [0, 1, -1, -1], "group": range(4), "place": 0, "width": 8, "height": 8, "bytes": 9}
    table = pd.DataFrame({**index, "phash": "0" * 16, "sha256": "", "problem": "", "shard": ""})
    table[list(COLUMNS)].to_csv(data / "index.csv", index=False)
    write_manifest(data / "manifest.json", {}, [data / "index.csv"], {}, {})
    for folder_with_sample in (data, workspace.work / "raw"):
        (folder_with_sample / "sample_submission.csv").write_text("id,label\na,0\nb,0\n")
    (workspace.submissions / f"{DIGEST[:12]}.csv").write_bytes(CSV)
    named = {"digest": DIGEST, "file": f"{DIGEST[:12]}.csv", "competition": "small", "members": ("slim",)}
    ledger.append(workspace.submissions / "ledger.jsonl", ledger_entry(**named, oof_rows=9, test_rows=2))
    return workspace
