"""The prepared data of a work folder are used with the parameters that they were prepared with."""

from pathlib import Path

import pytest
from builders import params

from competition.config.digests import to_plain
from competition.config.errors import UserError
from competition.files.manifest import write_manifest
from competition.workspace.workspace import Workspace


def prepared_with(work: Path, recorded: dict[str, object]) -> Workspace:
    (work / "data").mkdir()
    write_manifest(work / "data" / "manifest.json", {"prepare": recorded}, [], {}, {})
    return Workspace(work, params())


def test_a_parameter_that_did_not_exist_when_the_data_were_prepared_needs_no_other_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = to_plain(params().prepare)
    del recorded["largest_megapixels"]
    monkeypatch.setattr("competition.prepare.prepared.load_prepared", lambda *_: "the data")
    assert prepared_with(tmp_path, recorded).prepared == "the data"


def test_a_parameter_that_the_data_were_prepared_with_may_not_change(tmp_path: Path) -> None:
    workspace = prepared_with(tmp_path, to_plain(params().prepare) | {"folds": 77, "gone": 1})
    with pytest.raises(UserError, match=r"prepare\.folds: 77 -> \d+; prepare\.gone: 1 -> absent\); `make download`"):
        _ = workspace.prepared
