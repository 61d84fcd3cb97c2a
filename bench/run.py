"""Run a benchmark and save its printed tables, with the machine and the date, as JSON in bench/results/.

    python -m bench.run speed.training_step [ARGUMENTS OF THE BENCH]

bench/render.py renders the tables of bench/README.md from these files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

RESULTS = Path(__file__).with_name("results")


class Table(TypedDict):
    """A printed table. Each row has one cell per column."""

    columns: list[str]
    rows: list[list[str]]


class Result(TypedDict):
    """The output of a benchmark. machine: the lines before its first table."""

    bench: str
    arguments: list[str]
    date: str
    machine: list[str]
    tables: list[Table]


def main() -> None:
    """Run the named benchmark, and write its result if it succeeds."""
    if len(sys.argv) < 2:
        raise SystemExit(f"usage: {(__doc__ or '').splitlines()[2].strip()}")
    name, *arguments = sys.argv[1:]
    lines = []
    command = [sys.executable, "-u", "-m", f"bench.{name}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    if process.returncode:
        raise SystemExit(f"bench.{name} ended with exit code {process.returncode}: nothing is kept")
    result = result_of(name, arguments, lines)
    if not result["tables"]:
        raise SystemExit(f"bench.{name} printed no table: nothing is kept")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path}: written; python -m bench.render puts it into bench/README.md")


def result_of(name: str, arguments: list[str], lines: Iterable[str]) -> Result:
    """Return the result of a benchmark from its printed lines."""
    machine: list[str] = []
    tables: list[Table] = []
    inside = False
    for line in lines:
        if not line.startswith("|"):
            # Some benches print a remark between the rows of a table: only an empty line ends it.
            inside = inside and bool(line.strip())
            if not tables and line.strip():
                machine.append(line)
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not inside:
            tables.append({"columns": cells, "rows": []})
            inside = True
        elif not set("".join(cells)) <= {"-", " "} or not "".join(cells):
            tables[-1]["rows"].append(cells)
    date = datetime.now(UTC).date().isoformat()
    return {
        "bench": name,
        "arguments": list(map(_without_folder, arguments)),
        "date": date,
        "machine": machine,
        "tables": tables,
    }


def _without_folder(argument: str) -> str:
    """Return an argument; of an absolute path in it, only the last name remains, because folders differ by machine."""
    field, equals, value = argument.rpartition("=")
    return f"{field}{equals}{Path(value).name if value.startswith('/') else value}"


if __name__ == "__main__":
    main()
