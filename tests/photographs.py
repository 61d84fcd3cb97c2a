"""Data sets that several test files write: photographs, their captions and their splits."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tasks.config.schema import Config
from tasks.data.manifest import GENERATED_FOLDER
from tests.support import small


def picture(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng([number, *path.name.encode()]).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def tar_of(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def flickr8k(folder: Path, splits: bool = True) -> Path:
    names = [f"{n}_a1b2.jpg" for n in range(6)]
    for shade, name in enumerate(names):
        picture(folder / "images" / name, shade)
    lines = [f"{name}#{k}\tA dog {k} , on grass .\n" for name in names for k in range(5)]
    (folder / "Flickr8k.token.txt").write_text("".join(lines))
    if splits:
        for split, part in (("train", names[:4]), ("dev", names[4:5]), ("test", names[5:])):
            (folder / f"Flickr_8k.{split}Images.txt").write_text("\n".join(part) + "\n")
    return folder


def tabled(folder: Path, count: int, workspace: Path) -> Config:
    for shade in range(count):
        picture(folder / f"{shade}.png", shade * 7)
    lines = ["image,caption", *(f"{shade}.png,shade {shade}" for shade in range(count))]
    (folder / "captions.csv").write_text("\n".join(lines))
    return small(workspace, data={"adapter": "table", "path": folder / "captions.csv", "dev_share": 0.3})


COLOURS = {"红": "red", "蓝": "blue", "绿": "green", "黄": "yellow"}


def chinese_pictures(folder: Path) -> Path:
    """Write 160 pictures of a coloured square or circle, left or right, with a caption in Chinese each."""
    folder.mkdir()
    lines = []
    for number, (repeat, colour, shape, side) in enumerate(product(range(10), COLOURS, ("方块", "圆"), ("左", "右"))):
        picture = Image.new("RGB", (64, 64), (110, 115, 110 - repeat))
        at = (4 + repeat, 16, 30 + repeat, 42) if side == "左" else (30 - repeat, 16, 56 - repeat, 42)
        draw = ImageDraw.Draw(picture)
        (draw.rectangle if shape == "方块" else draw.ellipse)(at, fill=COLOURS[colour])
        picture.save(folder / f"{number}.png")
        lines.append({"file_name": f"{number}.png", "text": f"{side}边有一个{colour}色的{shape}。"})
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return folder


def picture_folder(tmp_path: Path, finished: Path, max_failed: float) -> Config:
    shutil.copytree(next((finished / "artifacts" / "ingest").iterdir()) / GENERATED_FOLDER, tmp_path / "pictures")
    lines = [
        json.dumps({"file_name": path.name, "text": "a shape"}) for path in sorted((tmp_path / "pictures").iterdir())
    ]
    (tmp_path / "pictures" / "metadata.jsonl").write_text("\n".join(lines))
    data = {"adapter": "imagefolder", "path": tmp_path / "pictures"}
    return small(tmp_path / "workspace", data=data, grids__max_failed=max_failed, evaluation__metrics=["bleu"])


RESULTS = [{"image_id": 7, "caption": "A dog runs."}, {"image_id": 9, "caption": ""}]


ANNOTATIONS: dict[str, Any] = {
    "images": [{"id": 7}, {"id": 9}, {"id": 11}],
    "annotations": [
        {"image_id": 7, "id": 1, "caption": "a dog runs ."},
        {"image_id": 7, "id": 2, "caption": "The dog is running"},
        {"image_id": 9, "id": 3, "caption": "a cat"},
        {"image_id": 11, "id": 4, "caption": "nobody asked"},
    ],
}
