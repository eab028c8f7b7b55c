import json
from pathlib import Path

import pytest
from builders import params

from competition.config.digests import to_plain
from competition.config.errors import UserError
from competition.config.params_file import load_params, parse_overrides
from competition.config.redaction import printable, redact, redacted_answer
from competition.config.secrets import known_secrets, public_sets, without_secrets
from competition.kernels.packing import kernel_params, sent_params

URL = "postgresql+psycopg://ada:planted%2Fword@host/studies"
SETS = f"tune.storage={URL} 'convert.beam_options=[--db_password=planted-option]' train.epochs=3"


@pytest.mark.parametrize("send", [kernel_params, sent_params])
def test_parameters_that_leave_this_machine_have_no_secret(send) -> None:
    own = params(SETS)
    before, after = (json.dumps(to_plain(each)) for each in (own, send(own, own.members)))
    assert "planted" in before and "planted" not in after
    assert without_secrets(own).train.epochs == 3 and without_secrets(params()).tune == params().tune


def test_overrides_are_shown_without_secrets_and_else_unchanged() -> None:
    with_blank = "convert.beam_options=[--a=1, --db_password=planted-option] train.epochs=3"
    assert public_sets(with_blank) == "'convert.beam_options=[hidden]' train.epochs=3"
    assert public_sets(SETS) == "'tune.storage=[hidden]' 'convert.beam_options=[hidden]' train.epochs=3"
    for plain in ("", "train.epochs=3  blend.name='a b'"):
        assert public_sets(plain) == plain
    assert "planted" not in public_sets("members.cnn.weights=https://ada:planted@host/w.h5")
    assert public_sets("tune.storage='planted") == "[hidden]"


@pytest.mark.parametrize(
    "sets",
    [
        f"tune.storage=[{URL}]",
        f"tune.storage={{{URL}: 1}}",
        "tune.storage=postgresql://ada:first planted@host/x",
        "tune.storage='postgresql://ada:planted@host/x",
        "convert.beam_options={planted: 1}",
        "members.cnn.weights=https://ada:planted@host/w.h5",
    ],
)
def test_no_error_about_parameters_quotes_a_secret(sets) -> None:
    with pytest.raises(UserError) as refused:
        load_params(Path("params.yaml"), parse_overrides(sets))
    assert "planted" not in redact(str(refused.value))


def test_secrets_are_known_from_the_parameters_and_the_environment() -> None:
    environment = {"MY_TOKEN": "planted-token", "TOKENS": "12", "PATH": "/bin", "SHORT_KEY": "abc"}
    known = known_secrets(params(SETS), environment)
    assert set(known) == {"planted-token", "planted%2Fword", "planted/word", "planted-option"}
    assert "planted" not in redact("password planted/word for planted-token, planted%2Fword", known)


def test_an_answer_has_no_secret_and_each_of_its_texts_is_one_line() -> None:
    answer = {
        "title": "A planted-key\n\x1b[31mFAKE: scored",
        "files": {"planted-key.csv": 3},
        "rows": [{"team": "x\u202ey", "score": None}],
    }
    assert redacted_answer(answer, ["planted-key"]) == {
        "title": "A [hidden] ?[31mFAKE: scored",
        "files": {"[hidden].csv": 3},
        "rows": [{"team": "x?y", "score": None}],
    }


def test_only_control_characters_are_replaced() -> None:
    assert printable("Ünï\u00a0cödé 漢字 🙂") == "Ünï\u00a0cödé 漢字 🙂"
    assert printable("a\r\nb\x00\x7f\x9b\u2028c", keep="\n") == "a \nb??? c"
