"""Several captioners side by side: the RNN, the LSTM and the attention LSTM of one coco.pt, in one command and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.configs import load
from models.vocabulary import END, NULL, SPECIAL, START
from tests.browser import CHROMIUM, faults, no_wider_than_the_screen
from tests.cli import output
from tests.support import register_all

pytestmark = pytest.mark.slow
PRESETS = ("rnn", "lstm", "regnet_attention")
COLOURS = {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (30, 40, 200)}
SMALL = [
    "grids.backbone=tiny",
    "grids.weights=random:0",
    "grids.image_size=64",
    "training.epochs=4",
    "training.batch_pictures=8",
    "registry.min_pictures=1",
]


def coco_pt(path: Path) -> Path:
    """A file of 60 pictures, each of one colour, with a caption that says which."""
    words = [*SPECIAL, "a", "square", *COLOURS]
    pixels, captions = [], []
    for number in range(60):
        colour = list(COLOURS)[number % len(COLOURS)]
        noise = torch.randint(0, 40, (3, 16, 16), generator=torch.Generator().manual_seed(number))
        pixels.append((torch.tensor(COLOURS[colour]).view(3, 1, 1) + noise).clamp(0, 255).to(torch.uint8))
        ids = [START, *(words.index(word) for word in ("a", colour, "square")), END]
        captions.append(torch.tensor([*ids, *[NULL] * (17 - len(ids))]))
    parts = (("train", slice(0, 40)), ("val", slice(40, 60)))
    torch.save(
        {
            **{f"{part}_images": torch.stack(pixels[rows]) for part, rows in parts},
            **{f"{part}_captions": torch.stack(captions[rows]) for part, rows in parts},
            "vocab": {"idx_to_token": words, "token_to_idx": {word: at for at, word in enumerate(words)}},
        },
        path,
    )
    return path


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The settings of three registered captioners of one coco.pt."""
    folder = tmp_path_factory.mktemp("comparison")
    overrides = [f"data.path={coco_pt(folder / 'coco.pt')}", f"machine.workspace={folder / 'workspace'}", *SMALL]
    for preset in PRESETS:
        register_all(load(preset, overrides))
    return overrides


@pytest.fixture(scope="module")
def written(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """The output of the command as text and as JSON, and its page."""
    page = tmp_path_factory.mktemp("page") / "comparison.html"
    versions = [f"models:/{preset}@champion" for preset in PRESETS]
    workspace = next(item.partition("=")[2] for item in settings if item.startswith("machine.workspace"))
    command = ["models", "compare", *versions, *settings, "--on", "rnn", "--workspace", workspace]
    text = output(*command, "--page", page)
    return text, json.loads(output(*command, "--json")), page


def test_each_is_compared_with_the_first(written: tuple[str, dict[str, Any], Path]) -> None:
    text, found, _ = written
    assert "20 pictures" in text and text.count("rnn/1") >= 4
    assert found["versions"] == [f"{preset}/1" for preset in PRESETS]
    assert [item["version"] for item in found["scores"]] == ["lstm/1", "regnet_attention/1"]
    assert len(found["captions"]) == 20
    firsts = [[score["first"] for score in item["against_first"]] for item in found["scores"]]
    assert firsts[0] == firsts[1] and all(len(item["captions"]) == 3 for item in found["captions"])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_each_caption_of_a_picture(
    page: Any, written: tuple[str, dict[str, Any], Path], scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(written[2].as_uri())
    assert page.locator(".picture").count() == 20 and page.locator(".picture").first.locator("article").count() == 3
    assert page.locator(".plots svg").count() == 2
    assert [page.locator("article h3").nth(place).inner_text() for place in range(3)] == [
        f"{name}/1" for name in PRESETS
    ]
    assert page.locator("article").nth(2).locator(".words button").count() > 0  # it attends
    assert page.locator("article").nth(0).locator(".words button").count() == 0
    assert faults(page) == [] and no_wider_than_the_screen(page)
