"""`attend caption`: caption pictures with a registered model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import Json, RuntimeOption, WorkspaceOption, whole_number
from tasks.common.errors import AttendError


def caption(
    pictures: Annotated[
        list[str],
        typer.Argument(metavar="PICTURE...", help="pictures, folders, patterns, or a Parquet file of pictures"),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="models:/NAME@ALIAS or models:/NAME/VERSION, or a folder written by `attend export`"),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="beam width; default: the registered model's", **whole_number(1, 32))
    ] = None,
    n_best: Annotated[int | None, typer.Option(help="captions per picture, best first", **whole_number(1, 32))] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.05, max=10, help="sample the words at this temperature instead of using beam search"),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="sample from the likeliest words whose probabilities add up to this share"),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="sample from this many of the likeliest words", **whole_number(1))
    ] = None,
    seed: Annotated[int | None, typer.Option(help="random seed of sampling", **whole_number(0))] = None,
    min_confidence: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="replace captions whose confidence is lower than this"),
    ] = None,
    otherwise: Annotated[str | None, typer.Option(help="text that replaces them; default: empty")] = None,
    attention: Annotated[
        Path | None,
        typer.Option(help="write a PNG that shows where the model looked for each word; only for a single picture"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="write the captions to this .csv, .jsonl or .parquet file: pictures already in it are not captioned "
            "again, and its rows of other pictures are kept"
        ),
    ] = None,
    runtime: RuntimeOption = None,
    workspace: WorkspaceOption = Path("workspace"),
    as_json: Json = False,
) -> None:
    """Caption pictures with a registered or exported model (by default the champion: see `attend models use`)."""
    from flows.registered.caption import print_captions, write_captions_file

    if otherwise is not None and min_confidence is None:
        raise AttendError("--otherwise: replaces captions of little confidence: give --min-confidence too")
    options: dict[str, int | float | str | None]
    options = {"beam": beam, "n_best": n_best, "temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed}
    options |= {"min_confidence": min_confidence, "otherwise": otherwise}
    decoding = {name: value for name, value in options.items() if value is not None}
    if out is not None:
        if n_best is not None:
            raise AttendError("--out: holds one caption of each picture: leave out --n-best, or --out and add --json")
        if attention is not None or as_json:
            raise AttendError("--out: cannot be combined with --attention or --json: leave them out")
        result = write_captions_file(out, pictures, model, decoding, workspace, runtime)
        typer.echo(f"{result}: {out}")
        raise typer.Exit(1 if result.without else 0)
    failed = print_captions(pictures, model, decoding, attention, workspace, as_json, runtime)
    if failed:
        raise typer.Exit(1)
