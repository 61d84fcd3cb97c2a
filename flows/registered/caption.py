"""Caption pictures with a registered model."""

from __future__ import annotations

import contextlib
import glob
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flows.registered.caption_rows import Row, read_rows, write_rows
from flows.registered.pictures_to_caption import EncodedPicture, ParquetPictures, Pictures, open_pictures
from models.captioned import key_of_digest, takes_grids
from models.options import Runtime
from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.common.progress import Bar
from tasks.mlflow_store.versions import Registered, find_captioner
from tasks.pipeline.workspace import hold

if TYPE_CHECKING:
    from tasks.grids.reader import GridReader

_NAMED = 5  # the maximum number of pictures without a caption to name in the log
_GRIDS = 64  # grids read and captioned at once
_PART_SECONDS, _PART_ROWS = 30.0, 4096  # a part is written after this time, or at this number of rows
# Fields of models.options.Decoding, `min_confidence` and `otherwise`.
AskedDecoding = Mapping[str, int | float | str] | None
# The row of a missing or unreadable picture. Its digest is None, so that the next run tries it again.
_UNREADABLE: Row = {
    "text": None,
    "log_probability": None,
    "confidence": None,
    "error": "cannot be read",
    "digest": None,
}


class CaptionCounts(NamedTuple):
    """Counts of pictures: tried in this run, known from earlier runs, without a caption among both; other rows kept."""

    new: int
    known: int
    without: int
    kept: int = 0

    def __str__(self) -> str:
        captioned = self.new + self.known - self.without
        earlier = min(self.known, captioned)
        parts = [f"{captioned:,} captioned ({earlier:,} of them earlier)" if earlier else f"{captioned:,} captioned"]
        parts += [f"{self.without:,} without a caption"] if self.without else []
        return ", ".join([*parts, f"{self.kept:,} rows of other pictures kept"] if self.kept else parts)


def print_captions(
    sources: list[str],
    model: str | None,
    decoding: AskedDecoding,
    attention: Path | None,
    workspace: Path,
    as_json: bool,
    runtime: Runtime | None = None,
) -> int:
    """Print a caption for each picture, and return the number of pictures that could not be captioned.

    sources: files, folders or patterns. model: an MLflow address; None for the champion in use. decoding:
    options that replace the model's. attention: a PNG file for a drawing of the alphas of each word, for a single
    picture. runtime: of the model; None for its first one. Raises AttendError for arguments that cannot be used.
    """
    from tasks.mlflow_store.logged_model import load_captioner

    pictures = open_pictures(sources, workspace)
    if isinstance(pictures, ParquetPictures):
        raise AttendError(f"{sources[0]}: captions of a Parquet file are not printed: add --out captions.parquet")
    if attention is not None and len(pictures) != 1:
        raise AttendError(f"--attention: needs exactly one picture, {len(pictures)} are given")
    if attention is not None and attention.suffix != ".png":
        raise AttendError(f"--attention: {attention}: is written as PNG: give a name ending in .png")
    if attention is not None and not attention.parent.is_dir():
        raise AttendError(f"--attention: {attention.parent}: no such folder")
    version = find_and_log(model, workspace)
    captioner = load_captioner(*version, runtime)
    if attention is not None and takes_grids(captioner.config):
        raise AttendError("--attention: draws over a photograph, and this model takes grids: leave it out")
    names = list(pictures.named())
    digests = {digest for _, digest in names if digest is not None}
    row_by_digest: dict[str | None, Row] = {}
    is_drawn = False
    for batch in caption_all(pictures, digests, captioner, version.address, workspace, decoding, attention is not None):
        row_by_digest |= {row["digest"]: {**row, "alternatives": result.alternatives} for row, result in batch}
        if attention is not None and batch and batch[0][1].tokens:
            [[picture]] = pictures.batches(digests)
            _draw_attention(picture, batch[0][1], captioner, attention)
            is_drawn = True
    rows = [
        {"picture": name, **_drop_columns(row_by_digest.get(digest, _UNREADABLE), "digest")} for name, digest in names
    ]
    _print(rows, as_json)
    if attention is not None and not is_drawn and rows[0]["error"] is None:
        raise AttendError(f"--attention: {attention}: is not written: the caption of {names[0][0]} has no word to draw")
    return sum(row["error"] is not None for row in rows)


