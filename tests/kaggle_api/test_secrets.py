"""Four planted secrets (key, token, Authorization header, signed link) must never appear in output or files."""

import base64
import html
import json
import textwrap
import traceback
from urllib.parse import quote

import pytest
from fake_kaggle.parts import QUICK, SIGNATURE
from fake_kaggle.server import FakeKaggle

from competition.config.errors import UserError
from competition.config.redaction import redact
from competition.kaggle import credentials, download, submit
from competition.kaggle.client import Client
from competition.kaggle.errors import KaggleError

TEXTS = [
    "Authorization: Basic YWRhOnBsYW50ZWQtc2VjcmV0",
    "{'Authorization': 'Bearer planted-secret-abc'}",
    "GET https://storage.googleapis.com/a/b.zip?X-Goog-Algorithm=a&X-Goog-Signature=planted-secret&x=1",
    "https://bucket.s3.amazonaws.com/a?X-Amz-Signature=planted-secret&X-Amz-Credential=planted-secret",
    "https://account.blob.core.windows.net/a?sv=1&sig=planted-secret%3D",
    "KAGGLE_KEY=planted-secret make download",
    '{"username": "ada", "key": "planted-secret"}',
    "export KAGGLE_API_TOKEN='KGAT_planted-secret'",
    "the token KGAT_planted-secret1 was refused",
    "WANDB_API_KEY=planted0123456789",
    "the token hf_plantedABCDEFGHIJKLMNOPQRSTUV was refused",
    "https://ada:planted-secret@proxy.example:8080/",
    "refresh_token: planted-secret",
    "X-Kaggle-Authorization: Bearer planted-secret",
]


@pytest.mark.parametrize("text", TEXTS)
def test_strings_that_look_like_secrets_are_hidden(text):
    redacted = redact(text)
    assert "planted" not in redacted and "YWRhOnBsYW50" not in redacted and "[hidden]" in redacted


