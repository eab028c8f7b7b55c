"""Secrets in the environment reach no file and no output, and no names of files and classes are run."""

import base64
import re
import tomllib
from urllib.parse import quote

import pytest
from builders import ROOT
from injection import run_stage
from packaging.requirements import Requirement
from packaging.version import Version
from stages import Workspace

SECRETS = {
    "KAGGLE_USERNAME": "ada",
    "KAGGLE_KEY": "planted-key/7c2b+91",
    "KAGGLE_API_TOKEN": "KGAT_planted0token0value",
    "AWS_SECRET_ACCESS_KEY": "planted/aws+secret",
    "SIGNED_URL": "https://storage.googleapis.com/x?X-Goog-Signature=planted0signature",
}
STAGES = (  # stage, arguments, parameters, faults
    ("download", ("--debug",), "train.epoch=3", ""),
    ("folds", ("--debug",), "", "file.before_rename@*/folds.csv:1:error"),
    ("train", ("--force", "--member", "slim", "--fold", "0"), "", "train.after_steps:1:crash"),
    ("predict", ("--debug",), "members.slim.train.epochs=1", ""),
    ("blend", ("--force",), "", "file.before_sync:1:full"),
    ("submit", (), "", ""),
    ("quota", ("--debug",), "kaggle.max_attempts=1", ""),
    ("report", (), "", ""),
    ("doctor", ("--explain", "UnavailableError: Socket closed"), "", ""),
)


@pytest.mark.timeout(900)
def test_no_secret_is_in_any_file_or_output_after_stages_with_faults(workspace: Workspace) -> None:
    outputs = []
    variables = {"HTTPS_PROXY": "http://127.0.0.1:9", "VERBOSE": "true", **SECRETS}
    for stage, arguments, sets, faults in STAGES:
        result = run_stage(workspace, faults, stage, *arguments, sets=sets, **variables)
        outputs.append(f"{stage} {result.code}\n{result.out}{result.err}")
    files = [path for path in workspace.folder.rglob("*") if path.is_file() and path.stat().st_size < 5_000_000]
    assert {"run.json", "ledger.jsonl", "report.html"} <= {path.name for path in files}
    assert sum("Traceback" in output or "Fatal Python error" in output for output in outputs) >= 4, outputs
    text = "".join(outputs) + "".join(path.read_text(errors="replace") for path in files)
    secrets = [value.split("=")[-1] for name, value in SECRETS.items() if name != "KAGGLE_USERNAME"]
    basic = base64.b64encode(f"{SECRETS['KAGGLE_USERNAME']}:{SECRETS['KAGGLE_KEY']}".encode()).decode()
    coded = [base64.b64encode(value.encode()).decode() for value in secrets]
    forms = [*secrets, *(quote(value, safe="") for value in secrets), *coded, basic]
    assert [form for form in forms if form in text] == []


def test_the_page_of_the_server_inserts_names_as_text_and_never_as_markup() -> None:
    script = (ROOT / "competition/serving/page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", script)


def test_no_version_with_a_known_vulnerability_is_allowed() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    floors = dict(re.findall(r"^\| ([a-z0-9-]+) \| ([0-9.]+) \|", page, re.M))
    assert floors.pop("keras") and len(floors) == 5
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    for package, floor in floors.items():
        allowed = [Requirement(text) for text in every if Requirement(text).name == package]
        versions = [part.version for one in allowed for part in one.specifier if part.operator in (">=", "==")]
        assert versions and all(Version(version) >= Version(floor) for version in versions), package
