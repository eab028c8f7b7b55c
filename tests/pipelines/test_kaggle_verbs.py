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


def test_the_leaderboard_shows_the_top_and_the_rank_of_this_team_if_known(kaggle_setup) -> None:
    output = kaggle_setup.do("leaderboard")
    assert "Grace?[31m" in output and "this account has submitted nothing yet" in output
    kaggle_setup.kaggle._submitted({"competitionName": "flowers"}, b"1", "x.csv")
    output = kaggle_setup.do("leaderboard")
    assert "Ada's team  <- this team\n" in output and "leaderboard: Ada's team is number 2 of 3" in output
    output = kaggle_setup.do("leaderboard", "--top", "1")
    assert "Kaggle does not return the rank of Ada's team, which is not among these rows" in output


def test_the_quota_is_printed(kaggle_setup) -> None:
    assert "quota: TPU: 19.0 h left of 20.0" in kaggle_setup.do("quota").splitlines()


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
