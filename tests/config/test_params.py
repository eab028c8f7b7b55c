import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.config.params import ExternalFiles, Params
from competition.config.params_file import file_tree, load_params, parse_overrides
from competition.config.yaml_text import parse_yaml, set_value

PROJECT = Path(__file__).resolve().parents[2] / "params.yaml"
# Without its comments, which take half of the time to read.
TEXT = re.sub(r"\s*(?<!\S)#.*", "", PROJECT.read_text(encoding="utf-8")).strip() + "\n"


def line_of(start: str) -> int:
    return next(n for n, line in enumerate(TEXT.splitlines(), 1) if line.startswith(start))


EPOCHS = line_of("  epochs:")


def params_with(old: str, new: str) -> str:
    """params.yaml with the first occurrence of `old` replaced; fails if there is none."""
    assert TEXT.count(old) >= 1, f"{old!r} does not occur in params.yaml"
    return TEXT.replace(old, new, 1)


def load(folder: Path, content: str | bytes, overrides: str = "") -> Params:
    path = folder / "params.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_params(path, parse_overrides(overrides))


def user_error(folder: Path, content: str | bytes, overrides: str = "") -> str:
    with pytest.raises(UserError) as caught:
        load(folder, content, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_params_file_and_all_recipes_are_accepted() -> None:
    recipes = sorted(PROJECT.parent.glob("recipes/*.yaml"))
    files = [PROJECT, *(recipe for recipe in recipes if recipe.name != "portfolio.yaml")]
    assert all(load_params(file).members for file in files)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  epochs: 12", "  epoch: 12", f"params.yaml line {EPOCHS}: train.epoch: unknown key; did you mean 'epochs'?"),
        ("train:\n", "trian:\n", "trian: unknown key; did you mean 'train'?"),
        ("epochs: 12", "epochs: many", f'line {EPOCHS}: train.epochs: "many" was found; input should be a valid'),
        ("epochs: 12", "epochs: true", "train.epochs: true was found"),
        ("epochs: 12", "epochs: 0", "train.epochs: 0 was found; input should be greater than or equal to 1"),
        ("probe: false", "probe: yes", 'train.probe: "yes" was found'),
        ("dropout: 0.2", "dropout: .nan", "train.dropout: NaN was found"),
        ("flip: none", "flip: horizontl", "train.flip: \"horizontl\" was found; input should be 'none', 'horizontal'"),
        ("name: digits", "name: ../up", 'competition.name: "../up" was found; a name of letters'),
        ("  small:", "  7:", ": the name 7 is not text; write it in quotes"),
        ("    weights: none", "", "members.cnn.weights: missing"),
        (
            "views: [identity, shift_up",
            "views: identity #",
            'predict.views: "identity" was found; a list was expected, such as',
        ),
        ("members: [small]", "members: [smal]", "tune.members.0: no member 'smal'; did you mean 'small'?"),
        ("low: 5.0e-4", "low: 5.0e-1", "tune.search.learning_rate: low 0.5 and high 0.008 are not an interval"),
    ],
)
def test_a_wrong_value_is_an_error_with_its_key_and_the_expected_value(tmp_path, old, new, message):
    assert message in user_error(tmp_path, params_with(old, new))


ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
DEEP_ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5_000))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a mapping of blocks (competition:, train:, ...) was expected, nothing was found"),
        (TEXT.encode("utf-16"), "is not UTF-8"),
        (TEXT.encode() + b"---\na: 1\n", "found another document"),
        (params_with("  epochs: 12", "  epochs: 12\n  epochs: 3"), f'line {EPOCHS + 1}: found duplicate key "epochs"'),
        (params_with("  epochs: 12", "\tepochs: 12"), f"line {EPOCHS}: found character '\\t'"),
        (params_with('slug: ""', "slug: !!python/object/apply:os.system [ls]"), "the YAML tag tag:yaml.org"),
        (b"a: *b\n", "line 1: found undefined alias"),
        (b"a: &a [x, *a]\n", "more than 100,000 values with aliases written out"),
        (ALIAS_BOMB.encode(), "more than 100,000 values with aliases written out"),
        (DEEP_ALIASES.encode(), "more than 100,000 values"),
        (b"#" * 1_000_001, "1,000,001 bytes were found, at most 1,000,000 are read"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None if len(value) < 80 else "",
)
def test_a_file_that_is_not_plain_yaml_is_an_error(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert message in user_error(tmp_path, content)


def test_a_path_without_a_readable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.yaml: No such file or directory; PARAMS=FILE names"):
        load_params(tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match="Is a directory"):
        load_params(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("on", "on"), ("y", "y"), ("off", "off"),  # booleans of YAML 1.1 only
        ("2024-01-02", "2024-01-02"), ("1:30", "1:30"), ("a#b", "a#b"), ("'no # comment'", "no # comment"),
        ('"\\u00e9"', "é"), ("a &b *c", "a &b *c"), ("1e-3", 1e-3), ("3", 3.0), (".5", 0.5), ("010", 10.0),
    ],
)  # fmt: skip
def test_strings_and_numbers_are_read_as_in_yaml_1_2(tmp_path: Path, text: str, value: str | float) -> None:
    if isinstance(value, str):
        assert load(tmp_path, params_with('slug: ""', f"slug: {text}")).competition.slug == value
    else:
        train = load(tmp_path, params_with("learning_rate: 4.0e-3", f"learning_rate: {text}")).train
        assert train.learning_rate == value


