"""Adapter for a folder of pictures with a metadata file, as in Hugging Face's ImageFolder.

FOLDER/metadata.jsonl            lines {"file_name": "a.jpg", "text": "a dog runs"}; or metadata.csv, .parquet
FOLDER/train/metadata.jsonl      the same in a folder for each split
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.common.errors import AttendError
from tasks.datasets.base import SPLIT_NAMES, require_folder
from tasks.datasets.faults import Faults
from tasks.datasets.records import Record
from tasks.datasets.table import RecordOptions, only, with_split

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")


class ImageFolder(RecordOptions):
    """A folder of pictures with a `metadata.jsonl`, .csv or .parquet, or with one in a subfolder for each split."""

    adapter: Literal["imagefolder"] = "imagefolder"
    image_column: str = Field(
        "file_name", description="column of the picture file, relative to the folder of the metadata"
    )
    caption_column: str | tuple[str, ...] = Field(
        "text", description="column of the captions: a text or a list of texts; or several columns: [text_1, text_2]"
    )

    def annotation_files(self) -> list[Path]:
        folder = require_folder(self.path, "data.path")
        files = metadata_files(folder)
        if not files:
            raise AttendError(
                f"data.path: {folder}: holds no {' or '.join(METADATA)}: add one (a line for each picture: "
                '{"file_name": "a.jpg", "text": "a dog runs"}), or run `attend init` to see what the folder holds'
            )
        return files

    def records(self, faults: Faults) -> Iterable[Record]:
        folder = require_folder(self.path, "data.path")
        for path in self.annotation_files():
            for where, record in self.records_of(path, faults):
                if path.parent != folder:  # the folder of a split
                    split, name = path.parent.name, only(record.get(self.image_column))
                    if isinstance(name, str | int) and str(name).strip():
                        name = (Path(split) / str(name).strip()).as_posix()
                        record = {**record, self.image_column: name}  # noqa: PLW2901
                    record = with_split(record, self.split_column, split)  # noqa: PLW2901
                yield where, record


def metadata_files(folder: Path) -> list[Path]:
    """Return the metadata files in a folder and in its subfolders that are named after splits."""
    splits = sorted(path for path in folder.iterdir() if path.name.lower() in SPLIT_NAMES and path.is_dir())
    files = (next((part / name for name in METADATA if (part / name).is_file()), None) for part in (folder, *splits))
    return [file for file in files if file is not None]
