"""Pairs of jax and libtpu for which preflight compiles. A wrong pair ends the process: libtpu 0.0.17 with jax 0.10.2 does."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from competition.training.backend import is_installed

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tensorflow-cpu", "tensorflow", "keras", "jax", "libtpu")  # whose versions a result depends on


@dataclass(frozen=True)
class JaxPair:
    name: str  # of PAIR=
    jax: str  # version; that of jaxlib is the same
    libtpu: str
    environment: str  # folder of its virtual environment in the project's; "" = the environment that runs goldfold
    requirements: str  # file with the pinned versions of that environment

    @property
    def versions(self) -> dict[str, str]:
        """Package -> version, "" where it is not installed."""
        if not self.environment:
            return {package: version(package) if is_installed(package) else "" for package in PACKAGES}
        lines = (ROOT / self.requirements).read_text(encoding="utf-8").splitlines()
        pinned = dict(line.split("==") for line in lines if "==" in line)
        return {package: pinned.get(package, "") for package in PACKAGES}


# "newest": the extra preflight of pyproject.toml.  "kaggle": the libtpu that Kaggle's TPU image forces, and the jax it fits.
NEWEST = JaxPair("newest", "0.10.2", "0.0.42.1", "", "pyproject.toml")
KAGGLE = JaxPair("kaggle", "0.7.2", "0.0.17", ".venv/preflight-kaggle", "requirements-kaggle-tpu.txt")
PAIRS = {pair.name: pair for pair in (NEWEST, KAGGLE)}
