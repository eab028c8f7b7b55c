"""A setting that does not fit to the competition is refused before anything is removed, opened or counted."""

from stages import Workspace

from competition.submission.ledger import count_solution_accesses


def test_a_refused_setting_leaves_the_prepared_data_and_the_count_of_openings(workspace: Workspace) -> None:
    sets = "competition.predicts=probabilities"
    assert "probabilities was asked for, digits takes label" in workspace.refused("prepare", sets=sets)
    by_loss = "competition.metric=log_loss"
    assert "blend: current" in workspace.do("blend")  # with the data that were there
    output = workspace.do("blend", sets=by_loss)
    assert "log_loss scores probabilities, and submissions of small are labels" in output and "make grade" not in output
    assert "the solution was not opened" in workspace.refused("grade", sets=by_loss)
    assert count_solution_accesses(workspace.submissions / "ledger.jsonl", "small") == 0


def test_results_of_another_task_are_refused_by_every_stage_that_uses_the_data(workspace: Workspace) -> None:
    for sets, change in (
        ("competition.metric=quadratic_kappa", "competition.target: single -> ordinal"),
        ("competition.target=ordinal", "competition.target: single -> ordinal"),
        ("competition.label_column=other", "competition.label_column:  -> other"),
    ):
        for stage in ("train", "blend", "report"):
            refused = workspace.refused(stage, sets=sets)
            assert f"the data were prepared with other parameters ({change})" in refused
            assert "` prepares them again" in refused
    for sets in ("competition.source=/of/another/machine", "competition.target=single"):  # stated, no longer detected
        assert "blend: current" in workspace.do("blend", sets=sets)
