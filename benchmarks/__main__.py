"""Run the benchmarks and write their results into the table of docs/speed.md.

    python -m benchmarks                                    # or make benchmarks; generated images, two hours on two cores
    python -m benchmarks --source photos.zip --torch PYTHON --only memory

Each benchmark is a process of its own that prints lines beginning with "RESULT:". A benchmark that fails is
named in the table and the command ends with 1; rows that were not measured this time keep their earlier text.
"""

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "speed.md"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
# Name -> its arguments; PHOTOS and TORCH are replaced by what the options name.
BENCHMARKS: dict[str, list[str]] = {
    "reference_job": ["PHOTOS", "TORCH"],
    "folds_time": ["PHOTOS"],
    "memory": ["PHOTOS", "--size", "64", "--alpha", "0.35", "--epochs", "1", "--folds", "3"],
    "input_speed": ["--seconds", "2"],
    "growth": [],
    "scale": [],
    "simulation": [],
    "random_labels": ["--seeds", "5"],
    "false_verdicts": [],
    "leaderboard_coverage": [],
}


def command(name: str, source: str, torch: str) -> list[str]:
    options = {"PHOTOS": ["--source", source] if source else [], "TORCH": ["--torch", torch] if torch else []}
    arguments = [word for argument in BENCHMARKS[name] for word in options.get(argument, [argument])]
    return [sys.executable, "-m", f"benchmarks.{name}", *arguments]


def measure(name: str, source: str, torch: str) -> tuple[list[str], bool]:
    """(result lines, whether it succeeded)"""
    process = subprocess.Popen(command(name, source, torch), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        if result := re.match(r"RESULT: (.*)", line):
            lines.append(result[1])
    return lines, process.wait() == 0


def rows_of(page: str) -> dict[str, str]:
    table = page[page.index(BEGIN) : page.index(END)]
    return {row[1]: row[0] for row in re.finditer(r"^\| `(\w+)` \|.*$", table, re.MULTILINE)}


def with_rows(page: str, rows: dict[str, str]) -> str:
    """The page with these rows in its table, in the order of BENCHMARKS."""
    table = ["| benchmark | result | measured |", "|---|---|---|", *(rows[name] for name in BENCHMARKS if name in rows)]
    return page[: page.index(BEGIN)] + "\n".join([BEGIN, "", *table, "", END]) + page[page.index(END) + len(END) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="", help='a zip or a folder of photos; "" = generated images')
    parser.add_argument("--torch", default="", help="the Python of an environment with torch and timm")
    parser.add_argument("--only", nargs="*", default=[], choices=[*BENCHMARKS, []], help="only these benchmarks")
    options = parser.parse_args()
    failed = []
    for name in options.only or BENCHMARKS:
        lines, succeeded = measure(name, options.source, options.torch)
        if not succeeded:
            failed.append(name)
            continue
        page, day = PAGE.read_text(encoding="utf-8"), datetime.now(UTC).strftime("%Y-%m-%d")
        rows = {**rows_of(page), name: f"| `{name}` | {'<br>'.join(lines)} | {day} |"}
        PAGE.write_text(with_rows(page, rows), encoding="utf-8")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
