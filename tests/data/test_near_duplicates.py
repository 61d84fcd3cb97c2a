"""Near-duplicates are found, others are not, and all of a group are in one split, whichever pictures arrive."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tasks.config.schema import load, refusals
from tasks.data import fingerprints, near_duplicates
from tasks.data.fingerprints import Fingerprints, fingerprint
from tasks.data.manifest import read_pictures
from tasks.data.splits import divide, hashed_split
from tasks.data.survey import survey
from tasks.datasets.image_folder import ImageFolder
from tests.cli import Capture, attend
from tests.support import artifacts, run_stage, small

SIDE = 160
Twin = Callable[[Image.Image], Image.Image]


@functools.cache
def textured(seed: int) -> Image.Image:
    """A picture of coloured noise at every scale, whose energy falls with the frequency, as a photograph's does."""
    drawn = np.random.default_rng(seed)
    total = np.zeros((SIDE, SIDE, 3))
    for cells in (2, 4, 8, 16, 32):
        noise = Image.fromarray(drawn.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        total += np.asarray(noise.resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.float64) / np.sqrt(cells)
    low, high = total.min(), total.max()
    return Image.fromarray(((total - low) / (high - low) * 255).astype(np.uint8))


def encoded(picture: Image.Image, quality: int = 90) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality)
    return out.getvalue()


def cropped(left: float, top: float) -> Twin:
    tenth = SIDE // 10
    return lambda picture: picture.crop(
        (round(left * tenth), round(top * tenth), round(left * tenth) + 9 * tenth, round(top * tenth) + 9 * tenth)
    )


