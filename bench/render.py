"""Render the tables of bench/README.md from the results in bench/results/.

    python -m bench.render [--check]

A table is between `<!-- results: NAME INDEX -->` and `<!-- end -->`. --check: write nothing, and end with exit code 1
if a table differs from its result.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from bench.run import RESULTS, Result, Table

README = Path(__file__).with_name("README.md")
_TABLE = re.compile(r"<!-- results: (\S+) (\d+) -->\n.*?<!-- end -->", re.DOTALL)


def main() -> None:
    """Render the page, or check it."""
    before = README.read_text(encoding="utf-8")
    after = rendered(before)
    if "--check" in sys.argv[1:]:
        raise SystemExit(0 if before == after else f"{README}: a table differs: run python -m bench.render")
    README.write_text(after, encoding="utf-8")


def rendered(page: str) -> str:
    """Return a page with its tables rendered from the results. Raises SystemExit if a result is missing."""

    def table_of(match: re.Match[str]) -> str:
        name, index = match[1], int(match[2])
        path = RESULTS / f"{name}.json"
        if not path.is_file():
            raise SystemExit(f"{path}: is missing: run python -m bench.run {name}")
        result: Result = json.loads(path.read_text(encoding="utf-8"))
        return f"<!-- results: {name} {index} -->\n{markdown(result['tables'][index])}\n<!-- end -->"

    return _TABLE.sub(table_of, page)


def markdown(table: Table) -> str:
    """Return a table in Markdown."""
    head = ["| " + " | ".join(table["columns"]) + " |", "| --- " * len(table["columns"]) + "|"]
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in table["rows"])])


if __name__ == "__main__":
    main()
