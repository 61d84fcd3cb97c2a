"""What a bench printed is kept as JSON, and the page's tables are those that are kept."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from bench import render, run

PRINTED = """\
AMD EPYC, 2 cores
AVX2, trains in float32

| grid | form | ratio |
| --- | --- | --- |
float32: its loss differs by 0e+00
| 7x7 | textbook | 1.0 |
| 7x7 | ours |  |

| other |
| --- |
| - |
"""


def test_tables_are_read_as_they_were_printed() -> None:
    result = run.result_of("speed.x", ["--rounds", "1"], PRINTED.splitlines())
    assert result["machine"] == ["AMD EPYC, 2 cores", "AVX2, trains in float32"]
    assert result["tables"][0] == {
        "columns": ["grid", "form", "ratio"],
        "rows": [["7x7", "textbook", "1.0"], ["7x7", "ours", ""]],
    }
    assert result["tables"][1]["columns"] == ["other"]


def test_no_path_of_a_machine_is_kept() -> None:
    given = ["/data/pictures", "data.path=/data/flickr8k", "--seconds", "10", "models:/photos@champion", "a/b"]
    kept = run.result_of("speed.x", given, PRINTED.splitlines())["arguments"]
    assert kept == ["pictures", "data.path=flickr8k", "--seconds", "10", "models:/photos@champion", "a/b"]


def test_a_bench_that_ran_is_kept_and_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()
    (tmp_path / "bench" / "small.py").write_text(f"print({PRINTED!r})")
    monkeypatch.chdir(tmp_path)  # the folder that `python -m` looks in first
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(render, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["run", "small"])
    run.main()
    saved = json.loads((tmp_path / "results" / "small.json").read_text())
    assert saved["bench"] == "small" and len(saved["tables"]) == 2
    page = "before\n<!-- results: small 0 -->\nold\n<!-- end -->\nafter\n"
    assert "| 7x7 | textbook | 1.0 |" in render.rendered(page) and render.rendered(page).endswith("after\n")
    with pytest.raises(SystemExit, match=r"other\.json: is missing: run python -m bench\.run other"):
        render.rendered("<!-- results: other 0 -->\n<!-- end -->")


def test_a_bench_that_fails_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()
    (tmp_path / "bench" / "small.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["run", "small"])
    with pytest.raises(SystemExit, match=r"bench\.small ended with exit code 3: nothing is kept"):
        run.main()
    assert not (tmp_path / "results").exists()


def test_every_table_of_figures_is_rendered_from_the_results() -> None:
    page = render.README.read_text(encoding="utf-8")
    assert render.rendered(page) == page
    figures = re.sub(r"<!-- results: .*?<!-- end -->", "", page.partition("## Speed")[2], flags=re.DOTALL)
    assert not [line for line in figures.splitlines() if line.startswith("|")]
