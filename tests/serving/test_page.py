"""The pages, driven in a browser: drop a picture, read the caption, pass over a word, see the map move; no mouse needed.

Skipped where there is no Chromium on the PATH.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from playwright.sync_api import expect

from flows.page.history import record_run
from flows.page.project_page import write_page
from flows.serving.app import Server
from flows.serving.limits import Limits
from flows.serving.registered_model import RegisteredModel
from tasks.evaluation.report import REPORT
from tasks.inspection.record import PAGE as INSPECTION_PAGE
from tasks.mlflow_store.logged_model import load_captioner
from tasks.mlflow_store.versions import find
from tests.browser import CHROMIUM, faults, no_wider_than_the_screen
from tests.support import artifacts, free_port, pictures, plan, trained

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")]


@pytest.fixture(scope="module")
def address(registered: Path) -> Iterator[str]:
    served, port = RegisteredModel(None, registered, 3600), free_port()
    attention = served.current.captioner.decoder.attention
    attention.query.weight.data *= 100  # it looks everywhere alike, of 2 x 2 positions: sharper, the words differ
    app = Server(served, Limits(), 32, {"127.0.0.1"}).app()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


def heat(page: Any, frame: str = "#frame") -> tuple[bool, str]:
    """Whether a map is shown, and which."""
    shown, drawn = page.eval_on_selector(
        frame, "frame => [frame.classList.contains('on'), frame.querySelector('canvas').toDataURL()]"
    )
    return bool(shown), str(drawn)


def looked_at(workspace: Path) -> Path:
    """The picture whose words look at the most different places."""
    captioner, files = load_captioner(*find(None, workspace), "torch"), pictures(workspace)
    results = captioner.caption([path.read_bytes() for path in files], attention=True)
    spreads = [float(np.ptp(result.attention, axis=0).max()) for result in results]
    return files[int(np.argmax(spreads))]


def test_a_dropped_picture_is_captioned_and_its_words_tell_where_they_looked(
    page: Any, address: str, registered: Path
) -> None:
    page.goto(address)
    expect(page.locator("#model")).to_contain_text("version 1")
    assert faults(page) == [] and no_wider_than_the_screen(page)
    page.set_input_files("#file", looked_at(registered))
    page.wait_for_selector("#words button")
    words = page.locator("#words button")
    assert words.count() > 1 and not heat(page)[0]
    shown = []
    for at in range(words.count()):
        words.nth(at).hover()
        on, drawn = heat(page)
        assert on
        shown.append(drawn)
    assert len(set(shown)) > 1
    page.mouse.move(0, 0)
    assert not heat(page)[0]
    assert faults(page) == [] and no_wider_than_the_screen(page)


def test_it_works_by_keyboard(page: Any, address: str, registered: Path) -> None:
    page.goto(address)
    page.set_input_files("#file", pictures(registered)[1])
    page.wait_for_selector("#words button")
    page.focus("#words button")
    assert heat(page)[0]
    page.keyboard.press("Tab")
    assert heat(page)[0] and page.evaluate("document.activeElement.parentElement.id") == "words"
    page.keyboard.press("Enter")  # keeps this word's map
    page.focus("#beam")
    assert heat(page)[0]
    page.keyboard.press("End")
    expect(page.locator("#beam_value")).to_have_text("10")
    page.focus("#best")
    page.keyboard.press("End")
    expect(page.locator("#list li")).to_have_count(9)


def test_files_that_are_no_pictures_are_reported(page: Any, address: str, tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("these are notes")
    page.goto(address)
    page.set_input_files("#file", tmp_path / "notes.jpg")
    page.wait_for_selector("#state.error")
    assert (
        page.inner_text("#state") == "This picture is no picture of a known format (JPEG, PNG, WEBP, BMP, GIF, TIFF)."
    )


def test_the_report_of_an_evaluation(page: Any, registered: Path) -> None:
    (report,) = registered.glob(f"mlartifacts/**/evaluation-*/{REPORT}")
    assert report.stat().st_size < 5_000_000
    page.goto(report.as_uri())
    assert (
        "BLEU-4" in page.inner_text("#scores")
        and "BLEU-4" in page.inner_text("#summary")
        and no_wider_than_the_screen(page)
    )
    card = page.locator("article").first
    card.locator(".words button").first.hover()
    assert page.eval_on_selector("article .looked", "frame => frame.classList.contains('on')")
    listed = page.locator("#found tr:visible").count()
    page.fill("#filter", "circle")
    expect(page.locator("#found tr:visible")).not_to_have_count(listed)
    assert all("circle" in text for text in page.locator("article:visible").all_inner_texts())
    page.fill("#filter", "")
    assert faults(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_an_inspection_is_accessible(page: Any, registered: Path, scheme: str) -> None:
    (path,) = registered.glob(f"artifacts/register/*/{INSPECTION_PAGE}")
    page.emulate_media(color_scheme=scheme)
    page.goto(path.as_uri())
    expect(page.locator("h1")).to_have_text("small: the data, seen by the model")
    assert page.locator("article img").count() >= 24
    assert faults(page) == [] and no_wider_than_the_screen(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_project_is_accessible(page: Any, registered: Path, tmp_path: Path, scheme: str) -> None:
    shutil.copytree(registered, tmp_path / "workspace")
    config = trained(tmp_path / "workspace")
    for number in range(2):
        record_run(config, artifacts(config, "evaluate"), [f"run {number}"])
    path = write_page(config, plan(config))
    page.emulate_media(color_scheme=scheme)
    page.goto(path.as_uri())
    expect(page.locator("h1")).to_have_text("small")
    expect(page.locator(".graph rect")).to_have_count(7)
    expect(page.locator(".pictures img")).to_have_count(6)
    assert faults(page) == [] and no_wider_than_the_screen(page)
