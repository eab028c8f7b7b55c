"""Coverage-guided fuzzing of one reader: python tests/fuzz/run.py READER SECONDS [FOLDER OF NEW INPUTS].

Starts from tests/fuzz/corpus/READER. An input that raises anything but a UserError ends it with exit code 77 and is kept as
crash-* in the folder of new inputs; copy it to the corpus with the fix.
"""

import sys
import tempfile
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "fuzz")]
with atheris.instrument_imports(include=["competition", "zipfile", "ruamel", "csv", "numpy.lib"]):
    import readers


def main(name: str, seconds: str, folder: str = "") -> None:
    new = Path(folder or tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    new.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20", "-rss_limit_mb=2048"]
    options.append(f"-artifact_prefix={new}/")
    corpus = ROOT / "tests" / "fuzz" / "corpus" / name
    arguments = [sys.argv[0], *options, "-print_final_stats=1", str(new), str(corpus)]
    atheris.Setup(arguments, lambda data: readers.tried(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
