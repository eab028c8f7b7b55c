"""Run the tests of faults, of Kaggle and of kernels with known secrets, and look for these in all that they leave.

python tests/secret_scan.py [FOLDER]: every file that the tests write stays below FOLDER, the output of each stage in
FOLDER/output. Exit code 1 if a secret is in one of them, in any form; 2 if a test fails.
"""

import base64
import io
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from competition.config.redaction import hide  # noqa: E402

# In the environment of every test. The other three belong to the fake Kaggle.
ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": "planted/aws+secret=91",
    "DATABASE_PASSWORD": "planted-db&pass word",
    "GITHUB_TOKEN": "ghp_planted0token0of0github0000000000",
}
SECRETS = (*ENVIRONMENT.values(), "planted-key-1", "KGAT_planted-token-2", "planted5ignature0f0link")
TESTS = ("faults", "kaggle_api", "kernels", "pipelines/test_kaggle_verbs.py")
BELONGS = (".kaggle", "kaggle")  # folders of a credential
PLANTED = "test_prints_a_secret*/*"  # the kernel that a test lets print a secret
READ_WHOLE = 300_000  # bytes: larger files are searched for the usual forms only


def forms(secret: str) -> set[bytes]:
    """The secret as it is printed, quoted, escaped, and in base64 and hexadecimal."""
    data = secret.encode()
    texts = {secret, quote(secret, safe=""), repr(data)[2:-1], data.hex()}
    texts |= {base64.b64encode(each).decode() for each in (data, b"ada:" + data)}
    return {text.encode() for text in texts}


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of a file and, of an archive, of its members."""
    data = path.read_bytes()
    yield path.name, data
    if data.startswith(b"PK\x03\x04"):
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as zipped:
                for member in zipped.infolist():
                    yield f"{path.name}/{member.filename}", zipped.read(member)
        except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError, ValueError, EOFError):
            return  # made damaged by a test


def occurrences(folder: Path) -> Iterator[str]:
    """The files below `folder` that hold a secret, or have one in their name."""
    plain = {form for secret in SECRETS for form in forms(secret)}
    for path in sorted(folder.rglob("*")):
        is_planted = path.parent.name in BELONGS or fnmatch(path.as_posix(), f"*/{PLANTED}")
        for name, data in contents(path) if path.is_file() and not path.is_symlink() and not is_planted else ():
            text = f"{path.relative_to(folder)} {name}\n{data[:READ_WHOLE].decode(errors='replace')}"
            if any(form in data for form in plain) or hide(text, SECRETS) != text:
                yield f"{path}: {name}"


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="secrets-"))
    (folder / "output").mkdir(parents=True)
    (folder / "tests").mkdir(exist_ok=True)
    variables, failed = {**os.environ, **ENVIRONMENT, "GOLDFOLD_KEPT_OUTPUT": str(folder / "output")}, 0
    for name in TESTS:  # one process each, as TensorFlow's devices are set once in a process
        base, test = folder / "tests" / Path(name).stem, str(ROOT / "tests" / name)
        command = [sys.executable, "-m", "pytest", "-q", "--basetemp", str(base), test]
        with (folder / "output" / f"pytest-{base.name}.log").open("w") as log:
            failed |= subprocess.run(command, cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT).returncode
    held = [*occurrences(folder)]
    files = sum(path.is_file() for path in folder.rglob("*"))
    print(f"{len(held)} of {files:,} files below {folder} hold one of {len(SECRETS)} secrets", *held, sep="\n")
    return 1 if held else 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
