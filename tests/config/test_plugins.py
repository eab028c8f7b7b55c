from functools import partial
from pathlib import Path

import pytest
from builders import ROOT

from competition.config import validation
from competition.config.digests import definition_digest
from competition.config.errors import UserError
from competition.config.params_file import file_tree, load_params, parse_overrides
from competition.config.plugins import load_plugins
from competition.ensemble.metrics import metric_named
from competition.ensemble.settings import validate_params
from competition.ensemble.view_transforms import get_views
from competition.input_pipeline.named_augmentations import augmentation_named
from competition.prepare.adapters import ADAPTERS

METRIC = """
import numpy as np
SCALE = 2
def helper(values):
    return np.mean(values) * SCALE
def halved(labels, probs):
    return helper(probs.argmax(1) == labels) / 4
def other(labels, probs):
    return 0.0
METRICS = {"halved": halved, "other": other}
"""


def plugins_file(folder: Path, code: str) -> Path:
    path = folder / "mine.py"
    path.write_text(code)
    return path


def test_the_path_is_relative_to_the_file_that_states_it(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    plugins_file(tmp_path / "code", METRIC)
    (tmp_path / "code" / "base.yaml").write_text(f"extends: {ROOT}/params.yaml\nplugins: mine.py\n")
    (tmp_path / "recipe.yaml").write_text("extends: code/base.yaml\ncompetition: {metric: halved}\n")
    params = validate_params(load_params(tmp_path / "recipe.yaml"))
    assert params.plugins.file == tmp_path / "code" / "mine.py" and params.competition.metric == "halved"
    assert list(params.plugins.metrics) == ["halved", "other"] and set(validation.ADAPTERS) == set(ADAPTERS)
    assert file_tree(params)["plugins"] == str(tmp_path / "code" / "mine.py")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\ny = x / 0\n", "mine.py line 2: ZeroDivisionError: division by zero"),
        ("import numpy\nimport keras\n", "mine.py line 2: keras is imported when the file is loaded"),
        ("try:\n    import keras\nexcept ImportError:\n    keras = None\n", "mine.py line 2: keras is imported when the file"),
        ("class A:\n    from jax import numpy\n", "mine.py line 2: jax is imported when the file"),
        ("VIEW = {}\n", "mine.py: VIEW is no kind of plugin; did you mean 'VIEWS'?"),
        ("METRICS = {'a b': abs}\n", "METRICS['a b']: a name of letters, digits and '_' was expected"),
        ("METRICS = {'a': lambda y, p: 0}\n", "METRICS['a']: it takes (y, p); the parameters (labels, probs) were expected"),
        ("METRICS = {'a': max}\n", "METRICS['a']: its parameters are unknown; write a function of (labels, probs)"),
        ("MODELS = {'a': lambda classes: 0}\n", "(image_size, classes) or (image_size, classes, alpha) were expected"),
        ("ADAPTERS = {'a': print}\n", "ADAPTERS['a']: a dictionary of the functions download, describe"),
        ("def f(raw): ...\nADAPTERS = {'a': {'rows': f}}\n", "ADAPTERS['a']: its function 'download' is missing"),
        ("import helpers\n", "a plugins file is one file: copy what it needs into it"),  # its changes would not be seen
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_sentence_with_its_line(code: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("")
    with pytest.raises(UserError) as caught:
        load_plugins(plugins_file(tmp_path, code))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_path_may_be_relative_and_without_an_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("def failing(images):\n    return images.nothing\n\n\nVIEWS = {'failing': failing}\n")
    plugins = load_plugins(Path("mine"))
    with pytest.raises(UserError, match=r"^mine line 2: a view: AttributeError"):
        plugins.call("a view", plugins.views["failing"], 1)
    Path("mine").write_text("METRICS = {}\nx = 1 / 0\n")
    with pytest.raises(UserError, match=r"^mine line 2: ZeroDivisionError"):
        load_plugins(Path("mine"))


@pytest.mark.parametrize("line", ["def f():", "async def f():", "if TYPE_CHECKING:"])
def test_an_import_that_does_not_run_with_the_file_is_allowed(line: str, tmp_path: Path) -> None:
    load_plugins(plugins_file(tmp_path, f"from typing import TYPE_CHECKING\n\n{line}\n    import keras\n"))


def test_a_file_knows_its_own_path_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    code = "from pathlib import Path\n\nHERE = Path(__file__).parent\nMETRICS = {str(HERE.name): lambda labels, probs: 0}\n"
    assert list(load_plugins(plugins_file(tmp_path, code)).metrics) == [tmp_path.name]
    assert [file.name for file in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("competition.metric=halvd", "competition.metric: 'halvd' is not known; did you mean 'halved'?"),
        ("predict.views=[identity,helf]", "predict.views: view 'helf' is not known; did you mean 'half'?"),
        ("competition.adapter=min", "SET competition.adapter: no adapter 'min'; did you mean 'mine'?"),
        ("train.augment={spt: 1.0}", "train.augment: 'spt' is not known; did you mean 'spot'?"),
    ],
)
def test_a_misspelt_name_is_refused_before_training(sets: str, message: str, tmp_path: Path) -> None:
    code = "VIEWS, AUGMENTATIONS = {'half': lambda images: 0}, {'spot': lambda image, strength, rng: 0}\ndef f(raw, settings): ...\n"
    code += "ADAPTERS = {'mine': {'download': lambda raw, settings, fetch: 0, 'describe': f, 'rows': f}}\n"
    plugins_file(tmp_path, METRIC + code)
    (tmp_path / "params.yaml").write_text(f"extends: {ROOT}/params.yaml\nplugins: mine.py\n")
    with pytest.raises(UserError, match=message.replace("?", r"\?")) as caught:
        params = validate_params(load_params(tmp_path / "params.yaml", parse_overrides(f"'{sets}'")))
        [augmentation_named(name, params.plugins) for name in params.train.augment]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("METRICS = {'accuracy': lambda labels, probs: 0}", partial(metric_named, "accuracy")),
        ("VIEWS = {'flip_lr': lambda images: images}", partial(get_views, ["flip_lr"])),
        ("AUGMENTATIONS = {'noise': lambda image, strength, rng: image}", partial(augmentation_named, "noise")),
    ],
)
def test_the_projects_own_names_cannot_be_replaced(code: str, use: object, tmp_path: Path) -> None:
    plugins = load_plugins(plugins_file(tmp_path, code))
    with pytest.raises(UserError, match="the project has this name itself; choose another"):
        use(plugins)  # type: ignore[operator]


