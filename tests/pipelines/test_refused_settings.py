"""A setting that does not fit to the competition is refused before anything is removed, opened or counted."""

from stages import Workspace

from competition.submission.ledger import count_solution_accesses


def test_a_refused_setting_leaves_the_prepared_data_and_the_count_of_openings(workspace: Workspace) -> None:
    sets = "competition.predicts=probabilities"
    assert "probabilities was asked for, digits takes label" in workspace.refused("prepare", sets=sets)
    by_loss = "competition.metric=log_loss"
    assert "blend: current" in workspace.do("blend")  # with the data that were there
    workspace.do("blend", sets=by_loss)
    assert "the solution was not opened" in workspace.refused("grade", sets=by_loss)
    assert count_solution_accesses(workspace.submissions / "ledger.jsonl", "small") == 0