@pytest.mark.parametrize("change", [lambda t: "\ufeff" + t, lambda t: t.replace("\n", "\r\n"), lambda t: t + "# end"])
def test_byte_order_marks_line_ends_and_comments_do_not_change_the_parameters(tmp_path: Path, change) -> None:
    assert load(tmp_path, change(TEXT)) == load_params(PROJECT)


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("train.learning_rate=1e-3", "train.learning_rate", 1e-3),
        ('predict.views="[identity, flip_lr]"', "predict.views", ["identity", "flip_lr"]),
        ('competition.slug="a b"', "competition.slug", "a b"),
        ("competition.slug=", "competition.slug", ""),
        ("competition.slug='\"7\"'", "competition.slug", "7"),
        ("predict.views=[identity, flip_lr]", "predict.views", ["identity", "flip_lr"]),
        ("tune.search={shift: {low: 0, high: [a, b]}}", "tune.search", {"shift": {"low": 0, "high": ["a", "b"]}}),
        ("competition.slug=a,b", "competition.slug", "a,b"),
    ],
)  # fmt: skip
def test_set_takes_a_key_path_and_a_yaml_value(text: str, path: str, value: object) -> None:
    (override,) = parse_overrides(text)
    assert (".".join(override.path), override.value) == (path, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.epochs", "SET: 'train.epochs' was found where key.path=value was expected"),
        ('train.epochs="3', "SET: 'train.epochs=\"3' cannot be read (no closing quotation)"),
        ("predict.views=[identity, flip_lr train.epochs=3", "close the bracket or the quote"),
        ("predict.views=[identity]] train.epochs=3", "put a text that contains blanks or special characters in quotes"),
        ("train.epochs=3, train.batch=8", "SET: 'train.epochs=3,' was found where key.path=value was expected"),
        ("trian.epochs=3", "SET trian: unknown key; did you mean 'train'?"),
        ("train.epoch=3", "SET train.epoch: unknown key; did you mean 'epochs'?"),
        ("members.cnn.epoch=3", "SET members.cnn.epoch: unknown key; did you mean 'members.cnn.train.epochs'?"),
        ("members.cnn.epochs=20", "unknown key; did you mean 'members.cnn.train.epochs'?"),
        ("members.cnn.lr=1", "unknown key; did you mean 'members.cnn.train.learning_rate'?"),
        ("members.cnn.batch=8", "unknown key; did you mean 'members.cnn.train.batch'?"),
        ("members.cnn.seed=8", "unknown key; did you mean 'seeds'?"),
        ("members.cnn.methods=[mean]", "unknown key; did you mean 'blend.methods'?"),
        ("train.epochs.x=3", "SET train.epochs.x: train.epochs is a value, not a block"),
        ("members.cnn.tuned_folds=[5]", "SET members.cnn.tuned_folds.0: fold 5 was found, folds are 0 to 4"),
        ("tune.trials=2 tune.folds=[0,5]", "SET tune.folds.1: fold 5 was found, folds are 0 to 4"),
    ],
)
def test_a_wrong_override_is_an_error_that_names_set(tmp_path: Path, text: str, message: str) -> None:
    assert message in user_error(tmp_path, TEXT, text)


MEMBER_TRAIN = params_with("    weights: none", "    weights: none\n    train: {epochs: 3, batch: 8}")


