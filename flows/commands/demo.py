"""The summary that `attend demo` prints at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from flows.commands.options import program, short
from flows.commands.story import workspace_option
from tasks.config.schema import Config
from tasks.data.manifest import GENERATED_FOLDER, MANIFEST
from tasks.evaluation.score_record import read_scores
from tasks.mlflow_store.registration_record import read_registration
from tasks.pipeline.ledger import Artifact

_SAMPLES = 3
_WIDTH = 32  # of a picture on the terminal, in characters


def show(config: Config, results: Mapping[str, Artifact]) -> None:
    """Print the held-out scores, three captioned pictures, the model's address and the next commands to try.

    results: the artifacts of all stages, by kind.
    """
    import pyarrow.parquet as pq

    console = Console(highlight=False)
    evaluation = read_scores(results["evaluate"].path)
    scores = evaluation["scores"]
    console.print(f"\n[bold]Held-out pictures: {evaluation['pictures']}[/], never seen in training")
    console.print("  " + "  ".join(f"BLEU-{n} {scores[f'bleu{n}']:.1f}" for n in range(1, 5)))
    console.print(f"  captions whose every stated fact is true: [bold]{scores['truth']:.1f} %[/]\n")

    manifest = results["ingest"].path
    names = {row["digest"]: row["name"] for row in pq.read_table(manifest / MANIFEST).to_pylist()}
    predictions = pq.read_table(results["evaluate"].path / "predictions.parquet").to_pylist()
    for row in predictions[:_SAMPLES]:
        path = manifest / GENERATED_FOLDER / names[row["digest"]]
        if console.is_terminal:
            console.print(_as_half_blocks(path))
        console.print(f"  [bold]{row['caption']}[/]\n  {short(path)}\n", soft_wrap=True)

    registration = read_registration(results["register"].path)
    option = workspace_option(config)
    last = short(manifest / GENERATED_FOLDER / names[predictions[_SAMPLES - 1]["digest"]])
    console.print(
        f"registered: [bold]models:/{registration['model']}@{registration['alias']}[/] = {registration['uri']}\n"
    )
    console.print("next:")
    for command in (
        f"caption {last} --attention attention.png{option}",
        f"status demo{option}",
        f"ui{option}",
        "presets",
    ):
        console.print(f"  {program()} {command}", soft_wrap=True)


def _as_half_blocks(path: Path) -> Text:
    """Return a picture drawn with half-block characters, each showing two pixels, one above the other."""
    with Image.open(path) as image:
        small = image.convert("RGB").resize((_WIDTH, _WIDTH), Image.Resampling.BOX)
    text = Text()
    for y in range(0, _WIDTH, 2):
        text.append("  ")
        for x in range(_WIDTH):
            upper, lower = small.getpixel((x, y)), small.getpixel((x, y + 1))
            assert isinstance(upper, tuple) and isinstance(lower, tuple)
            text.append("▀", Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower)))
        text.append("\n")
    return text
