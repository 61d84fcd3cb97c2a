"""What `attend demo` shows when it is done."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.style import Style
from rich.text import Text

from flows.pipeline import pipeline_of
from tasks.config.schema import Config
from tasks.data.manifest import GENERATED, MANIFEST
from tasks.pipeline.plan import artifacts

_SHOWN = 3
_WIDTH = 32  # of a picture on the terminal, characters


def show(config: Config) -> None:
    """Print the held-out scores, three captioned pictures, the model's address and what to try next."""
    import pyarrow.parquet as pq

    found = artifacts(pipeline_of(config))
    console = Console(highlight=False)
    told = json.loads((found["evaluate"].path / "scores.json").read_text(encoding="utf-8"))
    scores = told["scores"]
    console.print(f"\n[bold]Held-out pictures: {told['pictures']}[/], never seen in training, captioned freely")
    console.print("  " + "  ".join(f"BLEU-{n} {scores[f'bleu{n}']:.1f}" for n in range(1, 5)))
    console.print(f"  captions whose every stated fact is true: [bold]{scores['truth']:.1f} %[/]\n")

    manifest = found["ingest"].path
    names = {row["digest"]: row["name"] for row in pq.read_table(manifest / MANIFEST).to_pylist()}
    predictions = pq.read_table(found["evaluate"].path / "predictions.parquet").to_pylist()
    for row in predictions[:_SHOWN]:
        path = manifest / GENERATED / names[row["digest"]]
        if console.is_terminal:
            console.print(_in_blocks(path))
        console.print(f"  [bold]{row['caption']}[/]\n  {_short(path)}\n")

    registration = json.loads((found["register"].path / "registration.json").read_text(encoding="utf-8"))
    place = "" if config.workspace == Path("workspace").absolute() else f" --workspace {_short(config.workspace)}"
    last = _short(manifest / GENERATED / names[predictions[_SHOWN - 1]["digest"]])
    console.print(
        f"registered: [bold]models:/{registration['model']}@{registration['alias']}[/] = {registration['uri']}\n"
    )
    console.print("next:")
    for command in (
        f"attend caption {last} --attention attention.png{place}",
        f"attend status demo{_override(place, config)}",
        f"attend ui{place}",
        "attend presets",
    ):
        console.print(f"  .venv/bin/{command}", soft_wrap=True)


def _override(place: str, config: Config) -> str:
    return f" machine.workspace={_short(config.workspace)}" if place else ""


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _in_blocks(path: Path) -> Text:
    """A picture in half blocks, two pixels a character."""
    with Image.open(path) as image:
        small = image.convert("RGB").resize((_WIDTH, _WIDTH), Image.Resampling.BOX)
    text = Text()
    for y in range(0, _WIDTH, 2):
        text.append("  ")
        for x in range(_WIDTH):
            over, under = small.getpixel((x, y)), small.getpixel((x, y + 1))
            assert isinstance(over, tuple) and isinstance(under, tuple)
            style = Style(color=_hex(over), bgcolor=_hex(under))
            text.append("▀", style)
        text.append("\n")
    return text


def _hex(colour: tuple[int, ...]) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour)
