"""Find the Kaggle credential to use, and build the clean environment of the child process that uses it."""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    warnings: tuple[str, ...] = ()

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
    return credential


def child_environment(environment: Mapping[str, str], credential: Credential) -> dict[str, str]:
    """Environment of the child process: the variables of a network call, this credential, and nothing else."""
    allowed = {name: value for name, value in environment.items() if name in ALLOWED}
    if environment.get("KAGGLE_API_ENVIRONMENT") == "LOCALHOST":  # any other value means production
        allowed["KAGGLE_API_ENVIRONMENT"] = "LOCALHOST"
    return {**allowed, **credential.environment, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}


def _token(environment: Mapping[str, str], home: Path) -> Credential | None:
    if "KAGGLE_KERNEL_RUN_TYPE" in environment and "KAGGLE_DATA_PROXY_URL" in environment:
        file = Path(environment.get("KAGGLE_API_V1_TOKEN", ""))
        if environment.get("KAGGLE_API_V1_TOKEN") and (token := _read(file)):
            variables = {name: environment[name] for name in IN_NOTEBOOK}
            return Credential("token", f"the notebook's token ({file})", "", (token,), variables)
    shadowed = ("KAGGLE_KEY is ignored because of it",) if environment.get("KAGGLE_KEY") else ()
    if value := environment.get("KAGGLE_API_TOKEN", "").strip():
        file = Path(value)
        is_file = len(value) < 1024 and file.is_file()
        token = _read(file) if is_file else value
        source = f"KAGGLE_API_TOKEN (the file {file})" if is_file else "KAGGLE_API_TOKEN"
        if not token:
            raise UserError(f"{source} holds no token: make a new one at {SETTINGS_URL}, or unset KAGGLE_API_TOKEN.")
        return Credential("token", source, "", (token, value), {"KAGGLE_API_TOKEN": token}, shadowed)
    for name in ("access_token", "access_token.txt"):
        file = home / ".kaggle" / name
        if token := _read(file):
            warnings = (*shadowed, *_permission_warning(file))
            return Credential("token", str(file), "", (token,), {"KAGGLE_API_TOKEN": token}, warnings)
    return None


def _key(environment: Mapping[str, str], home: Path) -> Credential | None:
    user, key = environment.get("KAGGLE_USERNAME", ""), environment.get("KAGGLE_KEY", "")
    if user and key:
        return _with_key("KAGGLE_USERNAME and KAGGLE_KEY", user, key, ())
    file = _config_folder(environment, home) / "kaggle.json"
    if not file.is_file():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        user, key = user or values["username"], key or values["key"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f'{file} is not {{"username": ..., "key": ...}}: make a new token at {SETTINGS_URL}, or remove the file.'
        ) from error
    return _with_key(str(file), user, key, _permission_warning(file))


def _with_key(source: str, user: str, key: str, warnings: tuple[str, ...]) -> Credential:
    environment = {"KAGGLE_USERNAME": user, "KAGGLE_KEY": key}
    return Credential("key", source, user, (key, f"{user}:{key}"), environment, warnings)


def _oauth(home: Path) -> Credential | None:
    file = home / ".kaggle" / "credentials.json"
    text = _read(file)
    if not text:
        return None
    try:
        values = json.loads(text)
        secrets = tuple(str(value) for name, value in values.items() if "token" in name and value)
        return Credential("oauth", str(file), str(values.get("username", "")), secrets, {}, _permission_warning(file))
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file} cannot be read as JSON: run `kaggle auth login` again, or remove the file.") from error


def _config_folder(environment: Mapping[str, str], home: Path) -> Path:
    """Folder in which the kaggle package looks for kaggle.json: ~/.kaggle, if it exists, precedes XDG_CONFIG_HOME."""
    if folder := environment.get("KAGGLE_CONFIG_DIR"):
        return Path(folder)
    if (home / ".kaggle").is_dir():
        return home / ".kaggle"
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "kaggle"


def _permission_warning(file: Path) -> tuple[str, ...]:
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        return (f"{file} is readable by other users of this machine: chmod 600 {file}",)
    return ()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
