"""`attend model`: print the layers, shapes and parameters of a captioner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.options import ConfigWorkspace, Overrides, whole_number, with_workspace, workspace_folder
from tasks.common.errors import AttendError

if TYPE_CHECKING:
    from models.decoders.base import Decoder
    from models.decoders.ensemble import Ensemble

_CAPTIONS, _WORDS = 5, 1  # shapes are shown for this many captions of a picture, and words of each


def model(
    name: Annotated[
        str, typer.Argument(metavar="PRESET_OR_YAML|MODEL", help="a preset, a YAML file, or a registered model's name")
    ],
    overrides: Overrides = None,
    words: Annotated[
        int | None,
        typer.Option(
            help="vocabulary size; default: that of the captions if known, otherwise 5,000", **whole_number(5)
        ),
    ] = None,
    depth: Annotated[int, typer.Option(help="depth to which nested layers are listed", **whole_number(1, 9))] = 3,
    workspace: ConfigWorkspace = None,
) -> None:
    """Show a captioner's layers, their parameters, and their shapes for one picture with one word of five captions."""
    from tasks.config.presets import presets

    if name in presets() or Path(name).suffix in (".yaml", ".yml"):
        _show_config(name, with_workspace(overrides, workspace), words, depth)
    elif overrides or words is not None:
        raise AttendError(
            f"{name}: is neither a preset nor a YAML file; a registered model has its own settings: give {name} alone"
        )
    else:
        _show_registered(name, workspace_folder(workspace), depth)


def _show_config(preset: str, overrides: list[str], words: int | None, depth: int) -> None:
    """Print the backbone and the decoder of a config, with random weights."""
    import torch

    from flows.configs import load
    from flows.pipeline import build_pipeline
    from models.decoders.ensemble import make
    from tasks.config.presets import presets
    from tasks.data.caption_files import read_vocabulary
    from tasks.grids.weights import IMPORTED, random_backbone
    from tasks.pipeline.plan import Plan

    config = load(preset, ["data.path=.", *overrides] if preset in presets() else overrides)
    try:
        artifacts = Plan(build_pipeline(config)).update().by_kind
    except AttendError:  # the data set need not exist
        artifacts = {}
    if words is None:
        words = len(read_vocabulary(artifacts["tensorise"].path)) if "tensorise" in artifacts else 5_000
    if config.grids.backbone == IMPORTED:
        raise AttendError(f"{preset}: the grids are imported, and without a backbone their shape is not known here")
    photograph = torch.zeros(1, 3, config.grids.image_size, config.grids.image_size)
    backbone = random_backbone(config.grids)
    with torch.inference_mode():
        grid = backbone(photograph)
    try:
        decoder = make(config.decoder.name, grid.shape[-1], words, config.decoder.options(), config.decoder.members)
    except ValueError as error:
        raise AttendError(f"{preset}: {error}") from None
    _show(f"backbone {config.grids.backbone}", backbone, [photograph], depth)
    _show_decoder(config.decoder.name, decoder, grid, depth)


def _show_registered(name: str, workspace: Path, depth: int) -> None:
    """Print the backbone and the decoder of a registered model."""
    import torch

    from tasks.mlflow_store.logged_model import load_captioner
    from tasks.mlflow_store.versions import find

    captioner = load_captioner(*find(name, workspace), runtime="torch")
    decoder = captioner.decoder.to("cpu")
    spec = captioner.config["backbone"]
    typer.echo(f"{name}: {len(captioner.vocabulary):,} tokens")
    if captioner.backbone is None:
        _show_decoder(captioner.config["decoder"]["name"], decoder, torch.zeros(1, *spec["shape"]), depth)
        return
    photograph = torch.zeros(1, 3, *[spec["image_size"]] * 2)
    with torch.inference_mode():
        grid = captioner.backbone(photograph)  # it stays on the CPU, because the encoder has its own copy
    _show(f"backbone {spec['name']}", captioner.backbone, [photograph], depth)
    _show_decoder(captioner.config["decoder"]["name"], decoder, grid, depth)


def _show_decoder(name: str, decoder: Decoder | Ensemble, grid: Any, depth: int) -> None:
    import torch

    tokens = torch.ones(1, _CAPTIONS, _WORDS, dtype=torch.int64)
    _show(f"decoder {name}", decoder, [grid, tokens, torch.arange(tokens.numel())], depth)


def _show(title: str, module: Any, inputs: list[Any], depth: int) -> None:
    """Print a module as torchinfo does."""
    import torchinfo

    columns = ("input_size", "output_size", "num_params", "trainable")
    summary = torchinfo.summary(
        module.eval(), input_data=inputs, depth=depth, col_names=columns, verbose=0, row_settings=("var_names",)
    )
    typer.echo(f"\n{title}\n{summary}")
