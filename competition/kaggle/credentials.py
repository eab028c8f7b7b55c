"""Find the Kaggle credential to use, and build the clean environment of the child process that uses it."""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from competition.config.errors import UserError

SETTINGS_URL = "https://www.kaggle.com/settings"

# Variables that the kaggle package may see. All others are removed: VERBOSE makes it print its Authorization header,
# and every KAGGLE_X becomes one of its settings (KAGGLE_TOKEN replaces the key, KAGGLE_PATH moves downloads).
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
ALLOWED = {
    *("PATH", "HOME", "USERPROFILE", "SYSTEMROOT", "LANG", "LC_ALL", "LC_CTYPE"),
    *PROXIES,
    *(name.lower() for name in PROXIES),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
}
IN_NOTEBOOK = ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_DATA_PROXY_URL", "KAGGLE_API_V1_TOKEN")


@dataclass(frozen=True)
class Credential:
    kind: Literal["token", "key", "oauth"]
    source: str  # file or variable it was read from, for messages
    username: str  # "" = known to Kaggle only
    secrets: tuple[str, ...] = field(repr=False)  # strings that must never be shown
    environment: dict[str, str] = field(repr=False)  # variables that pass it to the kaggle package
    warnings: tuple[str, ...] = ()  # what the user should change

    def __str__(self) -> str:
        """Kind, source and user; none of it is secret."""
        return f"{self.kind} from {self.source}" + (f" ({self.username})" if self.username else "")


def find_credential(environment: Mapping[str, str]) -> Credential:
    """Find the first credential in the kaggle package's own order: token, key, OAuth. UserError if there is none.

    environment: of the process (HOME and the KAGGLE_ variables are read).
    """
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    credential = _token(environment, home) or _key(environment, home) or _oauth(home)
    if credential is None:
        raise UserError(
            f"no Kaggle credential was found: make a token at {SETTINGS_URL} (API, Create New Token) and put it in "
            f"KAGGLE_API_TOKEN or in {home / '.kaggle' / 'access_token'}."
        )
    file = Path(credential.source)
    if file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077:
        warning = f"{file} is readable by other users of this machine: chmod 600 {file}"
        return replace(credential, warnings=(warning,))
    return credential


def child_environment(environment: Mapping[str, str], credential: Credential) -> dict[str, str]:
    """Environment of the child process: the variables of a network call, this credential, and nothing else."""
    allowed = {name: value for name, value in environment.items() if name in ALLOWED}
    if environment.get("KAGGLE_API_ENVIRONMENT") == "LOCALHOST":  # any other value means production
        allowed["KAGGLE_API_ENVIRONMENT"] = "LOCALHOST"
    return {**allowed, **credential.environment, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}


def _token(environment: Mapping[str, str], home: Path) -> Credential | None:
    if all(environment.get(name) is not None for name in IN_NOTEBOOK):
        file = Path(environment["KAGGLE_API_V1_TOKEN"])
        if token := _checked(_read(file), str(file), "token"):
            variables = {name: environment[name] for name in IN_NOTEBOOK}
            return Credential("token", f"the notebook's token ({file})", "", (token,), variables)
    files = [home / ".kaggle" / name for name in ("access_token", "access_token.txt")]
    texts = {str(file): _read(file) for file in files}
    if value := environment.get("KAGGLE_API_TOKEN", "").strip():
        is_file = len(value) < 1024 and Path(value).is_file()
        texts = {f"KAGGLE_API_TOKEN (the file {value})": _read(Path(value))} if is_file else {"KAGGLE_API_TOKEN": value}
    for source, text in texts.items():
        if token := _checked(text, source, "token"):
            secrets = (token, value) if value else (token,)
            return Credential("token", source, "", secrets, {"KAGGLE_API_TOKEN": token})
        if value:
            raise UserError(f"{source} holds no token: make a new one at {SETTINGS_URL}, or unset KAGGLE_API_TOKEN.")
    return None


def _checked(value: object, source: str, what: str) -> str:
    """Raise UserError unless `value` is one line of visible ASCII characters, which is all that a header can carry, or "".

    what: token, key or username; the message names it and never quotes it.
    """
    if isinstance(value, str) and all("!" <= character <= "~" for character in value):
        return value
    raise UserError(
        f"{source} has no {what} of letters, digits and signs on one line: make a new token at {SETTINGS_URL}, and copy "
        "nothing else."
    )


def _key(environment: Mapping[str, str], home: Path) -> Credential | None:
    source: str | Path = "KAGGLE_USERNAME and KAGGLE_KEY"
    user, key = environment.get("KAGGLE_USERNAME", "").strip(), environment.get("KAGGLE_KEY", "").strip()
    if not user or not key:
        folder = home / ".kaggle"  # if it exists, it precedes XDG_CONFIG_HOME
        if not folder.is_dir():
            folder = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "kaggle"
        source = Path(environment.get("KAGGLE_CONFIG_DIR") or folder) / "kaggle.json"
        if not source.is_file():
            return None
        try:
            values = json.loads(source.read_text(encoding="utf-8-sig"))
            user, key = user or values["username"], key or values["key"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f'{source} is not {{"username": ..., "key": ...}}: make a new token at {SETTINGS_URL}, or remove the file.'
            ) from error
    user, key = _checked(user, str(source), "username"), _checked(key, str(source), "key")
    if not user or not key:
        raise UserError(f"{source} has an empty username or key: make a new token at {SETTINGS_URL}.")
    variables = {"KAGGLE_USERNAME": user, "KAGGLE_KEY": key}
    return Credential("key", str(source), user, (key, f"{user}:{key}"), variables)


def _oauth(home: Path) -> Credential | None:
    """The file of `kaggle auth login`, which the kaggle package reads itself."""
    file = home / ".kaggle" / "credentials.json"
    content = _read(file)
    if not content:
        return None
    try:
        values = json.loads(content)
        tokens = {name: value for name, value in values.items() if "token" in name and value}
        username = values.get("username") or ""
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file} cannot be read as JSON: run `kaggle auth login` again, or remove the file.") from error
    secrets = tuple(_checked(value, str(file), name) for name, value in tokens.items() if "expir" not in name)
    return Credential("oauth", str(file), _checked(username, str(file), "username"), secrets, {})


def _read(file: Path) -> str:
    """The text of a file without a byte-order mark; "" if there is no such file. Raises UserError if it is no text."""
    try:
        return file.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: make a new token at {SETTINGS_URL} and save it as text.") from error
    except OSError:
        return ""
