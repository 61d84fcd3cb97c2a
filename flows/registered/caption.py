"""Caption pictures with a registered model."""

from __future__ import annotations

import glob
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from flows.registered.pictures import Column, Named, Pictures, open_pictures
from tasks.common.errors import AttendError
from tasks.common.files import write_whole
from tasks.common.progress import Bar
from tasks.datasets.base import numbered_lines
from tasks.pipeline.ledger import digest_of
from tasks.pipeline.workspace import Workspace

_PART_SECONDS, _PART_ROWS = 30.0, 4096
_SCHEMA = pa.schema(
    [
        ("file_name", pa.string()),
        ("text", pa.string()),
        ("log_probability", pa.float64()),
        ("error", pa.string()),
        ("digest", pa.string()),
        ("model", pa.string()),
    ]
)
Row = dict[str, Any]
# Of a picture that is not there or not to be read; it is tried again the next time.
_UNREAD: Row = {"text": None, "log_probability": None, "error": "cannot be read", "digest": None}


class Kept(NamedTuple):
    """How many pictures were captioned, how many were known, and how many of all have no caption."""

    new: int
    known: int
    without: int

    def __str__(self) -> str:
        return f"{self.new:,} captioned, {self.known:,} were known, {self.without:,} without a caption"


def caption_files(
    given: list[str], model: str | None, beam: int | None, attention: Path | None, workspace: Path, as_json: bool
) -> int:
    """Print a caption for each picture; returns how many could not be captioned.

    given: files, folders or patterns. model: an MLflow address; None for the champion registered last.
    """
    from tasks.registry.logged_model import load_captioner
    from tasks.registry.versions import resolve

    pictures = open_pictures(given, workspace)
    if isinstance(pictures, Column):
        raise AttendError(f"{given[0]}: the captions of a Parquet file are kept in another: add --out captions.parquet")
    if attention is not None and len(pictures) != 1:
        raise AttendError(f"--attention: draws one picture, {len(pictures)} are given")
    if attention is not None and attention.suffix != ".png":
        raise AttendError(f"--attention: {attention}: is written as PNG: give a name ending in .png")
    if attention is not None and not attention.parent.is_dir():
        raise AttendError(f"--attention: {attention.parent}: no such folder")
    captioner = load_captioner(resolve(model, workspace))
    names = list(pictures.named())
    wanted = {digest for _, digest in names if digest is not None}
    rows: dict[str | None, Row] = {}
    with Bar(len(wanted), "captions", "pictures") as bar:
        for part in pictures.batches(wanted):
            for named, row, item in _captioned(captioner, part, beam, attention is not None):
                rows[named.digest] = row
                if attention is not None and item.error is None:
                    _draw(named, item, captioner, attention)
            bar.advance(len(part))
    shown = [{"picture": name, **_without(rows.get(digest, _UNREAD), "digest")} for name, digest in names]
    _print(shown, as_json)
    return sum(row["error"] is not None for row in shown)


def caption_into(out: Path, given: list[str], model: str | None, beam: int | None, workspace: Path) -> Kept:
    """Make a file of the captions of these pictures, .jsonl or .parquet: a row of _SCHEMA each.

    What is captioned there already, by the same version with the same beam, is not captioned again. While it works,
    parts are kept beside the file, so that a run that was killed goes on; at the end they are merged into it.
    """
    from tasks.registry.logged_model import load_captioner
    from tasks.registry.versions import resolve

    if out.suffix not in (".jsonl", ".parquet"):
        raise AttendError(f"--out: {out}: give a name ending in .jsonl or .parquet")
    if not out.parent.is_dir():
        raise AttendError(f"--out: {out.parent}: no such folder")
    address = resolve(model, workspace)
    by = f"{address}, beam {beam}" if beam else address
    with Workspace(workspace).lock(f"captions-{digest_of(str(out.resolve()))[:20]}", f"captions of {out}"):
        parts = _Parts(out, by)
        pictures = open_pictures(given, workspace)
        names = list(pictures.named())
        known = parts.known()
        wanted = {digest for _, digest in names if digest is not None}
        new = wanted - known.keys()
        if new:
            _caption_new(pictures, new, len(wanted - new), load_captioner(address), beam, parts, known)
        rows = [{"file_name": name, **known.get(digest, _UNREAD), "model": by} for name, digest in names]
        _write(out, rows)
        parts.remove()
    again = sum(digest in wanted - new for _, digest in names)
    return Kept(len(names) - again, again, sum(row["error"] is not None for row in rows))


