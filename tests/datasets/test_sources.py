"""Several data sets as one: their pictures together, each picture once, in the split of the first source that has it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from flows.preflight import verdict_of
from tasks.common.errors import AttendError
from tasks.config.schema import Config, load, refusals
from tasks.data.manifest import MANIFEST, files_by_digest, read_pictures
from tasks.data.splits import divide, hashed_split, joined
from tasks.datasets import ADAPTERS
from tasks.datasets.base import Row
from tasks.datasets.faults import REFUSE
from tasks.inspection.record import read_inspection
from tasks.pipeline.ledger import differences
from tests.support import artifacts, plan, register_all, run_stage, small

SCENES = {"adapter": "scenes"}
OWN, WEB = 20, range(15, 26)  # pictures of `own`, of which the last five are dev; of `web`, five of which it has too


def picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 40), (9 * shade, 90, 90)).save(path)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with two data sets in different formats."""
    rows = []
    for shade in range(OWN):
        picture(tmp_path / "own" / f"{shade}.png", shade)
        split = "train" if shade < OWN - 3 else "validation"
        rows.append({"file_name": f"{shade}.png", "text": [f"a dog {shade}", "a dog"], "split": split})
    (tmp_path / "own" / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for shade in WEB:
        picture(tmp_path / "web" / "Images" / f"{shade}.png", shade)
    lines = "".join(f"{shade}.png,a cat {shade}\n" for shade in WEB)
    (tmp_path / "web" / "captions.csv").write_text(f"image,caption\n{lines}")
    return tmp_path


def config_of(folder: Path, data: dict[str, Any] | None = None, **web: Any) -> Config:
    own = {"adapter": "imagefolder", "path": folder / "own"}
    sources = {"own": own, "web": {"adapter": "table", "path": folder / "web" / "captions.csv", **web}}
    return small(
        folder / "workspace",
        data={"adapter": "sources", "sources": sources, **(data or {})},
        evaluation__split="dev",
        evaluation__metrics=["bleu"],
    )


def captions(folder: Path, split: str) -> dict[str, list[str]]:
    """The captions of each picture of a split, by its shade."""
    return {
        picture.name.rpartition("/")[2].removesuffix(".png"): picture.captions
        for picture in read_pictures(folder, split)
    }


def test_a_picture_of_two_sources_counts_once_with_the_captions_of_both(two: Path) -> None:
    config = config_of(two, split="train")
    run_stage(config, "ingest")
    artifact = artifacts(config, "ingest")["ingest"]
    train, dev = (captions(artifact.path, split) for split in ("train", "dev"))
    assert sorted(train, key=int) == [str(shade) for shade in (*range(17), *range(20, 26))]
    assert sorted(train["15"]) == ["a cat 15", "a dog", "a dog 15"] and train["25"] == ["a cat 25"]
    # Of what is dev in the first source, the captions for training are left out.
    assert dev == {str(shade): [f"a dog {shade}", "a dog"] for shade in (17, 18, 19)}
    assert "3 pictures of web left out there: in another split of own, such as web/17.png" in artifact.ledger.notes
    files = files_by_digest(artifact.path, config.data)
    assert len(files) == 26 and all(path.is_file() and path.is_relative_to(two) for path in files.values())


def test_a_source_may_be_named_as_a_year(two: Path) -> None:
    config = load(str(written(two, "")), ["data.sources.2014={adapter: scenes}"])
    assert list(config.data.parts()) == ["own/", "web/", "2014/"]
    assert list(load(str(written(two, "")), ["data.sources.web=null"]).data.parts()) == ["own/"]
    assert refusals(str(written(two, "")), ["data.sources={}", "data.sources.own={3: 4}"])[0]


def test_the_first_source_decides(two: Path) -> None:
    config = config_of(two, split="train")
    sources = dict(reversed(config.data.model_dump(exclude_unset=True)["sources"].items()))
    turned = small(config.workspace, data={"adapter": "sources", "sources": sources}, evaluation__split="dev")
    run_stage(turned, "ingest")
    with pytest.raises(AttendError, match="the split 'dev' is empty"):
        run_stage(
            small(config.workspace, data={**turned.data.model_dump(exclude_unset=True), "dev_share": 0}), "ingest"
        )
    artifact = artifacts(turned, "ingest")["ingest"]
    both = captions(artifact.path, "train") | captions(
        artifact.path, "dev"
    )  # some of train became dev, as there is none
    assert both["17"] == ["a cat 17"] and sorted(both["16"]) == ["a cat 16", "a dog", "a dog 16"]
    assert "3 pictures of own left out there: in another split of web, such as own/17.png" in artifact.ledger.notes


def test_changes_are_described_with_the_source_name(two: Path) -> None:
    def told(*configs: Config) -> list[str]:
        before, after = ({"config": {"data": config.data.key_part()}} for config in configs)
        return differences(before, after)

    both, own = config_of(two), load(str(written(two, "")), ["data.sources.web=null"])
    assert told(both, config_of(two, split="train")) == ["data.sources.web.split: nothing -> train"]
    assert told(own, both)[0] == "data.sources: own -> own, web"
    sources = dict(reversed(both.data.model_dump(exclude_unset=True)["sources"].items()))
    turned = small(both.workspace, data={"adapter": "sources", "sources": sources})
    assert told(both, turned) == ["data.sources: own, web -> web, own"]


def test_a_source_without_splits_is_divided_by_content_as_if_it_were_alone(two: Path) -> None:
    shares = {"dev_share": 0.4, "test_share": 0.2}
    alone = small(two / "alone", data={"adapter": "table", "path": two / "web" / "captions.csv", **shares})
    run_stage(alone, "ingest")
    run_stage(config_of(two, shares), "ingest")
    kept = artifacts(alone, "ingest")["ingest"].path
    both = artifacts(config_of(two, shares), "ingest")["ingest"].path
    rows = {row["digest"]: row["split"] for row in pq.read_table(both / MANIFEST).to_pylist()}
    shared = {str(shade) for shade in WEB if shade < OWN}
    for row in pq.read_table(kept / MANIFEST).to_pylist():
        if row["name"].removesuffix(".png") not in shared:
            assert rows[row["digest"]] == row["split"]


def test_near_duplicates_that_are_divided_together_leak_from_no_source() -> None:
    """One of the first source's pictures that is moved to train by its twin stays there, whatever a later one says."""
    settings = {"adapter": "sources", "near_duplicates": "together", "sources": {"own": SCENES, "web": SCENES}}
    data = ADAPTERS["sources"].model_validate(settings)
    held = next(digest for at in range(99) if hashed_split(digest := f"{at:064x}", data) == "test")
    trained = next(digest for at in range(99) if hashed_split(digest := f"{at:064x}", data) == "train")
    digests = {"own/a": held, "own/twin": trained, "web/a": held}
    for split, stays in (("test", False), ("train", True), (None, True)):
        rows = [Row(name, ("a dog",), split if name == "web/a" else None, name) for name in digests]
        kept, notes = joined(rows, digests, data, REFUSE, [[held, trained]])
        splits = divide([(row.split, digests[row.name]) for row in kept], data, [[held, trained]]).splits
        assert set(splits) == {"train"}
        assert (len(kept) == 3) == stays and (notes == []) == stays


def test_weight_repeats_the_captions_of_training_alone(two: Path) -> None:
    config = config_of(two, weight=3)
    run_stage(config, "ingest")
    artifact = artifacts(config, "ingest")["ingest"].path
    for split, times in (("train", 3), ("dev", 1), ("test", 1)):
        for texts in captions(artifact, split).values():
            assert sum(text.startswith("a cat") for text in texts) in (0, times)
    assert any(
        texts.count("a cat 25") for split in ("train", "dev", "test") for texts in captions(artifact, split).values()
    )


def test_captions_that_a_weight_repeats_are_inspected_once(two: Path) -> None:
    looked_at = []
    for weight in (1, 3):
        config = config_of(two, weight=weight)
        register_all(config)
        record = read_inspection(artifacts(config)["register"].path)
        assert record is not None
        looked_at.append(record["captions"])
    assert looked_at[0] == looked_at[1] > 0


def test_pictures_that_are_unpacked_join_those_of_a_folder(two: Path) -> None:
    shapes = {"adapter": "scenes", "pictures": 20, "side": 32}
    sources = {**config_of(two).data.model_dump(exclude_unset=True)["sources"], "shapes": shapes}
    config = small(two / "workspace", data={"adapter": "sources", "sources": sources}, evaluation__metrics=["bleu"])
    for name in ("ingest", "extract"):
        run_stage(config, name)
    results = artifacts(config, "extract")
    assert results["ingest"].ledger.counts["pictures"] == 26 + 20 == results["extract"].ledger.counts["extracted"]


def test_changes_are_described_source_by_source(two: Path) -> None:
    config = config_of(two, weight=2, split="train")
    run_stage(config, "ingest")
    with (two / "web" / "captions.csv").open("a") as file:
        file.write("20.png,another\n")
    assert "1 picture with other captions" in str(plan(config)[0].why)
    shutil.rmtree(two / "web")
    with pytest.raises(AttendError, match=r"data.sources.web.path: .*captions.csv: no such file"):
        plan(config)


def test_check_reads_every_source(two: Path) -> None:
    found = verdict_of(str(written(two, "")), [])
    assert found.pictures == 26 and found.count("error") == 0
    message = "\n".join(str(item) for item in found.findings)
    assert "3 pictures of web left out there" in message and "the same file several times" not in message
    (two / "web" / "Images" / "20.png").unlink()
    assert "20.png is captioned, but there is no such picture in" in str(verdict_of(str(written(two, "")), []).findings)


def written(folder: Path, more: str) -> Path:
    """A config as a person writes it, with paths relative to its file."""
    path = folder / "both.yaml"
    path.write_text(
        "preset: flickr8k\nname: both\ndata:\n  adapter: sources\n  sources:\n"
        "    own: {adapter: imagefolder, path: own}\n"
        f"    web: {{adapter: table, path: web/captions.csv, split: train{more}}}\n"
        f"grids: {{backbone: tiny, weights: 'random:0', image_size: 64}}\nmachine: {{workspace: {folder / 'w'}}}\n"
        "evaluation: {split: dev}\n"
    )
    return path


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (", patth: x", r"data.sources.web.patth: no such setting; did you mean 'path'"),
        (", weight: 0", r"data.sources.web.weight: Input should be greater"),
        (", dev_share: 0.2", r"web.dev_share: is for all sources together: set data.dev_share"),
    ],
)
def test_a_setting_of_a_source_is_refused_by_its_name(two: Path, more: str, why: str) -> None:
    with pytest.raises(AttendError, match=why):
        load(str(written(two, more)))


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("data.sources.web.adapter=tabel", r"data.sources.web.adapter: unknown dataset adapter 'tabel'.*'table'"),
        ("data.sources.web.adapter=sources", r"data.sources.web.adapter: unknown dataset adapter 'sources'"),
        ('data.sources={"a b": {adapter: scenes}}', r"'a b' is no name of a source"),
        ("data.sources.grids={adapter: arrays, path: x.npy, captions: y.npy}", r"grids: has grids and no photographs"),
        ("data.images=nowhere", r"images: each source has its own: set data.sources.NAME.images"),
        ("data.weight=2", r"data.weight: is for the data sets of data.sources"),
    ],
)
def test_sources_that_make_no_sense_are_refused(two: Path, override: str, why: str) -> None:
    with pytest.raises(AttendError, match=why):
        load(str(written(two, "")), [override])


def test_a_wrong_column_is_named_as_the_setting_of_its_source(two: Path) -> None:
    """Where rows are gathered, and where the first is refused."""
    config = config_of(two, caption_column="words")
    with pytest.raises(AttendError, match=r"no column 'words'; .*: set data\.sources\.web\.caption_column=NAME$"):
        run_stage(config, "ingest")
    data = {"adapter": "sources", "sources": config.model_dump(mode="json")["data"]["sources"]}
    (two / "two.yaml").write_text(json.dumps({"preset": "flickr8k", "data": data, "grids": {"weights": "random:0"}}))
    found = [item.message for item in verdict_of(str(two / "two.yaml"), []).findings if item.kind == "error"]
    assert found and all("data.sources.web.caption_column" in message for message in found)