def write_captions_file(
    out: Path,
    sources: list[str],
    model: str | None,
    decoding: AskedDecoding,
    workspace: Path,
    runtime: Runtime | None = None,
) -> CaptionCounts:
    """Write the captions of these pictures to a .csv, .jsonl or .parquet file, with a row of `SCHEMA` per picture.

    sources: files, folders or patterns, or one Parquet file. model: an MLflow address; None for the champion in
    use. runtime: of the model; None for its first one. Pictures that the same version captioned with the same
    `decoding` in an earlier run are not captioned again, and rows of other pictures are kept. New captions are first
    written to parts beside the file, so that the next run continues a killed one, and are merged into the file at the
    end. Raises AttendError for arguments that cannot be used.
    """
    from tasks.mlflow_store.logged_model import load_captioner

    if out.suffix not in (".csv", ".jsonl", ".parquet"):
        raise AttendError(f"--out: {out}: give a name ending in .csv, .jsonl or .parquet")
    if not out.parent.is_dir():
        raise AttendError(f"--out: {out.parent}: no such folder")
    registered = find_and_log(model, workspace)
    on = [] if runtime is None else [f"runtime {runtime}"]
    model_label = ", ".join([registered.address, *on, *(f"{name} {value}" for name, value in (decoding or {}).items())])
    parts = _PartFiles(out, model_label)
    with parts.lock():
        pictures = open_pictures(sources, workspace)
        names = list(pictures.named())
        earlier = read_rows(out)
        row_by_digest = parts.known_rows(earlier)
        digests = {digest for _, digest in names if digest is not None}
        new = digests - row_by_digest.keys()
        known = digests - new
        if new:
            captioner = load_captioner(*registered, runtime)
            batches = caption_all(pictures, new, captioner, registered.address, workspace, decoding, known=len(known))
            _write_parts(batches, parts)
            row_by_digest = parts.known_rows(earlier)
        rows = [
            {
                "file_name": name,
                "folder": pictures.folder,
                **row_by_digest.get(digest, _UNREADABLE),
                "model": model_label,
            }
            for name, digest in names
        ]
        names_in_run = {name for name, _ in names}
        kept_rows = [row for row in earlier if row["folder"] != pictures.folder or row["file_name"] not in names_in_run]
        write_rows(out, [*rows, *kept_rows])
        parts.remove()
    without = [row for row in rows if row["error"] is not None]
    for row in without[:_NAMED]:
        log.warning(f"{row['file_name']}: {row['error']}")
    known_count = sum(digest in known for _, digest in names)
    return CaptionCounts(len(names) - known_count, known_count, len(without), len(kept_rows))


def find_and_log(model: str | None, workspace: Path) -> Registered:
    """Return the registered version that captions; log which one it is if none was named."""
    registered = find_captioner(model, workspace)
    if model is None:
        log.info(f"model: {registered.address}")
    return registered


def _write_parts(batches: Iterable[list[tuple[Row, Any]]], parts: _PartFiles) -> None:
    """Write the rows of pictures to part files while they are captioned."""
    rows: list[Row] = []
    part_start = time.monotonic()
    try:
        for batch in batches:
            rows += [row for row, _ in batch]
            if len(rows) >= _PART_ROWS or time.monotonic() - part_start > _PART_SECONDS:
                parts.write(rows)
                rows, part_start = [], time.monotonic()
    finally:
        parts.write(rows)


def grids_for(captioner: Any, address: str, workspace: Path, digests: set[str]) -> GridReader | None:
    """Return a reader of this workspace's grids of photographs, if they are from the captioner's backbone.

    digests: of the photographs. None if there are no such grids.
    """
    if takes_grids(captioner.config) or not address.startswith("models:/"):
        return None
    from flows.registered.cached_grids import cached_grids

    return cached_grids(address, workspace, digests)


def caption_all(
    pictures: Pictures,
    digests: set[str],
    captioner: Any,
    address: str,
    workspace: Path,
    decoding: AskedDecoding,
    attention: bool = False,
    known: int = 0,
) -> Iterator[list[tuple[Row, Any]]]:
    """Yield the row and the captioner's result of each picture with these digests, in batches, with a bar.

    Pictures whose grids the workspace has come first, unless attention maps are wanted, which need photographs.
    address: of the captioner. known: pictures captioned before, for the bar.
    """
    grids = None if attention else grids_for(captioner, address, workspace, digests)
    done = set()
    with Bar(known + len(digests), "captions", "pictures", known) as bar:
        for captioned in _from_grids(captioner, grids, digests, decoding):
            done |= {row["digest"] for row, _ in captioned}
            yield captioned
            bar.advance(len(captioned))
        for batch in pictures.batches(digests - done):
            captioned = list(caption_batch(captioner, batch, decoding, attention))
            yield captioned
            bar.advance(len(captioned))