FORMS = {
    "plain": str,
    "repr of bytes": lambda secret: repr(f"Bearer {secret}".encode())[9:-1],
    "JSON": lambda secret: json.dumps(secret)[1:-1],
    "JSON in JSON": lambda secret: json.dumps(json.dumps(secret))[3:-3],
    "every character escaped": lambda secret: "".join(f"\\x{ord(c):02x}" for c in secret),
    "JSON escapes": lambda secret: "".join(f"\\u{ord(c):04X}" for c in secret),
    "HTML": html.escape,
    "URL": lambda secret: quote(secret, safe=""),
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "hexadecimal": lambda secret: secret.encode().hex(),
    "a line for each character": "\n".join,
    "two lines": lambda secret: f"{secret[:5]}\n  {secret[5:]}",
    "two lines in repr": lambda secret: f"{secret[:5]}\\n{secret[5:]}",
    "base64 in lines": lambda secret: "\n".join(textwrap.wrap(base64.b64encode(secret.encode()).decode(), 7)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "secret", ["Un+usual/key=42", "a\\b'c\"d&e<f>:g h", "0123456789abcdef", "first-line\nsecond-line", "&<sign/first"]
)
def test_a_known_secret_is_hidden_in_every_form(form, secret):
    assert redact(f"before {FORMS[form](secret)} after", [secret]) == "before [hidden] after"


@pytest.mark.parametrize("before", ["", "a", "ab", "ada:"])
def test_base64_of_a_text_that_contains_a_secret_is_hidden(before):
    coded = base64.b64encode(f"{before}planted-secret-7c2b:and more".encode()).decode()
    left, hidden, _ = redact(coded, ["planted-secret-7c2b"]).partition("[hidden]")
    assert hidden and b"plant" not in base64.b64decode(left + "=" * (-len(left) % 4))


def test_the_lines_of_a_secret_are_secrets_themselves_and_plain_sentences_are_not_changed():
    assert "planted" not in redact("Invalid header value b'Bearer x\\nplanted-line'", ["KGAT_abcdefgh\nplanted-line"])
    plain = "macro-F1 0.98 +- 0.01, the key 'epoch' is unknown, tokens: 12, sha256 9f86d081884c7d65"
    assert redact(plain) == plain


def test_the_environment_of_the_client_has_one_credential_and_no_unrelated_variables(tmp_path):
    kept = {"PATH": "/bin", "HOME": str(tmp_path)}
    unrelated = {"VERBOSE": "1", "KAGGLE_TOKEN": "junk", "AWS_SECRET_ACCESS_KEY": "s", "PYTHONPATH": "/evil"}
    unrelated["KAGGLE_API_ENVIRONMENT"] = "TEST"
    environment = {**kept, **unrelated, "KAGGLE_USERNAME": "ada", "KAGGLE_KEY": "k-1234"}
    credential = credentials.find_credential(environment)
    assert (credential.kind, credential.source, credential.username) == ("key", "KAGGLE_USERNAME and KAGGLE_KEY", "ada")
    clean = credentials.child_environment(environment, credential)
    assert clean.keys() == {*kept, "KAGGLE_USERNAME", "KAGGLE_KEY", "PYTHONIOENCODING", "PYTHONUNBUFFERED"}
    assert "k-1234" not in repr(credential)
    environment["KAGGLE_API_TOKEN"] = "KGAT_abcdefgh"
    credential = credentials.find_credential(environment)
    assert (credential.source, credential.warnings) == ("KAGGLE_API_TOKEN", ())
    assert "KAGGLE_KEY" not in credentials.child_environment(environment, credential)


def test_credentials_are_searched_in_the_order_of_the_kaggle_client(tmp_path):
    environment = {"HOME": str(tmp_path)}
    with pytest.raises(UserError, match="no Kaggle credential was found: make a token"):
        credentials.find_credential(environment)
    for name, content in (
        (".config/kaggle/kaggle.json", '{"username": "ada", "key": "k-1"}'),
        (".kaggle/credentials.json", '{"username": "ada", "refresh_token": "r"}'),  # ~/.kaggle hides that under .config
        (".kaggle/kaggle.json", '{"username": "ada", "key": "k-2"}'),
        (".kaggle/access_token", "KGAT_abcdefgh\n"),
    ):
        token = tmp_path / name
        token.parent.mkdir(parents=True, exist_ok=True)
        token.write_text(content)
        token.chmod(0o600)
        assert credentials.find_credential(environment).source == str(token)
    by_file = credentials.find_credential({**environment, "KAGGLE_API_TOKEN": str(token)})
    assert by_file.source == f"KAGGLE_API_TOKEN (the file {token})"
    token.chmod(0o644)
    (warning,) = credentials.find_credential(environment).warnings
    assert warning == f"{token} is readable by other users of this machine: chmod 600 {token}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("access_token", b"KGAT_abcdefgh\nplanted-key", "access_token has no token of letters"),
        ("access_token", b"KGAT_planted\0key", "has no token of letters"),
        ("access_token", "KGAT_planted".encode("utf-16"), "access_token is not UTF-8 text"),
        ("kaggle.json", b"{}", 'kaggle.json is not {"username"'),
        ("kaggle.json", b'{"username": "ada", "key": 1234567}', "kaggle.json has no key of letters"),
        ("kaggle.json", b'{"username": "ada", "key": ""}', "kaggle.json has an empty username or key"),
        ("kaggle.json", b'{"username": "ada", "key": "planted\\nkey"}', "kaggle.json has no key of letters"),
        ("credentials.json", b'{"username": "ada", "refresh_token": 5}', "has no refresh_token of letters"),
    ],
)
def test_a_malformed_credential_is_refused_by_the_name_of_its_file_and_never_quoted(tmp_path, name, content, message):
    (tmp_path / ".kaggle").mkdir()
    (tmp_path / ".kaggle" / name).write_bytes(content)
    with pytest.raises(UserError) as refused:
        credentials.find_credential({"HOME": str(tmp_path)})
    assert message in str(refused.value) and "planted" not in str(refused.value)


@pytest.mark.parametrize("variables", [{}, {"KAGGLE_API_TOKEN": FakeKaggle.token}], ids=["key", "token"])
def test_no_planted_secret_is_in_a_message_a_traceback_or_a_file_of_a_failed_call(
    kaggle, home, messages, tmp_path, variables
):
    client = Client(kaggle.environment(home, VERBOSE="1", VERBOSE_OUTPUT="true", **variables), QUICK, messages.append)
    (file := tmp_path / "s.csv").write_text("id,label\n")
    request = submit.SubmissionRequest("flowers", file, "0" * 64, "note", resend=False, listing_lag=1.0)
    kaggle.faults |= {"archive": ["expired"] * 9, "upload": ["500"] * 9}
    texts = [repr(client.policy), str(submit.limits(client, "flowers"))]
    for call in (
        lambda: download.fetch(client, "flowers", tmp_path / "raw", tmp_path / "cache"),
        lambda: submit.submit(client, request),
    ):
        with pytest.raises(KaggleError) as failed:
            call()
        texts += traceback.format_exception(failed.value)
    basic = base64.b64encode(f"{kaggle.username}:{kaggle.key}".encode()).decode()
    sent = f"Bearer {kaggle.token}" if variables else f"Basic {basic}"
    assert sent in {headers.get("Authorization") for _, headers in kaggle.headers}
    texts += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    visible = "".join([*texts, *messages])
    planted = [kaggle.key, kaggle.token, basic, SIGNATURE.split("=")[1]]
    assert [secret for secret in planted if secret in visible or quote(secret) in visible] == []
