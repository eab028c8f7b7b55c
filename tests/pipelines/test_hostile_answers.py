"""What Kaggle answers with status 200 is shown, but no credential in it, and it moves no cursor and looks like no line of goldfold."""

import base64
from urllib.parse import quote

import pytest
from fake_kaggle.parts import FILES, Contest, Run
from light import KaggleSetup, running_kaggle

CALLS = (
    "leaderboard", "download", "submit", "submissions", "leaderboard", "leaderboard --top 1", "kernel_status",
    "kernel_status --log", "quota",
)  # fmt: skip


@pytest.fixture(scope="module")
def kaggle_setup(tmp_path_factory):
    """A server that echoes the credential, control characters and a line like goldfold's in every text."""
    with running_kaggle(tmp_path_factory.mktemp("hostile")) as setup:
        kaggle = setup.kaggle
        echoed = f"{' '.join(credentials(setup))} \x1b[2J\x9b1m\r\nFAKE: scored public 0.99"
        kaggle.contests["flowers"] = Contest(
            FILES,
            listed={**{name: len(data) for name, data in FILES.items()}, f"train/{kaggle.key}.tfrec": 1},
            title=f"Flowers {echoed}",
            leaderboard=((f"Eve {echoed}", f"0.99 {echoed}"), ("Ada's team", "0.98"), ("Alan", "0.97")),
            score=lambda data: ("ERROR", "", "", f"wrong {echoed}"),
        )
        assert "Kaggle does not let this account see ada/goldfold-small" in setup.refused("kernel_status")
        log = [f"epoch 1 {echoed}\n", "\x1b]0;title\x07\n", "out of memory\n"]
        run = Run({}, kaggle.folder / "v1", "ERROR", f"Your code exited with 1 {echoed}", log)
        kaggle.kernels["ada/goldfold-small"].append(run)
        yield setup


@pytest.fixture(scope="module")
def outputs(kaggle_setup: KaggleSetup) -> list[str]:
    """What each of CALLS prints, and a download that Kaggle rejects."""
    results = [kaggle_setup.run(*call.split()) for call in CALLS]
    kaggle_setup.kaggle.faults["GetCompetition"] = ["400"] * 9
    results.append(kaggle_setup.run("download"))
    return [result.out + result.err for result in results]


def credentials(setup: KaggleSetup) -> tuple[str, str, str]:
    """The key as it is, as the client sends it, and as part of an address."""
    key = setup.kaggle.key
    basic = base64.b64encode(f"{setup.kaggle.username}:{key}".encode()).decode()
    return key, f"Basic {basic}", quote(key, safe="")


def test_what_the_server_echoes_shows_no_credential_and_looks_like_no_line_of_goldfold(kaggle_setup, outputs) -> None:
    folder = kaggle_setup.workspace.folder
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".zip", ".tfrec")]
    text = "".join([*outputs, *(path.read_text(errors="replace") for path in files), *map(str, folder.rglob("*"))])
    assert [form for form in credentials(kaggle_setup) if form.removeprefix("Basic ") in text] == []
    assert text.count("[hidden]") >= 5
    # No text from outside moves the cursor or begins a line.
    assert not any(character in "".join(outputs) for character in "\x1b\x9b\x07\r")
    assert "FAKE: scored" in "".join(outputs)
    assert not [line for output in outputs for line in output.splitlines() if line.startswith("FAKE")]


def test_the_rank_of_this_team_the_state_and_log_of_the_kernel_and_the_quota_are_shown(outputs) -> None:
    before, *_, after, top, status, log, quota, _ = outputs
    assert "this account has submitted nothing yet" in before
    assert "Ada's team  <- this team\n" in after and "leaderboard: Ada's team is number 2 of 3" in after
    assert "Kaggle does not return the rank of Ada's team, which is not among these rows" in top
    assert all("kernel: ada/goldfold-small: ERROR (Your code exited with 1 " in output for output in (status, log))
    assert "kernel | epoch 1 " in log and "kernel | out of memory" in log.splitlines()
    assert "quota: TPU: 19.0 h left of 20.0" in quota.splitlines()
