"""Layouts that people have are read rightly, or refused, or at least not without a warning."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.layouts import layouts, outcome


@pytest.mark.parametrize("number", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_layouts_are_read_rightly_or_not_without_a_warning(number: int, tmp_path: Path) -> None:
    found: list[tuple[str, bool]] = []

    @settings(
        max_examples=number, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def read(data: Any) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / "set").mkdir()
        try:
            layout = data.draw(layouts(folder / "set"))
            result, said = outcome(layout, folder / "set", folder / "out")
            found.append((result, layout.is_clean))
            assert result != "wrong", f"{layout.steps}: {said}"
        finally:
            shutil.rmtree(folder)

    read()
    counts = Counter(result for result, _ in found)
    print(dict(counts))
    right = counts["right"] + counts["right, with a warning"]
    assert right >= 0.9 * len(found), counts
    clean = [result for result, is_clean in found if is_clean]
    assert sum("warning" in result for result in clean) <= 0.02 * len(clean), counts
