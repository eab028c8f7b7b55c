"""Which fold model lies in a result folder of a kernel's output."""

from pathlib import Path

import pandas as pd
from builders import params, run_of

from competition.kernels.import_results import ImportTarget, fold_model_of_folder
from competition.prepare.competition import Competition
from competition.prepare.prepared import Prepared
from competition.workspace.workspace import Workspace

PREPARED = Prepared(
    Path("data"),
    Competition("x", "", ("a", "b"), "macro_f1", "label", "id", ("label",), ("0", "1")),
    pd.DataFrame(),
    "d",
)


def test_a_unit_is_found_by_member_run_and_fold(tmp_path: Path) -> None:
    target = ImportTarget(Workspace(tmp_path, params(), loaded=PREPARED), tmp_path, lambda line: None)
    run = run_of(tmp_path, PREPARED, params(), "cnn")

    def of(result_folder: str) -> tuple[str, object] | None:
        found = fold_model_of_folder(target, result_folder)
        return (found[0].digest, found[1]) if found else None

    folder = f"work/x/members/cnn/{run.folder.name}"
    assert of(f"{folder}/fold3") == (run.digest, 3)
    assert of(f"{folder}/without/1-2") == (run.digest, (1, 2))
    assert of("work/x/members/cnn/0123456789ab/fold3") == (run.digest, 3)  # trained with other parameters
    for result_folder in (
        f"{folder}/fold3/views/0123456789ab",
        "work/x/members/cnn/fold3",
        "work/x/tune/cnn/0123456789ab",
    ):
        assert of(result_folder) is None
    assert of("work/x/members/absent/0123456789ab/fold3") is None
