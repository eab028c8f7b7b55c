"""What Kaggle sends with status 200 shows no credential, moves no cursor and looks like no line of goldfold."""

import base64
from urllib.parse import quote

import pytest
from fake_kaggle.parts import Contest, Run
from fake_kaggle.small_competition import FILES
from light import KaggleSetup, running_kaggle

STAGES = ("download", "submit", "submissions", "leaderboard", "kernel_status", "quota")


@pytest.fixture(scope="module")
def kaggle_setup(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    with running_kaggle(folder) as setup:
        kaggle = setup.kaggle
        basic = base64.b64encode(f"{kaggle.username}:{kaggle.key}".encode()).decode()
        echoed = f"{kaggle.key} Basic {basic} {quote(kaggle.key, safe='')} \x1b[2J\x9b1m\r\nFAKE: scored public 0.99"
        kaggle.contests["flowers"] = Contest(
            FILES,
            listed={**{name: len(data) for name, data in FILES.items()}, f"train/{kaggle.key}.tfrec": 1},
            title=f"Flowers {echoed}",
            leaderboard=((f"Eve {echoed}", f"0.99 {echoed}"),),
            score=lambda data: ("ERROR", "", "", f"wrong {echoed}"),
        )
        log = [f"epoch 1 {echoed}\n", "\x1b]0;title\x07\n"]
        kaggle.kernels["ada/goldfold-small"].append(Run({}, folder / "v1", "ERROR", f"failed {echoed}", log))
        yield setup


@pytest.fixture(scope="module")
def output(kaggle_setup: KaggleSetup) -> str:
    results = [kaggle_setup.run(stage) for stage in STAGES]
    results.append(kaggle_setup.run("kernel_status", "--log"))
    kaggle_setup.kaggle.faults["GetCompetition"] = ["400"] * 9
    results.append(kaggle_setup.run("download"))
    return "\n".join(result.out + result.err for result in results)


def test_a_credential_that_the_server_echoes_is_in_no_output_and_no_file(kaggle_setup, output) -> None:
    kaggle = kaggle_setup.kaggle
    basic = base64.b64encode(f"{kaggle.username}:{kaggle.key}".encode()).decode()
    folder = kaggle_setup.workspace.folder
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".zip", ".tfrec")]
    text = output + "".join(path.read_text(errors="replace") for path in files) + "".join(map(str, folder.rglob("*")))
    assert [form for form in (kaggle.key, basic, quote(kaggle.key, safe="")) if form in text] == []
    assert text.count("[hidden]") >= 5


def test_no_text_from_outside_moves_the_cursor_or_begins_a_line(output) -> None:
    assert not any(character in output for character in "\x1b\x9b\x07\r")
    assert "FAKE: scored" in output
    assert not [line for line in output.splitlines() if line.startswith("FAKE")]
