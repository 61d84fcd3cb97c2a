"""Caption picture files with a registered model."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tasks.datasets.base import numbered_lines, picture_files
from tasks.digests import Digests
from tasks.errors import AttendError
from tasks.ledger import write_atomically
from tasks.progress import Bar

_BATCH = 32
_SAVE_SECONDS = 30.0


class Kept(NamedTuple):
    """How many pictures were captioned, how many were known, and how many of all have no caption."""

    new: int
    known: int
    without: int

    def __str__(self) -> str:
        return f"{self.new:,} captioned, {self.known:,} were known, {self.without:,} without a caption"


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
    rows = []
    for row, photograph, item in _captioned(captioner, files, beam, attention is not None):
        rows.append(row)
        if attention is not None and item.error is None:
            _draw(photograph, item, captioner, attention)
    _print(rows, as_json)
    return sum(row["error"] is not None for row in rows)


def caption_into(out: Path, folder: Path, model: str | None, beam: int | None, workspace: Path) -> Kept:
    """Keep a file of captions for all pictures of a folder: JSON lines of file_name, text, log_probability, error,
    digest and model. What is captioned there already, by the same version with the same beam, is not captioned again.
    """
    if not folder.is_dir():
        raise AttendError(f"{folder}: no such folder")
    if not out.parent.is_dir():
        raise AttendError(f"--out: {out.parent}: no such folder")
    address = resolve(model, workspace)
    by = f"{address}, beam {beam}" if beam else address
    files = picture_files(folder)
    digests = Digests(workspace / "digests.sqlite").of(files)
    known = {row["digest"]: row for row in _read_lines(out) if row.get("model") == by}
    new = [file for file in files if digests[file] not in known]
    rows = {file: known[digests[file]] for file in files if digests[file] in known}
    if new:
        saved = time.monotonic()
        for (row, _, _), file in zip(_captioned(load_captioner(address, workspace), new, beam), new, strict=True):
            rows[file] = {
                "text": row["caption"],
                **{name: row[name] for name in ("log_probability", "error")},
                "digest": digests[file],
                "model": by,
            }
            if time.monotonic() - saved > _SAVE_SECONDS:
                _write_lines(out, folder, rows)
                saved = time.monotonic()
    _write_lines(out, folder, rows)
    return Kept(len(new), len(files) - len(new), sum(row["error"] is not None for row in rows.values()))


def _captioned(
    captioner: Any, files: list[Path], beam: int | None, attention: bool = False
) -> Iterator[tuple[dict[str, Any], bytes, Any]]:
    with Bar(len(files), "captions", "pictures") as bar:
        for at in range(0, len(files), _BATCH):
            part = files[at : at + _BATCH]
            photographs = [file.read_bytes() for file in part]
            try:
                captioned = captioner.caption(photographs, beam=beam, attention=attention)
            except ValueError as error:
                raise AttendError(str(error)) from None
            for file, photograph, item in zip(part, photographs, captioned, strict=True):
                yield _row(file, item), photograph, item
            bar.advance(len(part))


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = []
    for number, line in numbered_lines(path):
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            raise AttendError(f"--out: {path}:{number}: is no line of captions: give another file") from None
    return rows


def _write_lines(path: Path, folder: Path, rows: dict[Path, dict[str, Any]]) -> None:
    told = [{**row, "file_name": file.relative_to(folder).as_posix()} for file, row in sorted(rows.items())]
    order = ("file_name", "text", "log_probability", "error", "digest", "model")
    lines = [json.dumps({name: row[name] for name in order}, ensure_ascii=False) for row in told]
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def load_captioner(model: str | None, workspace: Path) -> Any:
    """The captioner of an MLflow address; None for the champion registered last."""
    from tasks import registry

    if model is None or not model.startswith("runs:/"):
        model = resolve(model, workspace)
    return registry.load_bundle(model)


def resolve(model: str | None, workspace: Path) -> str:
    """`models:/NAME/VERSION` of an address; None for the champion registered last."""
    from tasks import registry, tracking

    if model is not None and not model.startswith("models:/"):
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
    version = registry.version_at(client, model)
    return f"models:/{version.name}/{version.version}"


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
