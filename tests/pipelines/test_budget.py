"""A stated time: complete members at every moment, which no score chose, in an ordinary parameter file that repeats them."""

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from builders import ROOT, pixels_of, save_images
from PIL import Image
from stages import FEWER_DIGITS, Workspace, new_workspace

import goldfold
from competition.budget import portfolio
from competition.budget.clock import start_clock
from competition.budget.portfolio import Network, Weakness, unanimous_choice
from competition.config.errors import UserError
from competition.config.params_file import BUDGET_FILE, load_params
from competition.ensemble.metrics import TargetKind
from competition.prepare.targets import check_training
from competition.report.terminal import TUNED_NOTE
from competition.training.network_trainer import share_after_probe
from pipelines.execution import budget_training, first_look
from pipelines.execution.budget_search import Search, Trial, summary
from pipelines.execution.budget_training import Candidate, at_higher_rate, candidates_to_train, train_if_it_fits

PARAMS = f"""
extends: {ROOT}/tests/small.yaml
budget: {{portfolio: FOLDER/portfolio.yaml}}
members:
  unused: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none, head: {{kind: linear}}}}
predict: {{batch: 100, views: [shift_up, shift_left, identity]}}
"""
CANDIDATE = "  - {{name: {}, cost: {}, source: a test, member: {{architecture: cnn, image_size: {}, alpha: {}, weights: none}}}}"
SMALL, MIDDLE = CANDIDATE.format("small", 1, 16, 0.25), CANDIDATE.format("middle", 2, 16, 0.5)
HUGE = CANDIDATE.format("huge", 9, 448, 2.0)
HOUR = ("--hours", "1")
FEW = FEWER_DIGITS.replace("[:600]", "[:240]")  # 180 train, 60 test
FAULTS = f"import runpy; runpy.run_path('{ROOT}/tests/faults/inject/sitecustomize.py')"
# The second network fits under its first view, and then takes so long that the second view does not.
ONE_VIEW = """
from pipelines.main_job import budget
compute = budget.compute_features
def slow(search, network, **stated):
    def each(pace):
        return (2.0 if network.name == "middle" and pace.times[-1][1] > 240 else 0.01) * search.left / 240
    budget.Pace.each = property(each)
    compute(search, network, **stated)
budget.compute_features = slow
"""
# Prints for every network that is trained whether it was compiled before.
COMPILED = """
from pipelines.execution import training
open_trainer = training.open_trainer
def told(job, member, title, device, inputs):
    if member.head is None:
        print(f"{title}: compiled before: {inputs.engine is not None}")
    return open_trainer(job, member, title, device, inputs)
training.open_trainer = told
"""
# Under two views prediction takes longer than any budget.
SLOW_VIEWS = """
from dataclasses import replace
from pipelines.execution import budget_training
load_of = budget_training.load_of
def slow(member, *others):
    load = load_of(member, *others)
    return load if member.views else replace(load, predicted=1e12)
budget_training.load_of = slow
"""
# Training takes longer than any budget.
SLOW_TRAINING = """
from types import SimpleNamespace
from pipelines.execution import budget_training
budget_training.cost_of = lambda *_: SimpleNamespace(train=1e9, predict=1.0)
"""
# Features are weak, an epoch takes so many of the 3,600 seconds, and there are no other networks.
WEAK = """
from dataclasses import replace
from types import SimpleNamespace
from competition.budget import portfolio
from pipelines.execution import budget_training, first_look
from pipelines.main_job import budget
portfolio.WEAK_LOSS, budget_training.FEW_ROWS, first_look.CLEARLY_LESS = {weak}, {fewest}, {less}
budget_training.load_of = lambda member, *_: member
budget_training.cost_of = lambda member, _: SimpleNamespace(train={seconds} * member.train.epochs, predict=0.0)
weakness = budget_training.weakness
def of_training_rows(losses, class_rows, kind):
    assert [len(rows) for rows in class_rows] == [90, 90]
    return weakness(losses, class_rows, kind)
budget_training.weakness = of_training_rows
budget_training.at_higher_rate = lambda train, rows: replace(train, learning_rate=rows / 1e6)
budget.make_features = lambda *_: {then}
"""
FLATTERED = """
from pipelines.execution import training
train_and_store = training.train_and_store
def tampered(session, *others):
    files, result = train_and_store(session, *others)
    return files, {**result, "held_out": float("rbf" in session.run.name)}
training.train_and_store = tampered
"""
SAMPLED = """
from pipelines.execution import first_look
first_look.MANY_ROWS, first_look.SAMPLE = 150, 40
"""


