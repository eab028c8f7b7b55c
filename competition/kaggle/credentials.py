"""Which Kaggle credential will be used, said before it is used, and the clean environment the client is started in."""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from competition.config.errors import UserError

SETTINGS_URL = "https://www.kaggle.com/settings"

# What the client may see. Everything else stays out: VERBOSE makes it print its Authorization header, every stray
# KAGGLE_X becomes a setting of its own (KAGGLE_TOKEN replaces the key, KAGGLE_PATH moves downloads).
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
    source: str  # where it was found, for messages
    username: str  # "" when only Kaggle knows
    secrets: tuple[str, ...] = field(repr=False)  # what must never be shown
    environment: dict[str, str] = field(repr=False)  # what the client needs of it
    warnings: tuple[str, ...] = ()


def find(environment: Mapping[str, str]) -> Credential:
    """The first credential in the client's own order: token, key, OAuth. UserError when there is none.

    environment: as the process has it (HOME and the KAGGLE_ variables are read).
    """
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    found = _token(environment, home) or _key(environment, home) or _oauth(home)
    if found is None:
        raise UserError(
            f"no Kaggle credential was found: make a token at {SETTINGS_URL} (API, Create New Token) and put it in "
            f"KAGGLE_API_TOKEN or in {home / '.kaggle' / 'access_token'}."
        )
    return found


def child_environment(environment: Mapping[str, str], credential: Credential) -> dict[str, str]:
    """The environment of the client's process: what a network call needs, this one credential, and nothing else."""
    kept = {name: value for name, value in environment.items() if name in ALLOWED}
    if environment.get("KAGGLE_API_ENVIRONMENT") == "LOCALHOST":  # any other value means production
        kept["KAGGLE_API_ENVIRONMENT"] = "LOCALHOST"
    return {**kept, **credential.environment, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}


def _token(environment: Mapping[str, str], home: Path) -> Credential | None:
    if "KAGGLE_KERNEL_RUN_TYPE" in environment and "KAGGLE_DATA_PROXY_URL" in environment:
        file = Path(environment.get("KAGGLE_API_V1_TOKEN", ""))
        if environment.get("KAGGLE_API_V1_TOKEN") and (token := _read(file)):
            names = {name: environment[name] for name in IN_NOTEBOOK}
            return Credential("token", f"the notebook's token ({file})", "", (token,), names)
    shadowed = ("KAGGLE_KEY is not used beside it",) if environment.get("KAGGLE_KEY") else ()
    if given := environment.get("KAGGLE_API_TOKEN", "").strip():
        file = Path(given)
        is_file = len(given) < 1024 and file.is_file()
        token = _read(file) if is_file else given
        source = f"KAGGLE_API_TOKEN (the file {file})" if is_file else "KAGGLE_API_TOKEN"
        if not token:
            raise UserError(f"{source} holds no token: make a new one at {SETTINGS_URL}, or unset KAGGLE_API_TOKEN.")
        return Credential("token", source, "", (token, given), {"KAGGLE_API_TOKEN": token}, shadowed)
    for name in ("access_token", "access_token.txt"):
        file = home / ".kaggle" / name
        if token := _read(file):
            warnings = (*shadowed, *_open_to_others(file))
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
        told = json.loads(file.read_text(encoding="utf-8"))
        user, key = user or told["username"], key or told["key"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f'{file} is not {{"username": ..., "key": ...}}: make a new token at {SETTINGS_URL}, or remove the file.'
        ) from error
    return _with_key(str(file), user, key, _open_to_others(file))


def _with_key(source: str, user: str, key: str, warnings: tuple[str, ...]) -> Credential:
    environment = {"KAGGLE_USERNAME": user, "KAGGLE_KEY": key}
    return Credential("key", source, user, (key, f"{user}:{key}"), environment, warnings)


def _oauth(home: Path) -> Credential | None:
    file = home / ".kaggle" / "credentials.json"
    text = _read(file)
    if not text:
        return None
    try:
        told = json.loads(text)
        secrets = tuple(str(value) for name, value in told.items() if "token" in name and value)
        return Credential("oauth", str(file), str(told.get("username", "")), secrets, {}, _open_to_others(file))
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file} cannot be read as JSON: run `kaggle auth login` again, or remove the file.") from error


def _config_folder(environment: Mapping[str, str], home: Path) -> Path:
    """Where the client looks for kaggle.json: an existing ~/.kaggle hides the folder under XDG_CONFIG_HOME."""
    if given := environment.get("KAGGLE_CONFIG_DIR"):
        return Path(given)
    if (home / ".kaggle").is_dir():
        return home / ".kaggle"
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "kaggle"


def _open_to_others(file: Path) -> tuple[str, ...]:
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        return (f"{file} can be read by others on this machine: chmod 600 {file}",)
    return ()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
