"""Caption picture files with a registered model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tasks.datasets.base import picture_files
from tasks.errors import AttendError
from tasks.progress import Bar

_BATCH = 32


def caption_files(
    pictures: list[Path], model: str | None, beam: int | None, attention: Path | None, workspace: Path, as_json: bool
) -> int:
    """Print a caption for each picture; returns how many could not be captioned.

    model: an MLflow address; None for the champion registered last.
    """
    files = _files(pictures)
    if attention is not None and len(files) != 1:
        raise AttendError(f"--attention: draws one picture, {len(files)} are given")
    if attention is not None and attention.suffix != ".png":
        raise AttendError(f"--attention: {attention}: is written as PNG: give a name ending in .png")
    if attention is not None and not attention.parent.is_dir():
        raise AttendError(f"--attention: {attention.parent}: no such folder")
    captioner = load_captioner(model, workspace)
    rows: list[dict[str, Any]] = []
    with Bar(len(files), "captions", "pictures") as bar:
        for at in range(0, len(files), _BATCH):
            part = files[at : at + _BATCH]
            photographs = [file.read_bytes() for file in part]
            try:
                captioned = captioner.caption(photographs, beam=beam, attention=attention is not None)
            except ValueError as error:
                raise AttendError(str(error)) from None
            for file, photograph, item in zip(part, photographs, captioned, strict=True):
                rows.append(_row(file, item))
                if attention is not None and item.error is None:
                    _draw(photograph, item, captioner, attention)
            bar.advance(len(part))
    _print(rows, as_json)
    return sum(row["error"] is not None for row in rows)


def load_captioner(model: str | None, workspace: Path) -> Any:
    """The captioner of an MLflow address; None for the champion registered last."""
    from tasks import registry, tracking

    if model is not None and not model.startswith(("models:/", "runs:/")):
        raise AttendError(f"--model: {model}: an address reads models:/NAME@ALIAS or models:/NAME/VERSION")
    tracking.check_store(workspace, must_exist=True)
    client = tracking.connect(workspace)
    if model is None:
        found = [item for item in registry.registered_models(client) if item.champion is not None]
        if not found:
            raise AttendError(
                f"{tracking.tracking_uri(workspace)}: no champion is registered yet: run `attend run` first"
            )
        model = f"models:/{found[0].name}@champion"
        print(f"model: {model}", file=sys.stderr)
    return registry.load_bundle(model)


def _files(pictures: list[Path]) -> list[Path]:
    files: list[Path] = []
    for picture in pictures:
        if picture.is_dir():
            files += picture_files(picture)
        elif picture.is_file():
            files.append(picture)
        else:
            raise AttendError(f"{picture}: no such picture")
    if not files:
        raise AttendError(f"{pictures[0]}: no picture in this folder")
    return files


def _row(file: Path, item: Any) -> dict[str, Any]:
    return {
        "picture": str(file),
        "caption": item.caption if item.error is None else None,
        "log_probability": item.log_probability if item.error is None else None,
        "error": item.error,
    }


def _draw(photograph: bytes, item: Any, captioner: Any, out: Path) -> None:
    from models.photographs import decode
    from tasks.attention_maps import draw

    draw(decode(photograph), item.tokens, item.attention.numpy(), captioner.config["backbone"]["fit"]).savefig(out)


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for row in rows:
        if row["error"] is None:
            print(f"{row['picture']}: {row['caption']}")
        else:
            print(f"{row['picture']}: {row['error']}", file=sys.stderr)
