"""Adapter for Hugging Face data sets written by `save_to_disk`. It needs the optional extra `huggingface`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tasks.common.errors import AttendError
from tasks.common.files import check_name
from tasks.datasets.base import Row, UnpackedOptions, needs_text, parse_split, require_folder
from tasks.datasets.faults import REFUSE, Faults

_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"RI": ".webp", b"GI": ".gif", b"BM": ".bmp"}


class HuggingFace(UnpackedOptions):
    """A folder written by Hugging Face's `save_to_disk`: one data set, or a dictionary of splits."""

    adapter: Literal["huggingface"] = "huggingface"
    image_column: str = Field("image", description="column of the pictures")
    caption_column: str = Field("caption", description="column of the captions: a text, or a list of texts")

    def annotation_files(self) -> list[Path]:
        folder = require_folder(self.path, "data.path")
        files = sorted(path for path in folder.rglob("*") if path.suffix in (".arrow", ".json") and path.is_file())
        if not any(path.suffix == ".arrow" for path in files):
            raise AttendError(f"data.path: {folder}: no .arrow file in it: give a folder that save_to_disk wrote")
        return files

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        generated.mkdir(parents=True, exist_ok=True)
        for split, rows in self._splits():
            for column in (self.image_column, self.caption_column):
                if column not in rows.column_names:
                    raise AttendError(
                        f"{self.path}: no column {column!r}; there are: {', '.join(rows.column_names)}: "
                        "set data.image_column and data.caption_column"
                    )
            for number, record in enumerate(self._without_decoding(rows)):
                with faults.of_row():
                    yield self._row(split, number, record, generated)

    def _row(self, split: str | None, number: int, record: dict[str, Any], generated: Path) -> Row:
        where = f"{self.path}: {split + ' ' if split else ''}row {number}"
        image = record[self.image_column]
        data = image.get("bytes") if isinstance(image, dict) else image
        if data is None and isinstance(image, dict) and image.get("path"):
            data = _read(self.path.expanduser(), str(image["path"]), where)
        if not isinstance(data, bytes) or not data:
            raise AttendError(f"{where}: {self.image_column}: has no encoded picture")
        texts = record[self.caption_column]
        texts = texts if isinstance(texts, list) else [texts]
        captions = [needs_text(text, where, self.caption_column) for text in texts]
        name = f"{split or 'row'}-{number:08d}{_SUFFIXES.get(data[:2], '.tif')}"
        row = Row(name, tuple(captions), parse_split(split, where) if split else None, where)
        (generated / name).write_bytes(data)
        return row

    def _splits(self) -> list[tuple[str | None, Any]]:
        try:
            import datasets
        except ImportError:
            raise AttendError("data.adapter: huggingface needs a package: run uv pip install datasets") from None
        try:
            loaded = datasets.load_from_disk(str(require_folder(self.path, "data.path")))
            for rows in loaded.values() if isinstance(loaded, datasets.DatasetDict) else [loaded]:
                rows.data.table.validate(full=True)  # Arrow reads a damaged file as it is, even beyond its end
        except Exception as error:  # datasets, pyarrow and json raise various errors for a damaged folder
            cause = " ".join(str(error).split())[:160]
            raise AttendError(f"data.path: {self.path}: cannot be read as a data set: {cause}") from None
        return list(loaded.items()) if isinstance(loaded, datasets.DatasetDict) else [(None, loaded)]

    def _without_decoding(self, rows: Any) -> Any:
        """Return the rows with each picture as its stored bytes: only the `extract` stage decodes pictures."""
        import datasets

        if isinstance(rows.features[self.image_column], datasets.Image):
            return rows.cast_column(self.image_column, datasets.Image(decode=False))
        return rows


def _read(folder: Path, name: str, where: str) -> bytes:
    """Return the bytes of a picture that a row names; raise AttendError where it is not a file in the data set."""
    try:
        path = (folder / check_name(name)).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise AttendError(f"{where}: {name}: lies outside the data set: copy it there, or embed it in the rows")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise AttendError(f"{where}: {name}: {getattr(error, 'strerror', None) or error}") from None