def workspace_with(folder: Path, *candidates: str) -> Workspace:
    workspace = new_workspace(folder, PARAMS.replace("FOLDER", str(folder)))
    (folder / "portfolio.yaml").write_text("\n".join(["candidates:", *candidates, ""]))
    return workspace


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Downloaded and prepared digits with a portfolio of two small networks of random weights."""
    workspace = workspace_with(tmp_path_factory.mktemp("prepared"), MIDDLE, SMALL)
    workspace.do_in_one_process("download", "prepare", "resolve", code=FEW)
    return workspace


@pytest.fixture(scope="module")
def spent(prepared: Workspace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """The workspace after a budget that pays for everything, and its output."""
    workspace = prepared.copy_to(tmp_path_factory.mktemp("spent"))
    return workspace, workspace.do_in_one_process("budget", "predict", "blend", arguments=HOUR, code=COMPILED)


def test_the_cheapest_member_comes_first_every_complete_one_is_blended_and_no_row_chose_any_of_them(spent) -> None:
    workspace, output = spent
    first = re.search(r"first honest macro_f1 after \S+ \w+: (0\.\d+) ± \S+ by (\S+); the trivial .* (0\.\d+)", output)
    assert first and first[2] == "small-linear" and float(first[1]) > 0.6 > float(first[3])
    rows = dict(re.findall(r"^  (\S+) +\S+ \w+ +0\.\d+ +(.+)$", output, re.M))
    expected = {f"{network}-{kind}" for network in ("small", "middle") for kind in ("linear", "rbf", "mlp", "tuned")}
    params, text = load_params(workspace.work / BUDGET_FILE), (workspace.work / BUDGET_FILE).read_text()
    assert rows == dict.fromkeys(expected, "kept") and set(params.members) == expected
    assert not params.blend.members  # all, so that a member which a user adds to the file is blended, too
    assert not any(member.tuned_folds for member in params.members.values()) and "OPTIMISTIC" not in output
    assert all(re.search(rf"# macro_f1 0\.\d+, \d+ \w+\n  {name}:", text) for name in expected), text
    # The network that every fold prefers is fine-tuned first, and heads of the other one wait.
    losses = {}
    for name in ("middle", "small"):
        files = sorted(workspace.work.glob(f"members/{name}-linear/*/fold*/history.csv"))
        losses[name] = [float(pd.read_csv(file)["loss"][0]) for file in files]
    assert len(losses["small"]) == 2
    tried = re.findall(r"^  (\S+) +\S+ \w+ +0\.\d+ +kept$", output, re.M)
    preferred = next(name for name in tried if name.endswith("-tuned")).removesuffix("-tuned")
    assert preferred == (unanimous_choice(losses) or "middle")  # the first of the portfolio
    other = {"small": "middle", "middle": "small"}[preferred]
    assert tried.index(f"{preferred}-mlp") < tried.index(f"{preferred}-tuned") < tried.index(f"{other}-rbf")
    assert unanimous_choice({"a": [0.5, 0.6, 0.4], "b": [0.4, 0.5, 0.3]}) == "b"
    assert unanimous_choice({"a": [0.5, 0.6, 0.2], "b": [0.4, 0.5, 0.3]}) == ""
    assert unanimous_choice({"a": [0.5]}) == "a" and unanimous_choice({}) == ""


def test_a_network_whose_training_step_was_measured_is_trained_without_compiling_it_again(spent) -> None:
    compiled_before = set(re.findall(r"^(\w+-tuned): compiled before: (\w+)$", spent[1], re.M))
    assert compiled_before == {("small-tuned", "True"), ("middle-tuned", "True")}


def search_in(workspace: Workspace, *views: str) -> Search:
    """A search of one hour that has not begun."""
    return Search(workspace.job(), start_clock(1.0, ""), None, views)  # type: ignore[arg-type]


def test_a_score_with_rows_that_chose_hyperparameters_is_marked_as_in_the_table_of_runs(prepared) -> None:
    search = search_in(prepared, "identity")
    plain = replace(search.job.params.members["unused"], head=None)
    search.members.update(plain=plain, tuned=replace(plain, tuned_folds=(0,)))
    search.trials += [Trial(name, 1.0, 0.9, "kept") for name in search.members]
    search.trials.append(Trial("given-up", 1.0, 0.8, "kept"))  # its time ran out when it was made again for fewer views
    lines = [line.split() for line in summary(search)]
    assert [line[3:] for line in lines[1:4]] == [["0.9000", "kept"], ["0.9000", "†", "kept"], ["0.8000", "kept"]]
    assert lines[4][:2] == ["start,", "and"] and lines[5] == f"budget: {TUNED_NOTE}".split()


def test_views_are_given_up_if_a_second_network_fits_instead(prepared: Workspace, monkeypatch) -> None:
    member = replace(prepared.job().params.members["unused"], head=None)
    first, second = Network("small", member, 1.0), Network("middle", replace(member, alpha=0.5), 2.0)
    assert len(prepared.job().prepared.index) == 240
    for small, middle, heads, views in (  # seconds of each image, and of the heads of a member
        (1.25, 2.5, 0, 2),
        (1.25, 7.5, 0, 1),  # both fit into the hour under one view, and not under two
        (1.25, 22.5, 0, 2),  # the second one does not even fit under one
        (0.0001, 14.75, 0, 2),  # the views of the first one cost next to nothing
        (1.25, 2.5, 1_000, 1),  # with heads that take long two views are too many
    ):
        seconds, search = {"small": small, "middle": middle}, search_in(prepared, "identity", "shift_up")
        search.engines.update({name: name for name in seconds})  # type: ignore[misc]
        monkeypatch.setattr(first_look, "pass_seconds", lambda engine, member, seconds=seconds: seconds[engine])
        first_look.settle_views(search, first, [second], heads)
        assert search.views == ("identity", "shift_up")[:views]


def test_a_report_with_the_hours_is_of_the_budget_and_without_them_a_command_names_its_file(spent, tmp_path) -> None:
    workspace = spent[0].copy_to(tmp_path)
    workspace.do("report", *HOUR, sets="members.unused.weights=none device.retries=2")
    page = (workspace.work / "budget" / "report.html").read_text()
    assert "small-linear" in page and "SET=&#34;device.retries=2&#34;" in page  # what the budget's file does not have
    assert not (workspace.work / "report.html").exists()
    words = r"\.csv is not of the current parameters\. The blend is of members that HOURS= made and \S+ does not name; "
    assert re.search(rf"^grade: \w+{words}.*PARAMS=\S+/budget/params\.yaml", workspace.do("grade"), re.M)
    Image.new("RGB", (8, 8)).save(tmp_path / "new.png")
    refused = workspace.refused("predict-folder", "--folder", str(tmp_path), "--out", str(tmp_path / "out.csv"))
    assert f"name their parameter file: PARAMS={workspace.work / BUDGET_FILE}" in refused


def test_a_pretrained_network_is_not_fine_tuned_on_few_rows() -> None:
    params, index = load_params(ROOT / "recipes" / "own-images.yaml"), pd.DataFrame(index=range(200))
    params = replace(params, members={"mine": replace(params.members["linear"], head=None)})
    competition = SimpleNamespace(targets=SimpleNamespace(kind="single"))
    prepared = SimpleNamespace(part=lambda _: index, competition=competition)
    device = SimpleNamespace(backend="jax")
    search = Search(SimpleNamespace(params=params, prepared=prepared), None, device, ("identity",))  # type: ignore[arg-type]
    for candidate in candidates_to_train(search, []):
        train_if_it_fits(search, candidate)
    (trial,) = search.trials
    assert trial.name == "mine" and "left out: frozen features score better on few training rows" in trial.verdict


def test_the_written_file_repeats_the_submission_to_the_byte_without_the_search(spent, tmp_path) -> None:
    again = spent[0].copy_to(tmp_path)
    small = again.work.glob("members/small-*")  # those of the other network would only take as long once more
    for folder in (again.submissions, *small, *(again.work / name for name in ("features", "blend", "blends"))):
        shutil.rmtree(folder)
    file = ["--params", str(again.work / BUDGET_FILE)]
    again.do_in_one_process("tune", "train", "predict", "blend", arguments=file)
    assert again.submission() == spent[0].submission()


def test_scores_decide_nothing(prepared, spent, tmp_path) -> None:
    workspace = prepared.copy_to(tmp_path)
    workspace_with(tmp_path, SMALL)
    output = workspace.do_in_one_process("budget", arguments=HOUR, code=FLATTERED + SAMPLED)
    assert re.search(r"small-rbf .* 1\.0000 +kept", output), output
    flattered, plain = (load_params(one.work / BUDGET_FILE).members for one in (workspace, spent[0]))
    assert flattered == {name: member for name, member in plain.items() if name.startswith("small")}
    # Of many rows a sample is scored first, each fold of it by a head that was fitted to its other folds.
    honest = r"budget: (first )?honest macro_f1 after \S+ \w+: (0\.\d+) ± \S+ by (\S+)( on 40 rows of 180)?"
    looks = re.findall(honest, output)
    assert [look[0] and look[3] for look in looks] == [" on 40 rows of 180", ""] and looks[0][2] == "small-linear"
    assert 0.3 < float(looks[0][1]) < 0.92, looks  # more on rows that the heads were fitted to
    assert re.search(rf"^  small-linear on 40 rows .* a first look: {looks[0][1]} ± ", output, re.M), output


def test_a_second_call_computes_what_is_missing_and_a_network_that_does_not_fit_predicts_identity_only(spent, tmp_path):
    workspace = spent[0].copy_to(tmp_path)
    workspace_with(tmp_path, SMALL)
    shutil.rmtree(workspace.work / "members" / "small-tuned")
    output = workspace.do_in_one_process("budget", arguments=HOUR, code=SLOW_VIEWS)
    assert "features of" not in output, output
    assert set(re.findall(r"^train (\S+) fold \d: .* held-out rows", output, re.M)) == {"small-tuned"}
    members = load_params(workspace.work / BUDGET_FILE).members
    views = {name: member.views for name, member in members.items()}
    assert views == {name: ("identity",) if name.endswith("-tuned") else () for name in members} and len(views) == 4
    assert re.search(r"small-tuned for \d+ epochs under all views .* does not fit: needs about", output), output
    for predictions in workspace.work.glob(
        "members/small-tuned/*/fold*/views"
    ):  # what is trained costs its prediction alone
        shutil.rmtree(predictions)
    output = workspace.do_in_one_process("budget", arguments=HOUR, code=SLOW_TRAINING)
    assert load_params(workspace.work / BUDGET_FILE).members.keys() == members.keys(), output
    assert "train small-tuned: folds 0, 1 current" in output and "small-tuned: on 1 x cpu; 2 views" in output, output


def test_whenever_it_is_killed_the_complete_members_are_submitted(prepared, tmp_path) -> None:
    workspace, states = prepared.copy_to(tmp_path), []
    for count in (7, 5, 10):  # results that are completed before the next kill
        workspace.run("budget", *HOUR, code=FAULTS, GOLDFOLD_FAULTS=f"result.after_manifest:{count}:kill")
        if (workspace.work / BUDGET_FILE).is_file():
            workspace.do_in_one_process("predict", "blend", arguments=HOUR)
            states.append(tuple(load_params(workspace.work / BUDGET_FILE).members))
        else:
            states.append(())
            assert "no member is complete yet" in workspace.refused("predict", *HOUR)
    assert states[0] == () and states[1] == ("small-linear",) and len(states[-1]) >= 2
    assert all(len(file.read_text().splitlines()) == 61 for file in workspace.submissions.glob("*.csv"))


def test_a_candidate_that_does_not_fit_is_left_out_but_the_smallest_member_is_made_in_any_case(prepared, tmp_path):
    workspace = prepared.copy_to(tmp_path)
    workspace_with(tmp_path, HUGE, SMALL)
    started = time.monotonic()
    output = workspace.do("budget", "--hours", "0.003", sets="predict.batch=4")
    assert all(re.search(rf"huge-{kind} .* (does not fit|stopped)", output) for kind in ("linear", "tuned")), output
    assert time.monotonic() - started < 0.003 * 3600 + 60  # a process starts, and the machine may be busy
    shutil.rmtree(workspace.work)
    workspace = prepared.copy_to(tmp_path)
    output = workspace.do("budget", "--hours", "0.0000001")
    assert "do not pay for the smallest member, small-linear" in output and "it is made nevertheless" in output
    assert list(load_params(workspace.work / BUDGET_FILE).members) == ["small-linear"]
    workspace.do("report", "--hours", "0.0000001")
    assert "HOURS=" not in (workspace.work / "budget" / "report.html").read_text()  # the terminal says what they bring


@pytest.mark.long
def test_from_python_the_file_is_written_beside_work_and_the_project_is_opened(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("GOLDFOLD_GOALS")
    names = [f"{name}/{number}.png" for name in ("bright", "dark") for number in range(12)]
    for folder in (photos := tmp_path / "my photos", tmp_path / "other" / "my photos"):
        save_images(folder, names, pixels_of(np.repeat([0, 2], 12)))
    with pytest.raises(goldfold.UserError, match="expected a positive number of hours"):
        goldfold.fit(photos, hours=-1.0, work=tmp_path / "work")
    file = tmp_path / "my-photos.yaml"
    assert load_params(file).competition.source == str(photos)
    workspace_with(tmp_path, SMALL)
    net = "{architecture: cnn, image_size: 16, alpha: 0.25, weights: none, head: {kind: linear}}"
    budget = f"budget: {{portfolio: {tmp_path}/portfolio.yaml}}\ntrain: {{probe: false}}\nmembers: {{net: {net}}}\n"
    file.write_text(f"{file.read_text()}honest: {{resamples: 50}}\n{budget}")
    project = goldfold.fit(photos, "prepare.folds=2", hours=0.005, work=tmp_path / "work")
    assert "small-linear" in project.scores().index and project.folds["fold"].nunique() == 2
    assert "next: " not in capsys.readouterr().out
    with pytest.raises(goldfold.UserError, match="is of another source"):
        goldfold.fit(tmp_path / "other" / "my photos", work=tmp_path / "work")


def test_a_line_that_is_no_network_is_refused_and_every_network_has_a_name_of_its_own(tmp_path: Path) -> None:
    params = load_params(ROOT / "params.yaml")
    workspace_with(tmp_path, SMALL.replace("cost: 1", "cost: 0"))
    with pytest.raises(UserError, match=r"candidates\.0\.cost: Input should be greater than 0"):
        portfolio.read_portfolio(tmp_path / "portfolio.yaml", params)
    network = next(iter(params.members.values()))
    params = replace(params, members={"net": network, "net-linear": network, "net-network-rbf": network})
    (one,) = portfolio.networks_of(params, [Network("net", network, 1.0)])
    assert one.name == "net-portfolio"  # it is no member's name with the ending of a candidate
    params = load_params(ROOT / "recipes" / "own-images.yaml")
    linear = params.members["linear"]
    others = {"mobilenet": replace(linear, head=None, image_size=128), "b": replace(linear, alpha=0.5)}
    networks = portfolio.networks_of(replace(params, members={**params.members, **others}), [])
    assert [one.name for one in networks] == ["mobilenet-224", "mobilenet", "mobilenet-224-2"]


@pytest.mark.parametrize("kind", ["single", "multi", "regression"])
def test_fine_tuning_has_parameters_that_the_target_and_the_number_of_rows_allow(kind: TargetKind) -> None:
    member = replace(load_params(ROOT / "recipes" / "own-images.yaml").members["linear"], head=None)
    network = Network("net", member, 1.0)
    few, many = (portfolio.fine_tuned(network, rows, kind, Weakness()).train for rows in (1_000, 30_000))
    weak, weaker = (portfolio.fine_tuned(network, 1_000, kind, Weakness(0.5, most)).train for most in (0.7, 0.9))
    assert weak.trained_share == weaker.trained_share == 1.0 > few.trained_share and weak.epochs > few.epochs
    assert weak.shift == weaker.zoom == 0.0 < few.shift
    # At one rate for all layers, features that say next to nothing are forgotten before the others learn.
    assert weaker.layer_decay == few.layer_decay < weak.layer_decay == 1.0
    for train in (few, many, weak, weaker):
        check_training(kind, "net-tuned", train)
    assert few.mixup < many.mixup and few.epochs > many.epochs > few.freeze_epochs
    search, tuned = SimpleNamespace(views=("identity",), weak=Weakness()), replace(member, train=few)
    tried = [one.train.epochs for one in budget_training.variants(search, Candidate("net-tuned", tuned, 1, network))]
    assert (min(tried), max(tried)) == (1 if kind == "single" else 2, few.epochs)


@pytest.mark.parametrize(
    ("backend", "untrained", "is_measured"), [("tensorflow", 1.0, True), ("jax", 0.2, False), ("jax", 0.0, True)]
)
def test_no_training_step_is_measured_whose_compilation_does_not_fit(backend, untrained, is_measured, monkeypatch):
    params, index = load_params(ROOT / "recipes" / "own-images.yaml"), pd.DataFrame(index=range(1_000))
    job = SimpleNamespace(params=params, prepared=SimpleNamespace(part=lambda _: index))
    search = Search(job, None, SimpleNamespace(backend=backend), ("identity",))  # type: ignore[arg-type]
    monkeypatch.setattr(Search, "left", 30.0)  # seconds
    search.each["net"], search.compile_seconds["net"] = 1e-9, 10.0
    search.complete.append("net-linear")
    monkeypatch.setattr(budget_training, "train_epochs_that_fit", lambda *_: search.trials.append("measured"))
    monkeypatch.setattr(budget_training, "missing_shares", lambda *_: (untrained, 1.0))
    network = Network("net", replace(params.members["linear"], head=None), 1.0)
    train_if_it_fits(search, Candidate("net-tuned", network.member, 1, network))
    assert (search.trials == ["measured"]) == is_measured and len(search.trials) == 1


def test_features_are_weak_if_every_fold_says_so_by_its_own_training_rows() -> None:
    four_classes = np.eye(4, dtype=bool)  # constant probabilities of .25 lose 1.386
    two_classes = four_classes[[0, 0, 1, 1]]  # those of .5 lose 0.693
    two_labels = np.array([[True, False], [False, False], [True, True], [False, True]])  # 0.693 each
    for losses, rows, kind, is_weak in (
        ([0.50, 0.80], [four_classes, four_classes], "single", True),
        ([0.48, 0.80], [four_classes, four_classes], "single", False),
        ([0.50, 0.80], [four_classes, four_classes], "regression", False),
        ([0.50, 0.25], [four_classes, two_classes], "single", True),
        ([0.25, 0.50], [four_classes, two_classes], "single", False),
        ([0.25], [two_labels], "multi", True),
        ([0.24], [two_labels], "multi", False),
    ):
        assert portfolio.weakness(losses, rows, kind).is_weak == is_weak, (losses, kind)
    assert portfolio.weakness([0.50, 0.80], [four_classes] * 2, "single").most == pytest.approx(0.80 / 1.386, rel=1e-3)


@pytest.mark.parametrize(("epochs", "full_share"), [(1, 0.1024), (2, 0.4096), (3, 0.9216), (4, 1.0), (10, 1.0)])
def test_a_short_training_on_weak_features_is_protected_for_half_of_the_steps(epochs, full_share) -> None:
    train = replace(load_params(ROOT / "recipes" / "own-images.yaml").train, epochs=epochs, learning_rate=6e-4)
    changed = at_higher_rate(train, rows=1_053)  # 32 batches of 32 per epoch
    rate = changed.learning_rate * share_after_probe(changed, epochs * 32)
    assert train.probe and rate == pytest.approx(full_share * 6e-4, rel=0.01)
    alone = replace(train, probe=False)
    assert at_higher_rate(alone, rows=1_053) == alone


@pytest.mark.parametrize(
    ("weak", "fewest", "less", "is_trained"),
    [(0.0, 90, 0.0, True), (1.0, 90, 0.0, False), (0.0, 91, 0.0, False), (0.0, 90, 99.0, False)],
)
def test_a_network_of_weak_features_is_trained_before_others_unless_these_say_more(
    prepared, tmp_path, weak, fewest, less, is_trained
):
    workspace = prepared.copy_to(tmp_path)
    code = WEAK.format(weak=weak, fewest=fewest, less=less, seconds=180.0, then="exit()")
    assert workspace.run("budget", *HOUR, code=code).code == 0
    members = load_params(workspace.work / BUDGET_FILE).members  # a fold model has 90 training rows
    assert list(members) == ["small-linear", *(["small-tuned"] if is_trained else [])]
    if is_trained:  # 17 epochs of 207 s, the reserve included, are the most that fit into the hour
        train = members["small-tuned"].train
        assert (train.epochs, train.trained_share, train.learning_rate) == (17, 1.0, 90e-6)
        # What is complete is kept, also if a second call measures that fewer epochs fit, or a few more.
        for seconds in (400.0, 165.0):
            assert workspace.run("budget", *HOUR, code=code.replace("180.0", str(seconds))).code == 0
            assert load_params(workspace.work / BUDGET_FILE).members == members


def test_a_network_that_does_not_fit_before_the_others_is_not_measured_again_after_them(prepared, tmp_path) -> None:
    code = WEAK.format(weak=0.0, fewest=90, less=0.0, seconds=4_000.0, then="None")
    result = prepared.copy_to(tmp_path).run("budget", *HOUR, code=code)
    assert len(re.findall(r"small-tuned .* does not fit", result.out)) == 1, result.out + result.err


@pytest.mark.long
def test_a_network_that_fits_under_one_view_only_takes_the_views_of_the_first_member(prepared, tmp_path) -> None:
    workspace = prepared.copy_to(tmp_path)
    result = workspace.run("budget", "--hours", "0.01", code=ONE_VIEW)
    assert "middle fits under one view only, so identity is the only one" in result.out, result.err
    params = load_params(workspace.work / BUDGET_FILE)
    assert params.predict.views == ("identity",) and len(params.members) > 2
    assert {member.head.views for member in params.members.values() if member.head} == {("identity",)}


def test_a_stated_network_that_cannot_be_used_is_an_error_before_anything_is_computed(prepared, tmp_path) -> None:
    workspace = prepared.copy_to(tmp_path)
    file = tmp_path / "raw.keras"
    save = f"import keras; keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Conv2D(4, 3)]).save('{file}')"
    network = f"architecture: from_file, image_size: 16, alpha: 1.0, weights: {file}"
    workspace.params.write_text(workspace.params.read_text().replace("members:", f"members:\n  own: {{{network}}}", 1))
    result = workspace.run("budget", *HOUR, code=save)
    assert result.code == 1 and f"own: weights '{file}': the model does not normalise pixels itself" in result.err
    assert "features of" not in result.out and not (workspace.work / "features").exists()