def changed(*replacements: tuple[str, str]) -> str:
    code = METRIC
    for old, new in replacements:
        assert old in code
        code = code.replace(old, new, 1)
    return code


OTHER_METRIC = ("return 0.0", "return 1.0")
READS_BOTH = ("/ 4", "/ 4 + METRICS['other'](labels, probs)")  # it depends on the whole dictionary


@pytest.mark.parametrize(
    ("before", "after", "is_changed"),
    [
        ([], [("/ 4", "/ 5")], True),
        ([], [("SCALE = 2", "SCALE = 3")], True),
        ([], [("import numpy as np", "import math as np")], True),
        ([], [("METRICS =", "globals()['SCALE'] = 1\nMETRICS =")], True),
        ([], [('"halved": halved', '"halved": other')], True),
        ([READS_BOTH], [READS_BOTH, OTHER_METRIC], True),
        ([], [("    return helper", '    """A docstring."""\n    # a comment\n    return   helper')], False),
        ([], [OTHER_METRIC, (', "other": other', ""), ("\nSCALE", "\nimport csv\n\nSCALE")], False),
    ],
)
def test_the_digest_changes_with_everything_that_a_name_reaches_and_with_nothing_else(before, after, is_changed):
    digests = {definition_digest(changed(*each), "METRICS", "halved") for each in (before, after)}
    assert len(digests) == 1 + is_changed