TWINS: dict[str, Twin] = {
    "mirrored": ImageOps.mirror,
    "cropped in the middle": cropped(0.5, 0.5),
    "cropped at the left": cropped(1, 0.5),
    "cropped at the top right": cropped(0, 1),
    "cropped elsewhere": cropped(0.3, 0.8),
    "halved": lambda picture: picture.resize((SIDE // 2, SIDE // 2)),
    "doubled": lambda picture: picture.resize((SIDE * 2, SIDE * 2)),
    "in white": lambda picture: ImageOps.expand(picture, SIDE // 20, "white"),
    "in orange": lambda picture: ImageOps.expand(picture, SIDE // 10, (250, 140, 20)),
    "mirrored and cropped": lambda picture: cropped(0, 1)(ImageOps.mirror(picture)),
}


def groups_of(contents: dict[str, bytes]) -> list[list[str]]:
    return near_duplicates.groups({name: fingerprint(data) for name, data in contents.items()})


def files(folder: Path, contents: dict[str, bytes]) -> dict[str, Path]:
    """Write files, and return them by digest."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {hashlib.sha256(data).hexdigest(): folder / name for name, data in contents.items()}


@pytest.mark.parametrize("kind", [*TWINS, "encoded again"])
def test_a_twin_of_each_kind_is_found_and_others_are_not(kind: str) -> None:
    contents = {f"{seed}": encoded(textured(seed)) for seed in range(12)}
    for seed in range(6):
        changed = TWINS[kind](textured(seed)) if kind in TWINS else textured(seed)
        contents[f"{seed} twin"] = encoded(changed, 30 if kind == "encoded again" else 90)
    assert groups_of(contents) == [[f"{seed}", f"{seed} twin"] for seed in range(6)]


def test_different_pictures_are_not_flagged() -> None:
    contents = {f"{seed}": encoded(textured(seed)) for seed in range(80)}
    contents |= {f"plain {grey}": encoded(Image.new("RGB", (64, 64), (grey, grey, grey))) for grey in (0, 90, 255)}
    # What two photographs of a field have in common is their horizon.
    for seed in range(12):
        pixels = np.asarray(textured(seed)).copy() // 6
        pixels[: SIDE // 2] += 200
        contents[f"horizon {seed}"] = encoded(Image.fromarray(pixels))
        # Different pictures in the same border.
        contents[f"border {seed}"] = encoded(ImageOps.expand(textured(1000 + seed), SIDE // 8, "black"))
    assert groups_of(contents) == []


def test_colours_tell_pictures_apart() -> None:
    picture = textured(1)
    red, green, blue = picture.split()
    assert groups_of({"a": encoded(picture), "b": encoded(Image.merge("RGB", (blue, green, red)))}) == []


def test_similarity_does_not_depend_on_other_pictures() -> None:
    contents = {f"{seed}": encoded(textured(seed)) for seed in range(40)}
    contents["0 twin"] = encoded(cropped(0, 1)(textured(0)))
    assert groups_of({name: contents[name] for name in ("0", "0 twin")}) == groups_of(contents) == [["0", "0 twin"]]
    assert groups_of({}) == groups_of({"0": contents["0"]}) == []


def test_a_picture_is_compared_as_exif_turns_it() -> None:
    picture = textured(3)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    out = io.BytesIO()
    picture.transpose(Image.Transpose.ROTATE_90).save(out, "JPEG", quality=90, exif=exif)
    assert groups_of({"a": encoded(picture), "b": out.getvalue()}) == [["a", "b"]]


def test_the_second_time_nothing_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = files(tmp_path / "pictures", {f"{seed}.jpg": encoded(textured(seed)) for seed in range(5)})
    kept = Fingerprints(tmp_path / "kept.sqlite")
    first = kept.of(pictures)
    computed: list[bytes] = []

    def counted(data: bytes) -> fingerprints.Frames:
        computed.append(data)
        return fingerprint(data)

    monkeypatch.setattr(fingerprints, "fingerprint", counted)
    again = kept.of(pictures)
    assert not computed and all(np.array_equal(again[digest], first[digest]) for digest in pictures)
    more = files(tmp_path / "pictures", {"new.jpg": encoded(textured(9))})
    assert len(kept.of({**pictures, **more})) == 6 and len(computed) == 1
    monkeypatch.setattr(fingerprints, "VERSION", 99)
    kept.of(pictures)
    assert len(computed) == 6


@pytest.mark.parametrize("damage", ["garbage", "middle", "row"])
def test_damaged_fingerprints_are_made_anew(tmp_path: Path, damage: str) -> None:
    pictures = files(tmp_path / "pictures", {f"{seed}.jpg": encoded(textured(seed)) for seed in range(40)})
    database = tmp_path / "kept.sqlite"
    first = Fingerprints(database).of(pictures)
    if damage == "garbage":
        database.write_bytes(b"no database" * 1000)
    elif damage == "middle":
        content = bytearray(database.read_bytes())
        content[4096:] = bytes(len(content) - 4096)
        database.write_bytes(bytes(content))
    else:
        with sqlite3.connect(database) as connection:
            connection.execute("update fingerprint set frames = zeroblob(1152)")
        connection.close()
    for _ in range(2):
        found = Fingerprints(database).of(pictures)
        assert found.keys() == first.keys()
        assert all(np.array_equal(found[digest], first[digest]) for digest in first)


def test_pictures_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    contents = {"a.jpg": encoded(textured(1)), "b.jpg": encoded(ImageOps.mirror(textured(1)))}
    contents |= {"cut.jpg": contents["a.jpg"][:300], "none.jpg": b"none", "empty.jpg": b""}
    pictures = files(tmp_path / "pictures", contents)
    gone = {"f" * 64: tmp_path / "gone.jpg"}
    (group,) = near_duplicates.near_duplicates({**pictures, **gone}, tmp_path / "kept.sqlite")
    assert {pictures[digest].name for digest in group} == {"a.jpg", "b.jpg"}
    assert gone.keys().isdisjoint(Fingerprints(tmp_path / "kept.sqlite").of({**pictures, **gone}))


def test_groups_are_in_one_split_and_no_picture_leaves_train() -> None:
    data = ImageFolder(path=Path(), near_duplicates="together", dev_share=0.3, test_share=0.3)
    drawn = np.random.default_rng(5)
    digests = [hashlib.sha256(bytes([number])).hexdigest() for number in range(120)]
    labels = drawn.integers(0, 40, len(digests))
    order = ("train", "dev", "test")
    before: dict[str, str] = {}
    for count in range(10, len(digests) + 1, 10):  # pictures arrive, and join groups
        here = digests[:count]
        groups = [[own for own, label in zip(here, labels, strict=False) if label == group] for group in range(40)]
        alike = [group for group in groups if len(group) > 1]
        split_of = dict(zip(here, divide([(None, own) for own in here], data, alike).splits, strict=True))
        for group in alike:
            (split,) = {split_of[own] for own in group}
            assert split == min((hashed_split(own, data) for own in group), key=order.index)
        assert all(order.index(split_of[own]) <= order.index(split) for own, split in before.items())
        before = split_of
    assert len({*before.values()}) == 3


def test_splits_that_the_data_set_gives_stay() -> None:
    data = ImageFolder(path=Path(), near_duplicates="together", dev_share=0.5)
    digests = [hashlib.sha256(bytes([number])).hexdigest() for number in range(60)]
    given: list[tuple[str | None, str]] = [("test" if n % 3 == 0 else "train", own) for n, own in enumerate(digests)]
    alike = [digests[n : n + 3] for n in range(0, 60, 3)]
    splits = divide(given, data, alike).splits
    assert all((split == "test") == (own == "test") for split, (own, _) in zip(splits, given, strict=True))
    assert all(len({*splits[n + 1 : n + 3]}) == 1 for n in range(0, 60, 3)) and splits.count("dev") > 0


PICTURES, TWINNED = 60, 20


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without splits: of the first 20 pictures every other is the mirror image of the one before; and a copy."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photographs"
    contents = {}
    for number in range(PICTURES):
        is_twin = number < TWINNED and number % 2 == 1
        picture = ImageOps.mirror(textured(number - 1)) if is_twin else textured(number)
        contents[f"{number:02}.jpg"] = encoded(picture)
    contents["copy.jpg"] = contents["00.jpg"]
    files(folder, contents)
    rows = [json.dumps({"file_name": name, "text": [f"a red ball {name}", f"a ball {name}"]}) for name in contents]
    (folder / "metadata.jsonl").write_text("\n".join(rows))
    return folder


def settings(folder: Path, **data: object) -> list[str]:
    section = {"adapter": "imagefolder", "path": str(folder), "dev_share": 0.2, "test_share": 0.2, **data}
    values = {
        "preset": "demo",
        "data": section,
        "captions": {"min_count": 1},
        "evaluation": {"metrics": ["bleu"]},
        "registry": {"promote_on": "bleu4", "min_pictures": 1},
        "machine": {"workspace": str(folder.parent / "workspace")},
    }
    (folder.parent / "mine.yaml").write_text(json.dumps(values))
    return ["check", "mine.yaml"]


def test_check_warns_of_near_duplicates(photographs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    command = settings(photographs)
    code, out, err = attend(monkeypatch, capsys, *command)
    assert code == 0 and not err
    (across,) = [line for line in out.splitlines() if "across splits" in line]
    (within,) = [line for line in out.splitlines() if "within a split" in line]
    numbers = [int(line.split("pictures: ")[1].split(" ")[0]) for line in (across, within)]
    assert sum(numbers) == TWINNED and min(numbers) > 0
    assert ".jpg (train)" in across and across.endswith("set data.near_duplicates=together")
    assert sum("copy.jpg" in line for line in out.splitlines()) == 1  # the same file several times
    verdict = json.loads(attend(monkeypatch, capsys, *command, "--json")[1])
    assert verdict["compared"] == verdict["pictures"] == PICTURES  # the copy counts once
    settings(photographs, near_duplicates="together")
    out = attend(monkeypatch, capsys, *command)[1]
    assert "across splits" not in out and f"{TWINNED} near-duplicates in {TWINNED // 2} groups within a split" in out


def test_check_says_where_it_did_not_compare(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    command = settings(photographs)
    message = "Near-duplicates were not looked for (--near-duplicates does, whatever the time)."
    assert message in attend(monkeypatch, capsys, *command, "--no-near-duplicates")[1].splitlines()
    for limit in ("_MOST_COMPARED", "_MOST_BYTES"):
        with monkeypatch.context() as patched:
            patched.setattr(f"tasks.data.survey.{limit}", 10)
            out = attend(patched, capsys, *command)[1]
            assert message in out.splitlines() and "across splits" not in out
            assert "across splits" in attend(patched, capsys, *command, "--near-duplicates")[1]


def test_check_and_ingest_divide_alike(photographs: Path, tmp_path: Path) -> None:
    settings(photographs, near_duplicates="together")
    config = load("mine.yaml", [])
    found = survey(config.data, tmp_path / "unpacked", tmp_path / "digests.sqlite")
    run_stage(config, "ingest")
    manifest = artifacts(config, "ingest")["ingest"]
    assert "near-duplicates together" in manifest.ledger.notes[-1]
    split_of = {
        picture.digest: split for split in ("train", "dev", "test") for picture in read_pictures(manifest.path, split)
    }
    assert found.splits is not None
    assert {found.digests[row.name]: split for row, split in zip(found.rows, found.splits, strict=True)} == split_of
    for number in range(0, TWINNED, 2):
        assert len({split_of[found.digests[f"{own:02}.jpg"]] for own in (number, number + 1)}) == 1


def test_init_keeps_them_together_where_attend_divides(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    code, out, _ = attend(monkeypatch, capsys, "init", str(photographs))
    assert code == 0 and "divided by content, near-duplicates together" in out
    assert load("photographs.yaml", []).data.near_duplicates == "together"
    rows = [json.loads(line) for line in (photographs / "metadata.jsonl").read_text().splitlines()]
    splits = ("train", "train", "validation", "test")
    given = [json.dumps({**row, "split": splits[n % 4]}) for n, row in enumerate(rows)]
    (photographs / "metadata.jsonl").write_text("\n".join(given))
    attend(monkeypatch, capsys, "init", str(photographs), "--force")
    assert load("photographs.yaml", []).data.near_duplicates is None


def test_a_config_without_the_setting_has_the_key_of_before(tmp_path: Path) -> None:
    assert "near_duplicates" not in small(tmp_path).data.key_part()
    assert small(tmp_path, data__near_duplicates="together").data.key_part()["near_duplicates"] == "together"


def test_grids_have_no_near_duplicates() -> None:
    found, _ = refusals(
        "rnn", ["data.adapter=arrays", "data.path=.", "data.captions=c.npy", "data.near_duplicates=together"]
    )
    assert any("near_duplicates: the data set has grids and no photographs" in line for line in found), found
