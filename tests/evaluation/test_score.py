"""`attend score`: COCO's formats in and out, the same scores whichever way the captions come, each mistake one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.common.errors import AttendError
from tasks.data.manifest import read_pictures
from tasks.evaluation.caption_and_score import PREDICTIONS, captions_in
from tasks.evaluation.caption_statistics import caption_statistics
from tasks.evaluation.coco_files import corpus_of, export, image_ids, read_references, read_results
from tasks.metrics import ScoredCaption, measure
from tests.cli import Capture, attend, refused
from tests.photographs import ANNOTATIONS, RESULTS
from tests.support import artifacts, small


def written(folder: Path, results: Any = RESULTS, annotations: Any = ANNOTATIONS) -> tuple[str, str]:
    folder.mkdir(exist_ok=True)
    for name, document in (("results", results), ("annotations", annotations)):
        (folder / f"{name}.json").write_text(json.dumps(document))
    return str(folder / "results.json"), str(folder / "annotations.json")


def test_results_are_scored_against_annotations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    code, out, _ = attend(monkeypatch, capsys, "score", *written(tmp_path), "--json")
    record = json.loads(out)
    assert code == 0 and record["pictures"] == 2  # as in the toolkit, what has no result is not scored
    assert record["scores"]["rouge_l"] == pytest.approx(50.0) and 0 < record["scores"]["meteor"] < 100
    assert "pictures:2|references:1-2|tokeniser:ptb, or characters where a script has no spaces" in record["signature"]
    assert record["language"]["words"] == 1.5 and record["language"]["different"] == 1.0
    code, out, _ = attend(monkeypatch, capsys, "score", *written(tmp_path), "--metrics", "rouge,bleu")
    assert code == 0 and "| rouge_l | 50.00 |" in out and "cider" not in out
    low, high = record["intervals"]["rouge_l"]
    assert low <= 50 <= high and f"{low:.2f} to {high:.2f}" in out


@pytest.mark.parametrize(
    ("results", "annotations", "line"),
    [
        ({"a": 1}, ANNOTATIONS, 'results.json: must be a JSON list of {"image_id", "caption"}'),
        ([], ANNOTATIONS, "results.json: has no caption"),
        ([{"image_id": 7}], ANNOTATIONS, "results.json: [0].caption: is missing"),
        ([{"caption": "a"}], ANNOTATIONS, "results.json: [0].image_id: must be a whole number or a string"),
        ([*RESULTS, RESULTS[0]], ANNOTATIONS, "results.json: [2].image_id: 7 has a caption already"),
        ([{"image_id": 8, "caption": "a"}], ANNOTATIONS, "image 8 is not among the images of"),
        (RESULTS, {"images": []}, "annotations: is missing"),
        (RESULTS, {**ANNOTATIONS, "images": [{"id": 7}]}, "annotations[2].image_id: no entry of images has the id 9"),
        (RESULTS, {**ANNOTATIONS, "annotations": ANNOTATIONS["annotations"][:2]}, "image 9 has no caption"),
    ],
)
def test_each_mistake_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, results: Any, annotations: Any, line: str
) -> None:
    assert line in refused(monkeypatch, capsys, "score", *written(tmp_path, results, annotations))


def test_files_that_cannot_be_scored_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    results, annotations = written(tmp_path)
    (tmp_path / "torn.json").write_text("[{")
    (tmp_path / "torn.parquet").write_text("PAR1")
    asked = [
        ([results], "give the annotations that it is scored against"),
        ([str(tmp_path / "none.json"), annotations], "none.json: no such file"),
        ([str(tmp_path / "torn.json"), annotations], "torn.json:1: is not JSON"),
        ([str(tmp_path / "torn.parquet")], "torn.parquet: cannot be read as Parquet"),
        ([str(tmp_path / "none.parquet")], "none.parquet"),
        ([results, annotations, "--metrics", "blue"], "unknown metric 'blue'; did you mean 'bleu'?"),
        ([results, annotations, "--metrics", "truth"], "unknown metric 'truth'"),
    ]
    for arguments, line in asked:
        assert line in refused(monkeypatch, capsys, "score", *arguments)


def test_exported_captions_score_as_the_originals(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    by_stage = artifacts(small(finished), "evaluate")
    predictions = by_stage["evaluate"].path / PREDICTIONS
    captions = captions_in(predictions)
    export(captions, read_pictures(by_stage["ingest"].path, "test"), tmp_path / "out")
    results, annotations = (tmp_path / "out" / f"{name}.json" for name in ("results", "annotations"))
    assert list(read_results(results).values()) == [captions[row] for row in _order(by_stage, captions)]
    assert len(read_references(annotations)) == len(captions)
    ours = corpus_of(predictions, None)
    exported = corpus_of(results, annotations)
    assert sorted((item.caption, item.references) for item in ours) == sorted(
        (item.caption, item.references) for item in exported
    )
    told = [
        json.loads(attend(monkeypatch, capsys, "score", *map(str, given), "--json", "--metrics", "bleu,cider")[1])
        for given in ((predictions,), (results, annotations))
    ]
    assert told[0]["scores"] == pytest.approx(told[1]["scores"])
    evaluated = json.loads((by_stage["evaluate"].path / "scores.json").read_text())["scores"]
    assert told[0]["scores"]["bleu4"] == pytest.approx(evaluated["bleu4"])
    assert pq.read_table(predictions).num_rows == len(captions)


def _order(made: Any, captions: dict[str, str]) -> list[str]:
    return [p.digest for p in read_pictures(made["ingest"].path, "test") if p.digest in captions]


def test_cocos_names_become_its_numbers() -> None:
    assert image_ids({"x": "val2014/COCO_val2014_000000391895.jpg", "y": "000000000042.jpg"}) == {"x": 391895, "y": 42}
    assert image_ids({"x": "a1.jpg", "y": "b1.jpg"}) == {"x": "a1.jpg", "y": "b1.jpg"}  # not of their own
    assert image_ids({"x": "12.jpg", "y": "dog.jpg"}) == {"x": "12.jpg", "y": "dog.jpg"}


def test_statistics_of_captions() -> None:
    corpus = [
        ScoredCaption(["a", "dog", "a", "dog"], [["a", "dog"], ["one", "wolf"]]),
        ScoredCaption(["a", "cat"], [["a", "cat", "sits"]]),
        ScoredCaption(["a", "cat"], [["cats"]]),
    ]
    told = caption_statistics(corpus, seen={"a cat"}, known={"a", "dog", "cat"})
    assert told["words"] == pytest.approx(8 / 3) and told["reference_words"] == pytest.approx(8 / 4)
    assert told["different"] == pytest.approx(2 / 3) and told["distinct_1"] == pytest.approx(3 / 8)
    assert told["distinct_2"] == pytest.approx(3 / 5) and told["vocabulary"] == 3
    assert told["novel"] == pytest.approx(1 / 3) and told["unknown"] == pytest.approx(4 / 8)
    assert "novel" not in caption_statistics(corpus) and "unknown" not in caption_statistics(corpus)


@pytest.mark.parametrize(
    "written",
    [
        str,
        lambda number: f"{number:012d}",
        float,
        lambda number: f"COCO_val2014_{number:012d}.jpg",
        lambda number: f"COCO_val2014_{number:012d}",
    ],
    ids=["text", "zeros", "float", "file", "stem"],
)
def test_images_are_found_by_other_forms_of_their_ids(tmp_path: Path, written: Callable[[int], Any]) -> None:
    numbers = range(7, 12)
    references = {
        "images": [{"id": number, "file_name": f"COCO_val2014_{number:012d}.jpg"} for number in numbers],
        "annotations": [
            {"image_id": number, "id": number, "caption": f"a dog runs by wall {number}"} for number in numbers
        ],
    }
    results = [{"image_id": written(number), "caption": f"a dog runs by wall {number}"} for number in numbers]
    for name, content in (("results.json", results), ("annotations.json", references)):
        (tmp_path / name).write_text(json.dumps(content))
    corpus = corpus_of(tmp_path / "results.json", tmp_path / "annotations.json")
    assert measure("bleu", corpus)["bleu4"] == pytest.approx(100.0)
    results.append({"image_id": 7, "caption": "again"})
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(AttendError, match=r"captioned already|a caption already"):
        corpus_of(tmp_path / "results.json", tmp_path / "annotations.json")
