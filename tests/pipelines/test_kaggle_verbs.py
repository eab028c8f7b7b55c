"""The read-only Kaggle verbs: leaderboard, kernel status and log, quota."""

import pytest
from fake_kaggle.parts import Contest, Run
from fake_kaggle.small_competition import FILES
from light import running_kaggle


@pytest.fixture(scope="module")
def kaggle_setup(tmp_path_factory):
    with running_kaggle(tmp_path_factory.mktemp("kaggle")) as setup:
        teams = (("Grace\x1b[31m", "0.99"), ("Ada's team", "0.98"), ("Alan", "0.97"))
        setup.kaggle.contests["flowers"] = Contest(FILES, leaderboard=teams)
        yield setup


def leaderboard_lines(kaggle_setup, *arguments):
    return kaggle_setup.do("leaderboard", *arguments).splitlines()[1:]  # the first line names the credential


def test_the_leaderboard_shows_the_top_and_the_rank_of_this_team_if_known(kaggle_setup) -> None:
    contest = kaggle_setup.kaggle.contests["flowers"]
    *rows, last = leaderboard_lines(kaggle_setup)
    assert rows[0].split()[:4] == ["1", "0.99", "2026-01-01", "Grace?[31m"]
    assert len(rows) == 3 and "this account has submitted nothing yet" in last
    kaggle_setup.kaggle._submitted({"competitionName": "flowers"}, b"1", "x.csv")
    *rows, last = leaderboard_lines(kaggle_setup)
    assert rows[1].endswith("Ada's team  <- this team") and last == "leaderboard: Ada's team is number 2 of 3"
    assert leaderboard_lines(kaggle_setup, "--top", "1")[1:] == [
        "leaderboard: Kaggle does not return the rank of Ada's team, which is not among these rows"
    ]
    contest.user_rank = 2
    assert leaderboard_lines(kaggle_setup, "--top", "1")[1:] == ["leaderboard: Ada's team is number 2 of 3"]


def test_the_quota_is_printed(kaggle_setup) -> None:
    lines = kaggle_setup.do("quota").splitlines()[1:]
    assert lines == [
        "quota: TPU: 19.0 h left of 20.0",
        "quota: GPU: 30.0 h left of 30.0",
        "quota: renewed 2026-01-10T00:00 UTC",
    ]


def test_the_kernels_status_and_log_are_shown(kaggle_setup) -> None:
    assert "Kaggle does not let this account see ada/goldfold-small" in kaggle_setup.refused("kernel_status")
    run = Run(
        {}, kaggle_setup.kaggle.folder / "v1", "ERROR", "Your code exited with 1", ["epoch 1\n", "out of memory\n"]
    )
    kaggle_setup.kaggle.kernels["ada/goldfold-small"].append(run)
    state = "kernel: ada/goldfold-small: ERROR (Your code exited with 1)"
    assert state in kaggle_setup.do("kernel_status").splitlines()
    lines = kaggle_setup.do("kernel_status", "--log").splitlines()
    assert "kernel | epoch 1" in lines and "kernel | out of memory" in lines and state in lines