def _caption_new(
    pictures: Pictures,
    new: set[str],
    done: int,
    captioner: Any,
    beam: int | None,
    parts: _Parts,
    known: dict[str | None, Row],
) -> None:
    rows: list[Row] = []
    begun = time.monotonic()
    with Bar(done + len(new), "captions", "pictures", done) as bar:
        try:
            for batch in pictures.batches(new):
                rows += [row for _, row, _ in _captioned(captioner, batch, beam)]
                bar.advance(len(batch))
                if len(rows) >= _PART_ROWS or time.monotonic() - begun > _PART_SECONDS:
                    parts.keep(rows)
                    known |= {row["digest"]: row for row in rows}
                    rows, begun = [], time.monotonic()
        finally:
            parts.keep(rows)
            known |= {row["digest"]: row for row in rows}


class _Parts:
    """The folder OUT.parts: captions that one version found and that are not in OUT yet."""

    def __init__(self, out: Path, by: str) -> None:
        self._out, self._by = out, by
        self._folder = out.with_name(f"{out.name}.parts")
        for left in out.parent.glob(f".{glob.escape(out.name)}.*.tmp"):  # of a run killed while it wrote
            left.unlink(missing_ok=True)

    def known(self) -> dict[str | None, Row]:
        """Digest -> row, of OUT and of what a killed run left."""
        kept = sorted(self._folder.glob("part-*.parquet"))
        rows = [*_read(self._out), *(row for path in kept for row in _read(path))]
        return {row["digest"]: _without(row, "file_name", "model") for row in rows if row.get("model") == self._by}

    def keep(self, rows: list[Row]) -> None:
        if not rows:
            return
        self._folder.mkdir(exist_ok=True)
        taken = [int(path.stem[5:]) for path in self._folder.glob("part-*.parquet")]
        path = self._folder / f"part-{max(taken, default=-1) + 1:05d}.parquet"
        _write(path, [{"file_name": None, **row, "model": self._by} for row in rows])

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _captioned(
    captioner: Any, batch: list[Named], beam: int | None, attention: bool = False
) -> Iterator[tuple[Named, Row, Any]]:
    """Each picture of a batch with its row, and with what the captioner said."""
    try:
        said = captioner.caption([named.data for named in batch], beam=beam, attention=attention)
    except ValueError as error:
        raise AttendError(str(error)) from None
    for named, item in zip(batch, said, strict=True):
        told = item.error is None
        row = {
            "text": item.caption if told else None,
            "log_probability": item.log_probability if told else None,
            "error": item.error,
            "digest": named.digest,
        }
        yield named, row, item


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        if path.suffix == ".parquet":
            rows: list[Row] = pq.read_table(path, columns=_SCHEMA.names).to_pylist()
            return rows
        rows = []
        for number, line in numbered_lines(path):  # noqa: B007 -- told below
            row = dict(json.loads(line))
            rows.append({name: row[name] for name in _SCHEMA.names})
        return rows
    except (pa.ArrowException, OSError):
        raise AttendError(f"--out: {path}: is no file of captions: give another name, or remove it") from None
    except (ValueError, TypeError, KeyError):
        raise AttendError(f"--out: {path}:{number}: is no line of captions: give another file") from None


def _write(path: Path, rows: list[Row]) -> None:
    """Write all rows, or leave what is there."""
    rows = [{name: row[name] for name in _SCHEMA.names} for row in rows]
    with write_whole(path) as temporary:
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), temporary)
        else:
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def _without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def _draw(named: Named, item: Any, captioner: Any, out: Path) -> None:
    from models.photographs import decode
    from tasks.evaluation.attention_maps import draw

    draw(decode(named.data), item.tokens, item.attention.numpy(), captioner.config["backbone"]["fit"]).savefig(out)


def _print(rows: list[Row], as_json: bool) -> None:
    if as_json:
        told = [{"picture": row["picture"], "caption": row["text"], **_without(row, "picture", "text")} for row in rows]
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return
    for row in rows:
        if row["error"] is None:
            print(f"{row['picture']}: {row['text']}")
        else:
            print(f"{row['picture']}: {row['error']}", file=sys.stderr)