def _from_grids(
    captioner: Any, grids: GridReader | None, digests: set[str], decoding: AskedDecoding
) -> Iterator[list[tuple[Row, Any]]]:
    """Yield the row and the result of each of these pictures that has a grid, in batches."""
    cached = [] if grids is None else sorted(digest for digest in digests if digest in grids)
    if cached:
        log.info(f"{len(cached):,} of {len(digests):,} pictures are captioned from grids that the workspace has")
    for start in range(0, len(cached), _GRIDS):
        assert grids is not None
        part = cached[start : start + _GRIDS]
        keys = [key_of_digest(digest) for digest in part]
        try:
            results = captioner.from_cached(grids.read(part), keys, **(decoding or {}))
        except ValueError as error:
            raise AttendError(str(error)) from None
        yield [(_row(digest, result), result) for digest, result in zip(part, results, strict=True)]


class _PartFiles:
    """The folder OUT.parts with the captions of one model version and decoding that are not yet merged into OUT."""

    def __init__(self, out: Path, model_label: str) -> None:
        self._out, self._model_label = out, model_label
        self._folder = out.with_name(f"{out.name}.parts")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Prevent other processes from writing the file for the length of the block."""
        self._folder.mkdir(exist_ok=True)
        lock = self._folder / ".lock"
        try:
            with hold(lock, f"captions of {self._out}", "another run is writing them"):
                # Temporary files were left by a run that was killed while writing.
                for temporary in self._out.parent.glob(f".{glob.escape(self._out.name)}.*.tmp"):
                    temporary.unlink(missing_ok=True)
                self._folder.mkdir(exist_ok=True)  # another run may have removed it before releasing the lock
                yield
        finally:
            lock.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty: the next run continues from the parts
                self._folder.rmdir()

    def known_rows(self, earlier: list[Row]) -> dict[str | None, Row]:
        """Return the rows of this model, by the picture's digest, from parts and from `earlier`, the rows of OUT."""
        parts = sorted(self._folder.glob("part-*.parquet"))
        rows = [*earlier, *(row for path in parts for row in read_rows(path))]
        return {
            row["digest"]: _drop_columns(row, "file_name", "folder", "model")
            for row in rows
            if row.get("model") == self._model_label
        }

    def write(self, rows: list[Row]) -> None:
        """Write the rows to a new part; write nothing if there are none."""
        if not rows:
            return
        self._folder.mkdir(exist_ok=True)
        numbers = [int(path.stem.removeprefix("part-")) for path in self._folder.glob("part-*.parquet")]
        path = self._folder / f"part-{max(numbers, default=-1) + 1:05d}.parquet"
        write_rows(path, [{"file_name": None, "folder": None, **row, "model": self._model_label} for row in rows])

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def caption_batch(
    captioner: Any, batch: list[EncodedPicture], decoding: AskedDecoding, attention: bool
) -> Iterator[tuple[Row, Any]]:
    """Yield the row and the captioner's result of each picture of a batch."""
    try:
        results = captioner.caption([picture.data for picture in batch], attention=attention, **(decoding or {}))
    except ValueError as error:
        raise AttendError(str(error)) from None
    for picture, result in zip(batch, results, strict=True):
        if captioner.confidence is not None and result.error is None and result.confidence is None:
            _note_no_confidence(result.no_confidence)
        yield _row(picture.digest, result), result


@cache
def _note_no_confidence(why: str) -> None:
    """Log once why captions have no confidence, for a model that has one."""
    log.info(f"these captions have no confidence: {why}")


def _row(digest: str, result: Any) -> Row:
    """Return the row of a picture. result: the captioner's."""
    succeeded = result.error is None
    return {
        "text": result.caption if succeeded else None,
        "log_probability": result.log_probability if succeeded else None,
        "confidence": result.confidence,
        "error": result.error,
        "digest": digest,
    }


def _drop_columns(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def _draw_attention(picture: EncodedPicture, result: Any, captioner: Any, out: Path) -> None:
    from models.encoded_pictures import decode
    from tasks.evaluation.attention_maps import draw

    draw(decode(picture.data), result.tokens, result.attention, captioner.config["backbone"]["fit"]).savefig(out)


def _print(rows: list[Row], as_json: bool) -> None:
    if as_json:
        items = [
            {
                "picture": row["picture"],
                "caption": row["text"],
                **_drop_columns(row, "picture", "text", "alternatives"),
                "alternatives": [
                    {"caption": text, "log_probability": value} for text, value in row.get("alternatives", [])
                ],
            }
            for row in rows
        ]
        print(json.dumps(items, indent=1, ensure_ascii=False))
        return
    for row in rows:
        if row["error"] is None:
            sure = "" if row["confidence"] is None else f"  ({100 * row['confidence']:.0f} %)"
            print(f"{row['picture']}: {row['text']}{sure}")
            for text, _ in row["alternatives"]:
                print(f"{' ' * len(row['picture'])}  {text}")
        else:
            print(f"{row['picture']}: {row['error']}", file=sys.stderr)
