"""Four planted secrets (key, token, Authorization header, signed link) must never appear in output or files."""

import base64
import html
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from urllib.parse import quote

import pytest
from fake_kaggle.parts import SIGNATURE

from competition.config.errors import UserError
from competition.config.redaction import redact
from competition.kaggle import credentials

ROOT = Path(__file__).parents[2]

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
    assert "planted" not in redacted
    assert "YWRhOnBsYW50" not in redacted
    assert "[hidden]" in redacted


FORMS = {
    "plain": str,
    "repr of bytes": lambda secret: repr(f"Bearer {secret}".encode())[9:-1],
    "JSON": lambda secret: json.dumps(secret)[1:-1],
    "JSON in JSON": lambda secret: json.dumps(json.dumps(secret))[3:-3],
    "every character escaped": lambda secret: "".join(f"\\x{ord(c):02x}" for c in secret),
    "JSON escapes": lambda secret: "".join(f"\\u{ord(c):04X}" for c in secret),
    "HTML": html.escape,
    "URL": lambda secret: quote(secret, safe=""),
    "URL in lower case": lambda secret: quote(secret, safe="").lower() if secret.islower() else quote(secret, safe=""),
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "hexadecimal": lambda secret: secret.encode().hex(),
    "two lines": lambda secret: f"{secret[:5]}\n  {secret[5:]}",
    "two lines in repr": lambda secret: f"{secret[:5]}\\n{secret[5:]}",
    "base64 in lines": lambda secret: "\n".join(textwrap.wrap(base64.b64encode(secret.encode()).decode(), 7)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "secret", ["Un+usual/key=42", "a\\b'c\"d&e<f>:g h", "0123456789abcdef", "first-line\nsecond-line"]
)
def test_a_known_secret_is_hidden_in_every_form(form, secret):
    assert redact(f"before {FORMS[form](secret)} after", [secret]) == "before [hidden] after"


@pytest.mark.parametrize("before", ["", "a", "ab", "ada:"])
def test_base64_of_a_text_that_contains_a_secret_is_hidden(before):
    coded = base64.b64encode(f"{before}planted-secret-7c2b:and more".encode()).decode()
    shown = redact(coded, ["planted-secret-7c2b"])
    assert "[hidden]" in shown
    left = "".join(part + "=" * (-len(part) % 4) for part in shown.split("[hidden]")[:1])
    assert b"plant" not in base64.b64decode(left)


def test_the_lines_of_a_secret_are_secrets_themselves():
    assert "planted" not in redact("Invalid header value b'Bearer x\\nplanted-line'", ["KGAT_abcdefgh\nplanted-line"])


@pytest.mark.parametrize(
    "text", ["macro-F1 0.98 +- 0.01", "the key 'epoch' is unknown", "tokens: 12", "sha256 9f86d081884c7d65"]
)
def test_plain_sentences_are_not_changed(text):
    assert redact(text) == text


def test_the_environment_of_the_client_has_one_credential_and_no_unrelated_variables(tmp_path):
    kept = {"PATH": "/bin", "HOME": str(tmp_path)}
    unrelated = {"VERBOSE": "1", "VERBOSE_OUTPUT": "1", "KAGGLE_TOKEN": "junk", "KAGGLE_PATH": "/x"}
    unrelated |= {"AWS_SECRET_ACCESS_KEY": "s", "KAGGLE_API_ENVIRONMENT": "TEST", "PYTHONPATH": "/evil"}
    environment = {**kept, **unrelated, "KAGGLE_USERNAME": "ada", "KAGGLE_KEY": "k-1234"}
    credential = credentials.find_credential(environment)
    assert (credential.kind, credential.source, credential.username) == ("key", "KAGGLE_USERNAME and KAGGLE_KEY", "ada")
    clean = credentials.child_environment(environment, credential)
    assert clean.keys() == {*kept, "KAGGLE_USERNAME", "KAGGLE_KEY", "PYTHONIOENCODING", "PYTHONUNBUFFERED"}
    assert "k-1234" not in repr(credential)
    environment["KAGGLE_API_TOKEN"] = "KGAT_abcdefgh"
    credential = credentials.find_credential(environment)
    notes = ("KAGGLE_KEY is not used, because a token comes first",)  # which is no mistake
    assert (credential.source, credential.warnings, credential.notes) == ("KAGGLE_API_TOKEN", (), notes)
    assert "KAGGLE_KEY" not in credentials.child_environment(environment, credential)


def test_credentials_are_searched_in_the_order_of_the_kaggle_client(tmp_path):
    def put(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    environment = {"HOME": str(tmp_path)}
    with pytest.raises(UserError, match="no Kaggle credential was found: make a token"):
        credentials.find_credential(environment)
    xdg = put(".config/kaggle/kaggle.json", json.dumps({"username": "ada", "key": "k-1"}))
    assert credentials.find_credential(environment).source == xdg
    oauth = put(".kaggle/credentials.json", json.dumps({"username": "ada", "refresh_token": "r"}))
    assert credentials.find_credential(environment).source == oauth  # ~/.kaggle now hides the folder under .config
    key = put(".kaggle/kaggle.json", json.dumps({"username": "ada", "key": "k-2"}))
    assert credentials.find_credential(environment).source == key
    token = put(".kaggle/access_token", "KGAT_abcdefgh\n")
    assert credentials.find_credential(environment).source == token
    by_file = credentials.find_credential({**environment, "KAGGLE_API_TOKEN": token})
    assert by_file.source == f"KAGGLE_API_TOKEN (the file {token})"
    Path(token).chmod(0o644)
    assert credentials.find_credential(environment).warnings == (
        f"{token} is readable by other users of this machine: chmod 600 {token}",
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("access_token", b"KGAT_abcdefgh\nplanted-key", "access_token has 2 lines, expected one token"),
        ("access_token", b"KGAT_planted\0key", "has a token with the character U+0000"),
        ("access_token", "KGAT_planted".encode("utf-16"), "access_token is not UTF-8 text"),
        ("kaggle.json", b"{}", 'kaggle.json is not {"username"'),
        ("kaggle.json", b'{"username": "ada", "key": 1234567}', "kaggle.json has a key of the type int"),
        ("kaggle.json", b'{"username": null, "key": "planted"}', "kaggle.json has a username of the type NoneType"),
        ("kaggle.json", b'{"username": "ada", "key": ""}', "kaggle.json has an empty username or key"),
        ("kaggle.json", b'{"username": "ada", "key": "planted\\nkey"}', "kaggle.json has 2 lines"),
        ("credentials.json", b'{"username": "ada", "refresh_token": 5}', "has a refresh_token of the type int"),
    ],
)
def test_a_malformed_credential_is_refused_by_the_name_of_its_file_and_never_quoted(tmp_path, name, content, message):
    (tmp_path / ".kaggle").mkdir()
    (tmp_path / ".kaggle" / name).write_bytes(content)
    with pytest.raises(UserError) as refused:
        credentials.find_credential({"HOME": str(tmp_path)})
    assert message in str(refused.value) and "planted" not in str(refused.value)


CODE = """
import os, pathlib, sys, traceback
from competition.kaggle.archive import UnpackRules
from competition.config.errors import UserError
from competition.kaggle import download
from competition.kaggle import submit
from competition.kaggle.client import Client, RetryPolicy
client = Client(dict(os.environ), RetryPolicy(2, 0.05, 1.0, 8.0), print)
folder = pathlib.Path(sys.argv[1])
try:
    print(submit.limits(client, "flowers"), repr(client.policy))
    download.fetch(client, "flowers", folder / "raw", folder / "cache", UnpackRules(200))
    file = folder / "s.csv"
    file.write_text("id,label\\n")
    request = submit.SubmissionRequest("flowers", file, "0" * 64, "note", resend=False, listing_lag=1.0)
    print(submit.submit(client, request))
except UserError:
    traceback.print_exc()
"""


@pytest.mark.parametrize(
    ("faults", "with_token"), [({}, True), ({"archive": ["expired"] * 20}, True), ({"upload": ["500"] * 20}, False)]
)
def test_no_planted_secret_appears_after_success_or_failure(kaggle, home, tmp_path, faults, with_token):
    kaggle.faults.update({method: list(queue) for method, queue in faults.items()})
    token_variable = {"KAGGLE_API_TOKEN": kaggle.token} if with_token else {}
    unrelated_variables = {"VERBOSE": "1", "VERBOSE_OUTPUT": "true", "KAGGLE_TOKEN": "junk"}
    unrelated_variables |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    environment = kaggle.environment(home, **token_variable, **unrelated_variables)
    process = subprocess.run(
        [sys.executable, "-c", CODE, tmp_path / "run"], env=environment, capture_output=True, text=True
    )
    basic = base64.b64encode(f"{kaggle.username}:{kaggle.key}".encode()).decode()
    planted = [kaggle.key, kaggle.token, basic, SIGNATURE.split("=")[1]]
    files = [path for folder in (tmp_path / "run", home) for path in folder.rglob("*") if path.is_file()]
    files += [path for path in tmp_path.iterdir() if path.is_file()]
    visible_text = process.stdout + process.stderr + "".join(path.read_text(errors="replace") for path in files)
    assert [secret for secret in planted if secret in visible_text or quote(secret) in visible_text] == []
    assert ("Traceback" in process.stderr) == bool(faults), process.stderr
    if with_token and not faults:
        assert ("Bearer " + kaggle.token) in {headers.get("Authorization") for _, headers in kaggle.headers}
    assert os.environ.get("KAGGLE_KEY") is None
