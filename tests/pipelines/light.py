"""Handwritten results of `make download predict`, sufficient for the stages that only use Kaggle."""

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from fake_kaggle.server import FakeKaggle
from stages import Ran, Workspace

from competition.artifacts.manifest import write_manifest
from competition.data.competition import Competition
from competition.data.index import COLUMNS
from competition.submission import ledger

PARAMS = """
extends: {root}/params.yaml
competition: {{name: small, adapter: folder, slug: flowers}}
prepare: {{folds: 2}}
members:
  slim: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}
kaggle: {{tries: 3, first_wait: 0.05, longest_wait: 3.0, stall: 600.0, listing_lag: 300.0, score_wait: 300.0, score_pause: 0.05}}
kernel: {{machine: "", devices: 1, internet: false, hours: 0.2, reserve: 0.01, pause: 0.1}}
"""
CSV = b"id,label\na,1\nb,0\n"
DIGEST = hashlib.sha256(CSV).hexdigest()


@dataclass(frozen=True)
class Desk:
    """A fake Kaggle and a folder with one submission that is ready to be sent."""

    kaggle: FakeKaggle
    place: Workspace
    home: Path

    def start(self, stage: str, *arguments: str, sets: str = "") -> "subprocess.Popen[str]":
        environment = {**os.environ, **self.kaggle.environment(self.home)}
        command = self.place.command(stage, *arguments, sets=sets)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def run(self, stage: str, *arguments: str, sets: str = "") -> Ran:
        process = self.start(stage, *arguments, sets=sets)
        out, err = process.communicate(timeout=600)
        assert "Traceback" not in err
        return Ran(process.returncode, out, err)

    def do(self, stage: str, *arguments: str, sets: str = "") -> str:
        ran = self.run(stage, *arguments, sets=sets)
        assert ran.code == 0, f"{ran.out}\n{ran.err}"
        return ran.out

    def refused(self, stage: str, *arguments: str, sets: str = "") -> str:
        ran = self.run(stage, *arguments, sets=sets)
        assert ran.code == 1, f"{ran.out}\n{ran.err}"
        return ran.err

    def note(self, what: str, ref: str = "", public: float | None = None, error: str = "") -> None:
        event = ledger.Event(DIGEST, what, ref, public, None, error, "2026-01-01T00:00:00+00:00")
        ledger.append(self.place.submissions / "ledger.jsonl", event)

    def events(self) -> list[tuple[str, str]]:
        lines = (self.place.submissions / "ledger.jsonl").read_text().splitlines()
        return [(line["what"], line["ref"]) for line in map(json.loads, lines) if line["kind"] == "event"]


def set_up(kaggle: FakeKaggle, folder: Path, root: Path) -> Desk:
    place, home = Workspace(folder / "place"), folder / "home"
    data = place.work / "data"
    for needed in (data, place.submissions, home):
        needed.mkdir(parents=True)
    place.params.write_text(PARAMS.format(root=root))
    Competition("small", "flowers", ("0", "1"), "macro_f1", "label", "id", ("label",), ("0", "1")).save(
        data / "competition.json"
    )
    blank = {
        "place": 0,
        "width": 8,
        "height": 8,
        "bytes": 9,
        "sha256": "",
        "phash": "0" * 16,
        "problem": "",
        "shard": "",
    }
    rows = [("t0", 0, "train", 0), ("t1", 1, "train", 1), ("a", -1, "test", -1), ("b", -1, "test", -1)]
    index = [
        {**blank, "id": name, "label": label, "part": part, "fold": fold, "group": n}
        for n, (name, label, part, fold) in enumerate(rows)
    ]
    pd.DataFrame(index)[list(COLUMNS)].to_csv(data / "index.csv", index=False)
    (data / "sample_submission.csv").write_text("id,label\na,0\nb,0\n")
    write_manifest(data / "manifest.json", {}, [data / "index.csv"], {}, {})
    (place.work / "raw").mkdir()
    (place.work / "raw" / "sample_submission.csv").write_text("id,label\na,0\nb,0\n")
    (place.submissions / f"{DIGEST[:12]}.csv").write_bytes(CSV)
    numbers = {"oof_score": 0.9, "honest_score": 0.9, "standard_error": 0.01, "oof_rows": 9, "test_rows": 2}
    names = {
        "members": ("slim",),
        "weights": (1.0,),
        "views": ("identity",),
        "metric": "macro_f1",
        "made": "2026-01-01",
    }
    entry = ledger.Entry(
        digest=DIGEST,
        file=f"{DIGEST[:12]}.csv",
        competition="small",
        params_digest="",
        git_commit="",
        partial="",
        **names,
        **numbers,
    )
    ledger.append(place.submissions / "ledger.jsonl", entry)
    return Desk(kaggle, place, home)