@pytest.mark.parametrize(
    ("text", "overrides", "epochs", "batch"),
    [
        (MEMBER_TRAIN, "", [3, 12], 8),
        (MEMBER_TRAIN, "train.epochs=5", [5, 5], 8),
        (MEMBER_TRAIN, "train.epochs=5 members.cnn.train.epochs=6", [6, 5], 8),
        (TEXT, "members.small.train.epochs=2", [12, 2], 64),  # a member without a train block
    ],
)
def test_the_train_block_of_a_member_states_differences_and_set_comes_first(tmp_path, text, overrides, epochs, batch):
    params = load(tmp_path, text, overrides)
    assert [member.train.epochs for member in params.members.values()] == epochs
    assert params.members["cnn"].train.batch == batch
    assert params.members["cnn"].train.learning_rate == params.train.learning_rate


def test_a_recipe_states_only_the_differences_from_its_base(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(TEXT)
    block = TEXT[TEXT.index("  cnn:\n") : TEXT.index("  small:\n")].replace("cnn:", "one:")
    recipe = f"extends: base.yaml\ntrain: {{epochs: 3}}\nmembers:\n{block}"
    params = load(tmp_path, recipe)
    assert (params.train.epochs, params.train.batch, list(params.members)) == (3, 64, ["one"])
    assert "params.yaml line 2: train.epoch: unknown key" in user_error(tmp_path, recipe.replace("epochs", "epoch"))
    (tmp_path / "base.yaml").write_text(params_with("folds: 5", "folds: 1"))
    assert f"base.yaml line {line_of('  folds:')}: prepare.folds: 1 was found" in user_error(tmp_path, recipe)
    (tmp_path / "base.yaml").unlink()
    assert "base.yaml: no such file" in user_error(tmp_path, recipe)
    (tmp_path / "base.yaml").write_text("extends: params.yaml\n")
    assert "params.yaml -> base.yaml -> params.yaml is a cycle; remove `extends`" in user_error(tmp_path, recipe)


def test_an_error_names_the_file_that_a_value_comes_from(tmp_path: Path) -> None:
    """params.yaml extends base.yaml, which has a whole member `small` with none as weights and tuned_folds [4]."""
    size = "    image_size: 16\n"
    (tmp_path / "base.yaml").write_text(params_with(size, f"{size}    tuned_folds: [4]\n"))
    inherited = f"base.yaml line {line_of(size.rstrip()) + 1}: members.small.tuned_folds.0: fold 4 was found"
    replaced = "extends: base.yaml\nmembers:\n  small: {image_size: 16}\n"
    assert user_error(tmp_path, replaced).startswith("params.yaml line 3: members.small.architecture: missing")
    message = user_error(tmp_path, "extends: base.yaml\nprepare: {folds: 4}\ntune: {folds: [0, 1], trials: 0}\n")
    assert message.startswith(inherited) and message.endswith(" (params.yaml line 2: prepare.folds)")


ANCHORS = f"""extends: {PROJECT}
members:
  a: &common {{architecture: cnn, image_size: 32, alpha: 0.5, weights: none, train: {{epochs: 3}}}}
  b: *common
  c: {{<<: *common, image_size: 64}}
"""


def test_anchors_aliases_and_merge_keys_may_be_used_and_set_changes_one_alias_only(tmp_path: Path) -> None:
    params = load(tmp_path, ANCHORS)
    assert params.members["a"] == params.members["b"] and params.members["c"].image_size == 64
    params = load(tmp_path, ANCHORS, "members.b.train.epochs=5 members.b.alpha=1.0")
    assert [(m.train.epochs, m.alpha) for m in params.members.values()] == [(3, 0.5), (5, 1.0), (3, 0.5)]


def test_set_may_add_a_member_with_all_its_keys(tmp_path: Path) -> None:
    big = "members.big.architecture=cnn members.big.image_size=64"
    for train, epochs in (("", 12), ("members.big.train.epochs=3", 3)):
        params = load(tmp_path, TEXT, f"{big} members.big.alpha=1.0 members.big.weights=none {train}")
        assert list(params.members) == ["cnn", "small", "big"] and params.members["big"].image_size == 64
        assert params.members["big"].train.epochs == epochs
    lacking = user_error(tmp_path, TEXT, "members.smal.weights=none")
    needs = "a new member needs architecture, image_size, alpha and weights"
    assert lacking.startswith(f"SET members.smal.architecture: missing; {needs}")
    assert lacking.endswith("(params.yaml is read: is PARAMS= missing?); did you mean 'small'?")
    for name in ("photos.yaml", "budget/params.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(TEXT)
        with pytest.raises(UserError) as caught:
            load_params(tmp_path / name, parse_overrides("members.smal.weights=none"))
        assert "PARAMS=" not in str(caught.value)


@pytest.mark.parametrize("value", ["null", "[1]", "{a: 1}"])
def test_any_kind_of_value_at_any_key_gives_params_or_a_user_error(tmp_path, value) -> None:
    for key in ("train", "train.epochs", "members", "members.cnn", "tune.search", "predict.views", "blend.methods"):
        with suppress(UserError):
            load(tmp_path, TEXT, f"{key}={value}")


EXTERNAL = "  torch:\n    predictions: {oof: a.csv, test: b.csv}\n"
TRAINED = "  own: {architecture: cnn, image_size: 32, alpha: 0.5, weights: none}\n"


def with_members(*members: str) -> str:
    return f"extends: {PROJECT}\nmembers:\n{''.join(members)}"


def test_a_member_with_predictions_is_an_external_member_and_both_kinds_are_written_and_read_back(tmp_path) -> None:
    params = load(tmp_path, with_members(EXTERNAL, TRAINED), "members.torch.predictions.oof=c.csv")
    assert list(params.members) == ["own"] and params.external == {"torch": ExternalFiles("c.csv", ("b.csv",), "")}
    (tmp_path / "written.json").write_text(json.dumps(file_tree(params)))
    assert load_params(tmp_path / "written.json") == params
    alone = load(tmp_path, with_members(EXTERNAL))
    assert not alone.members and list(alone.external) == ["torch"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (with_members(EXTERNAL.replace("oof: a.csv, ", "")), "params.yaml line 4: members.torch.predictions.oof: missing"),
        (with_members(EXTERNAL, "    image_size: 32\n"), "params.yaml line 5: members.torch.image_size: not allowed together"),
        (f"external: {{}}\n{with_members(EXTERNAL)}", "external: unknown key; a member with external predictions belongs"),
        (with_members("  {}\n"), "members: {} was found; at least one member"),
    ],
)  # fmt: skip
def test_members_that_contradict_themselves_are_an_error(tmp_path: Path, content: str, message: str) -> None:
    assert message in user_error(tmp_path, content)


@settings(max_examples=100, deadline=None)
@given(
    st.text(max_size=30) | st.from_regex(r"(train|members)\.[a-z]{1,6}=[\[\]{}'\"a-z0-9,: &*!]{0,12}", fullmatch=True)
)
def test_any_text_of_set_gives_overrides_or_a_user_error(text: str) -> None:
    try:
        assert all(override.path for override in parse_overrides(text))
    except UserError as user_error:
        assert str(user_error).startswith("SET")


EDITED = """
# A file.
train:        # for all
  epochs: 12   # passes
  flip: none
members:
  cnn:
    architecture: cnn     # cnn, or another
    weights: none         # at the start
    # teacher: [name]
  flow: {alpha: 0.5, train: {epochs: 3}, teacher: [a, b]}  # in one line
  empty: {}
predict:
  views: [identity, flip_lr]
"""


@pytest.mark.parametrize(
    ("keys", "value", "old", "new"),
    [
        (("train", "epochs"), 3, "  epochs: 12   # passes", "  epochs: 3    # passes"),
        (("predict", "views"), ("identity",), "[identity, flip_lr]", "[identity]"),
        (("members", "flow", "train", "epochs"), 5, "{epochs: 3}", "{epochs: 5}"),
        (
            ("members", "flow", "weights"),
            "my file.h5",
            "teacher: [a, b]}  #",
            "teacher: [a, b], weights: my file.h5} #",
        ),
        (("members", "cnn", "weights"), "true", "weights: none         #", "weights: 'true'       #"),
        (
            ("members", "cnn", "train", "learning_rate"),
            1e-05,
            "    # teacher: [name]\n",
            "    # teacher: [name]\n    train: {learning_rate: 1e-05}\n",
        ),
        (("train", "probe"), True, "  flip: none\n", "  flip: none\n  probe: true\n"),
        (("blend",), {"rounds": 3}, "[identity, flip_lr]\n", "[identity, flip_lr]\nblend: {rounds: 3}\n"),
    ],
)
def test_a_value_is_set_in_the_text_of_a_file_and_every_other_character_stays(keys, value, old, new) -> None:
    assert EDITED.count(old) == 1
    edited = set_value(EDITED, keys, value)
    assert edited == EDITED.replace(old, new)
    read = parse_yaml(edited, "the text")
    for key in keys:
        read = read[key]
    assert read == (list(value) if isinstance(value, tuple) else value)
