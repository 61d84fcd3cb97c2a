"""Adapter for Hugging Face's data sets: Parquet files with pictures in them, or a folder that `save_to_disk` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from tasks.common.errors import AttendError, reason_of
from tasks.common.files import check_name
from tasks.datasets.base import Row, UnpackedOptions, file_splits, folder_split, parse_split
from tasks.datasets.documents import read_json
from tasks.datasets.faults import REFUSE, Faults
from tasks.datasets.records import Lists, captions_of, columns_of

_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"RI": ".webp", b"GI": ".gif", b"BM": ".bmp"}
_ROWS = 64  # read at once


class TableFile(NamedTuple):
    """A file of rows: its path, and the split in the name of the file or its folder, if any."""

    path: Path
    split: str | None


class HuggingFace(UnpackedOptions):
    """Parquet files that contain pictures, as on the Hugging Face Hub, or a folder written by `save_to_disk`."""

    adapter: Literal["huggingface"] = "huggingface"
    image_column: str = Field("image", description="column of the pictures")
    caption_column: str | tuple[str, ...] = Field(
        "caption", description="column of the captions: a text or a list of texts; or several columns"
    )
    split_column: str | None = Field(
        None, description="column of the split; default: the split named by a file or its folder"
    )
    lists: Lists = None

    def annotation_files(self) -> list[Path]:
        return [file.path for file in table_files(self.path)]

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        generated.mkdir(parents=True, exist_ok=True)
        numbers: dict[str, int] = {}  # split -> the number of its last row read
        for file in table_files(self.path):
            for number, record in enumerate(self._records(file.path)):
                where = f"{file.path}: row {number}"
                with faults.of_row():
                    split = file.split
                    if self.split_column is not None:
                        split = parse_split(str(record[self.split_column]), where)
                    kind = split or "row"
                    numbers[kind] = numbers.get(kind, -1) + 1
                    yield self._row(f"{kind}-{numbers[kind]:08d}", split, record, where, generated)

    def _records(self, path: Path) -> Iterator[dict[str, Any]]:
        columns = [self.image_column, *columns_of(self.caption_column)]
        columns += [self.split_column] if self.split_column else []
        for batch in batches(path):
            try:
                names = batch.schema.names
                missing = [column for column in columns if column not in names]
                records = [] if missing else batch.select(columns).to_pylist()
            except UnicodeError:  # Arrow checks texts, and not the names of columns and fields
                raise AttendError(f"{path}: is damaged: it has names that are not UTF-8") from None
            if missing:
                raise AttendError(
                    f"{path}: no column {missing[0]!r}; there are: {', '.join(names)}: set "
                    "data.image_column, data.caption_column and data.split_column"
                )
            yield from records

    def _row(self, name: str, split: str | None, record: dict[str, Any], where: str, generated: Path) -> Row:
        data = _encoded(record[self.image_column], self.path.expanduser(), f"{where}: {self.image_column}")
        captions = captions_of(record, self.caption_column, self.lists, where)
        name = f"{name}{_SUFFIXES.get(data[:2], '.tif')}"
        row = Row(name, tuple(captions), split, where)
        (generated / name).write_bytes(data)
        return row


def table_files(path: Path) -> list[TableFile]:
    """Return the files of rows at a path: the file itself, the Parquet files of a folder, or those of `save_to_disk`.

    Raises AttendError if there are none.
    """
    root = path.expanduser()
    if root.is_file():
        return [TableFile(root, folder_split([root.stem]))]
    if (root / "dataset_dict.json").is_file():
        splits = read_json(root / "dataset_dict.json").get("splits")
        names = splits if isinstance(splits, list) else []
        return [TableFile(file, folder_split([str(name)])) for name in names for file in _saved(root / str(name))]
    if (root / "state.json").is_file():
        return [TableFile(file, None) for file in _saved(root)]
    files = [file for file in sorted(root.rglob("*.parquet")) if not file.name.startswith(".")]
    if not files:
        raise AttendError(f"data.path: {root}: no Parquet file, and no folder that save_to_disk wrote")
    return list(map(TableFile, files, file_splits(root, files)))


def _saved(folder: Path) -> list[Path]:
    """Return the files of rows in a folder that `save_to_disk` wrote for one data set."""
    files = read_json(folder / "state.json").get("_data_files")
    try:
        paths = [folder / check_name(file["filename"]) for file in files]  # type: ignore[union-attr]
    except (TypeError, KeyError, ValueError, AttributeError):
        raise AttendError(f"{folder / 'state.json'}: _data_files: names no files of this folder") from None
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise AttendError(f"{missing}: no such file, which {folder / 'state.json'} names")
    return paths


def batches(path: Path) -> Iterator[Any]:
    """Yield the record batches of a Parquet file or an Arrow stream; AttendError if it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(_ROWS)
            return
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                batch.validate(full=True)  # without this, Arrow reads a damaged file even beyond its end
                yield from (batch.slice(start, _ROWS) for start in range(0, batch.num_rows, _ROWS))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise AttendError(f"{path}: cannot be read: {reason_of(error)}") from None


def holds_pictures(kind: Any) -> bool:
    """Return whether a column of this Arrow type may hold encoded pictures: bytes, or `{bytes, path}`."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and holds_pictures(field.type) for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _encoded(image: Any, folder: Path, where: str) -> bytes:
    """Return the encoded picture in a cell, or in the file that it names. folder: the data set's."""
    data = image.get("bytes") if isinstance(image, dict) else image
    if data is None and isinstance(image, dict) and image.get("path"):
        data = _read(folder, str(image["path"]), where)
    if not isinstance(data, bytes) or not data:
        raise AttendError(f"{where}: has no encoded picture")
    return data


def _read(folder: Path, name: str, where: str) -> bytes:
    """Return the bytes of a picture that a row names; raise AttendError unless it is a file in the data set."""
    try:
        path = (folder / check_name(name)).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise AttendError(f"{where}: {name}: lies outside the data set: copy it there, or embed it in the rows")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise AttendError(f"{where}: {name}: {getattr(error, 'strerror', None) or error}") from None
