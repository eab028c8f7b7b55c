"""Four planted secrets (key, token, Authorization header, signed link) must never appear in output or files."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from fake_kaggle.parts import SIGNATURE

from competition.config.errors import UserError
from competition.kaggle import credentials
from competition.kaggle.redaction import redact

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


@pytest.mark.parametrize("form", [str, lambda s: base64.b64encode(s.encode()).decode(), lambda s: quote(s, safe="")])
def test_a_known_secret_is_hidden_in_every_form(form):
    secret = "Un+usual/key=42"
    assert redact(f"before {form(secret)} after", [secret]) == "before [hidden] after"


@pytest.mark.parametrize(
    "text", ["macro-F1 0.98 +- 0.01", "the key 'epoch' is unknown", "tokens: 12", "sha256 9f86d081884c7d65"]
)
def test_plain_sentences_are_not_changed(text):
    assert redact(text) == text


def test_the_environment_of_the_client_has_one_credential_and_no_unrelated_variables(tmp_path):
    environment = {
        "PATH": "/bin",
        "HOME": str(tmp_path),
        "KAGGLE_USERNAME": "ada",
        "KAGGLE_KEY": "k-1234",
        "VERBOSE": "1",
        "VERBOSE_OUTPUT": "1",
        "KAGGLE_TOKEN": "junk",
        "KAGGLE_PATH": "/x",
        "AWS_SECRET_ACCESS_KEY": "s",
        "KAGGLE_API_ENVIRONMENT": "TEST",
        "PYTHONPATH": "/evil",
    }
    credential = credentials.find_credential(environment)
    assert (credential.kind, credential.source, credential.username) == ("key", "KAGGLE_USERNAME and KAGGLE_KEY", "ada")
    clean = credentials.child_environment(environment, credential)
    assert clean.keys() == {"PATH", "HOME", "KAGGLE_USERNAME", "KAGGLE_KEY", "PYTHONIOENCODING", "PYTHONUNBUFFERED"}
    assert "k-1234" not in repr(credential)


def test_a_token_has_precedence_over_a_key_with_a_warning(tmp_path):
    environment = {
        "HOME": str(tmp_path),
        "KAGGLE_API_TOKEN": "KGAT_abcdefgh",
        "KAGGLE_USERNAME": "ada",
        "KAGGLE_KEY": "k-1234",
    }
    credential = credentials.find_credential(environment)
    assert (credential.source, credential.warnings) == ("KAGGLE_API_TOKEN", ("KAGGLE_KEY is ignored because of it",))
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
    assert (
        credentials.find_credential({**environment, "KAGGLE_API_TOKEN": token}).source
        == f"KAGGLE_API_TOKEN (the file {token})"
    )
    Path(token).chmod(0o644)
    assert credentials.find_credential(environment).warnings == (
        f"{token} is readable by other users of this machine: chmod 600 {token}",
    )


def test_a_kaggle_json_that_is_none_is_refused_by_name(tmp_path):
    (tmp_path / "kaggle.json").write_text("{}")
    with pytest.raises(UserError, match=r"kaggle.json is not \{\"username\""):
        credentials.find_credential({"HOME": str(tmp_path), "KAGGLE_CONFIG_DIR": str(tmp_path)})


CODE = """
import os, pathlib, sys, traceback
from competition.config.errors import UserError
from competition.kaggle import download
from competition.kaggle import submit
from competition.kaggle.client import Client, RetryPolicy
client = Client(dict(os.environ), RetryPolicy(2, 0.05, 1.0, 8.0), print)
folder = pathlib.Path(sys.argv[1])
try:
    print(submit.limits(client, "flowers"), repr(client.policy))
    download.fetch(client, "flowers", folder / "raw", folder / "cache", 200)
    file = folder / "s.csv"
    file.write_text("id,label\\n")
    method = submit.by_file(file, "s.csv")
    request = submit.SubmissionRequest("flowers", method, "0" * 64, "note", resend=False, listing_lag=1.0)
    print(submit.submit(client, request))
except UserError:
    traceback.print_exc()
"""


@pytest.mark.parametrize(
    ("faults", "with_token"),
    [
        ({}, False),
        ({}, True),
        ({"archive": ["expired"] * 20}, True),
        ({"upload": ["500"] * 20}, False),
        ({"GetSubmissionLimits": ["401"]}, False),
        ({"GetSubmissionLimits": ["401"]}, True),
    ],
)
def test_no_planted_secret_appears_after_success_or_failure(kaggle, home, tmp_path, faults, with_token):
    kaggle.faults.update({method: list(queue) for method, queue in faults.items()})
    token_variable = {"KAGGLE_API_TOKEN": kaggle.token} if with_token else {}
    unrelated_variables = {
        "VERBOSE": "1",
        "VERBOSE_OUTPUT": "true",
        "KAGGLE_TOKEN": "junk",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path),
    }
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
