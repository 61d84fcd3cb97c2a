"""The stages on real, small data: what is fresh stays, what changed runs, and nothing else does."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from flows.pipeline import build_pipeline
from models.neighbours import Memory
from models.options import Decoding
from models.torch_steps import decode
from models.vocabulary import END, NULL, START, UNK
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.common.interrupts import deferred_interrupt
from tasks.config.schema import Config
from tasks.config.stages import CaptionsConfig
from tasks.data.caption_files import CAPTIONS, build_vocabulary, read_captions, read_vocabulary
from tasks.data.manifest import GENERATED_FOLDER, files_by_digest, read_pictures
from tasks.data.tokenisers import tokeniser
from tasks.datasets.base import SPLITS
from tasks.datasets.table import Table
from tasks.evaluation.caption_and_score import score
from tasks.evaluation.picture_search import PictureSearch
from tasks.grids.index import open_grids
from tasks.grids.reader import GridReader
from tasks.metrics import ScoredCaption, measure
from tasks.pipeline.ledger import Ledger
from tasks.pipeline.plan import Inputs
from tasks.pipeline.workspace import Workspace
from tasks.training import best_weights
from tasks.training import loop as fitting
from tasks.training import outputs as trained
from tasks.training.batches import Batch, padded
from tasks.training.dev import DevEvaluator
from tests.photographs import picture_folder
from tests.support import (
    WITHOUT_MLFLOW,
    Killed,
    artifacts,
    captioner_artifacts,
    inputs_of,
    plan,
    raise_version,
    run_all,
    run_stage,
    small,
    states,
)


@pytest.fixture
def workspace(finished_copy: Path) -> Path:
    """A workspace in which everything has run."""
    return finished_copy


def test_a_second_run_does_nothing(workspace: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in workspace.rglob("*.parquet")}
    assert set(run_all(small(workspace)).values()) == {"fresh"}
    assert {path: path.stat().st_mtime_ns for path in workspace.rglob("*.parquet")} == before


@pytest.mark.parametrize(
    ("change", "ran", "why"),
    [
        ({"evaluation__beam": 3}, {"evaluate"}, "evaluation.beam: 2 -> 3"),
        ({"training__learning_rate": 0.01}, {"train", "evaluate"}, "training.learning_rate: 0.005 -> 0.01"),
        (
            {"decoder__name": "attention_lstm", "decoder__attention": None},
            {"train", "evaluate"},
            "decoder.name: show_attend_tell -> attention_lstm",
        ),
        ({"captions__max_tokens": 9}, {"tensorise", "train", "remember", "evaluate"}, "captions.max_tokens: 15 -> 9"),
        ({"grids__image_size": 96}, {"extract", "train", "remember", "evaluate"}, "grids.image_size: 64 -> 96"),
        ({"machine__shard_rows": 7, "machine__threads": 1}, set(), ""),
    ],
)
def test_only_what_depends_on_a_setting_runs(
    workspace: Path, change: dict[str, object], ran: set[str], why: str
) -> None:
    config = small(workspace, **change)
    stale = [status for status in plan(config) if not status.fresh and status.stage.name != "register"]
    assert {status.stage.name for status in stale} == ran
    assert not ran or why in stale[0].why
    assert {name for name, state in run_all(config).items() if state != "fresh"} == ran
    assert set(run_all(small(workspace)).values()) == {"fresh"}  # switching back is free


@pytest.mark.parametrize(
    "written",
    [
        {"evaluation__no_echo": False, "evaluation__neighbours": "fitted"},
        {"captions__vocabulary": "train"},
        {"registry__max_runtime_loss": 0.5, "registry__runtimes": ["torch"]},
        {"training__captions_per_picture": 64, "training__loss_mean": "tokens"},
        {"decoder__tie_weights": False, "decoder__gate": True},
        {"data__on_error": "stop", "data__dev_share": 0.1},
    ],
)
def test_a_default_that_is_written_out_makes_nothing_stale(tmp_path: Path, written: dict[str, object]) -> None:
    plain, explicit = (
        {stage.name: {name: section.key_part() for name, section in stage.sections().items()} for stage in stages}
        for stages in (build_pipeline(small(tmp_path, **changes)).stages for changes in ({}, written))
    )
    assert plain == explicit


def test_the_usual_form_of_a_table_may_be_written_out() -> None:
    """Also the encoding by another of its names."""
    plain = Table(path=Path("captions.csv")).key_part()
    assert Table(path=Path("captions.csv"), encoding="UTF8", delimiter=",").key_part() == plain
    assert Table(path=Path("captions.tsv"), delimiter="tab").key_part() == plain
    assert Table(path=Path("captions.tsv"), delimiter=",").key_part() != plain


def test_added_pictures_alone_are_extracted(workspace: Path) -> None:
    config = small(workspace, data__pictures=80)
    run_stage(config, "ingest")
    run_stage(config, "extract")
    counts = artifacts(config)["extract"].ledger.counts
    assert (counts["grids"], counts["extracted"]) == (80, 20)


def test_new_test_pictures_do_not_retrain(tmp_path: Path, finished: Path) -> None:
    """Held-out pictures that come later change the scores' data, not the model's."""
    import csv

    pictures = next((finished / "artifacts" / "ingest").iterdir()) / GENERATED_FOLDER
    names = sorted(path.name for path in pictures.iterdir())

    def config_with(tests: int) -> Config:
        table = tmp_path / "captions.csv"
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "caption", "split"])
            for place, name in enumerate(names[: 40 + tests]):
                split = "test" if place >= 40 else "dev" if place >= 30 else "train"
                writer.writerow([name, f"a picture with number {place % 3}", split])
        data = {"adapter": "table", "path": table, "images": pictures}
        return small(tmp_path / "workspace", data=data, evaluation__metrics=["bleu"])

    run_all(config_with(5))
    ran = run_all(config_with(15))
    assert {name for name, state in ran.items() if state != "fresh"} == {"ingest", "extract", "tensorise", "evaluate"}


def test_a_damaged_artifact_is_named_and_made_again(workspace: Path) -> None:
    config = small(workspace)
    weights = artifacts(config)["train"].path / trained.WEIGHTS
    original = weights.read_bytes()
    weights.write_bytes(original[:100])
    status = states(config)["train"]
    assert status.state == "damaged"
    assert f"has 100 bytes, {len(original)} are recorded" in status.why[0]
    ran = run_all(config)
    assert {name for name, state in ran.items() if state != "fresh"} == {"train"}  # the same weights came out: cut off
    assert weights.read_bytes() == original


def test_a_truncated_shard_is_extracted_again_and_nothing_else_runs(workspace: Path) -> None:
    config = small(workspace)
    shard = sorted(workspace.rglob("shard-*.h5"))[1]
    shard.write_bytes(shard.read_bytes()[:5000])
    assert "damaged" in states(config)["extract"].state
    ran = run_all(config)
    assert {name for name, state in ran.items() if state != "fresh"} == {"extract"}
    assert artifacts(config)["extract"].ledger.counts["extracted"] == 16


def test_verify_reads_the_digests(workspace: Path) -> None:
    config = small(workspace)
    path = artifacts(config)["evaluate"].path / "scores.json"
    path.write_text(path.read_text().replace("bleu1", "bleu9"))
    assert states(config)["evaluate"].fresh
    found = {status.stage.name: status for status in plan(config, read="all")}
    assert found["evaluate"].state == "damaged"


def test_no_ledger_no_artifact(workspace: Path) -> None:
    config = small(workspace)
    (artifacts(config)["tensorise"].path / "ledger.json").unlink()
    assert states(config)["tensorise"].state == "damaged"
    assert "ledger.json is gone" in states(config)["tensorise"].why[0]
    assert {name for name, state in run_all(config).items() if state != "fresh"} == {"tensorise"}


def test_the_ledger_tells_what_made_it(workspace: Path) -> None:
    ledger = Ledger.read(artifacts(small(workspace))["train"].path)
    assert ledger is not None
    assert ledger.parts["config"]["training"]["learning_rate"] == 0.005
    assert set(ledger.versions) - {"commit"} == {"attend", "torch", "torchvision"}
    assert set(ledger.files) == {"decoder.json", "history.parquet", "last.safetensors", "weights.safetensors"}


def test_an_unreadable_picture_is_a_row_with_a_reason(tmp_path: Path, finished: Path) -> None:
    config = picture_folder(tmp_path, finished, max_failed=0.5)
    (tmp_path / "pictures" / "scene_000003.png").write_bytes(b"not a picture")
    run_stage(config, "ingest")
    run_stage(config, "extract")
    extracted = artifacts(config)["extract"]
    (row,) = pq.read_table(extracted.path / "failed.parquet").to_pylist()
    assert row["path"].endswith("scene_000003.png") and "no picture" in row["reason"]
    assert extracted.ledger.counts["grids"] == 59


def test_too_many_unreadable_pictures_fail_the_stage(tmp_path: Path, finished: Path) -> None:
    config = picture_folder(tmp_path, finished, max_failed=0.01)
    (tmp_path / "pictures" / "scene_000003.png").write_bytes(b"not a picture")
    run_stage(config, "ingest")
    with pytest.raises(AttendError, match=r"1 of 60 pictures cannot be read, over grids.max_failed=0.01: .*000003.png"):
        run_stage(config, "extract")
    assert not list((tmp_path / "workspace").rglob("*.partial"))


def test_an_empty_evaluation_split_is_reported_before_training(tmp_path: Path) -> None:
    config = small(tmp_path, data__test_share=0.0)
    run_stage(config, "ingest")
    with pytest.raises(
        AttendError, match=r"split 'test' .* has no pictures.*available: train, dev.*evaluation.split=dev"
    ):
        plan(config)


def test_cached_grids_are_those_of_the_raw_pictures(workspace: Path) -> None:
    """Cached = raw: the captioner sees in a photograph what training saw in the cache."""
    from tasks.captioner.bundle import make_captioner

    config = small(workspace, training__epochs=12, training__learning_rate=0.02, evaluation__split="train")
    config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"metrics": ("bleu",)})})
    run_all(config)
    found = artifacts(config)
    captioner = make_captioner(config, captioner_artifacts(config))
    files = files_by_digest(found["ingest"].path, config.data)
    rows = pq.read_table(found["evaluate"].path / "predictions.parquet").to_pylist()
    captioned = captioner.caption([files[row["digest"]].read_bytes() for row in rows])
    assert [item.caption for item in captioned] == [row["caption"] for row in rows]
    assert len({row["caption"] for row in rows}) > 5


@pytest.mark.parametrize("steps", [1, 6, 7, 11])
def test_a_killed_training_goes_on_with_the_same_curve(
    finished: Path, tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed = uninterrupted, mid-epoch too: weights, averages, history, to the last bit."""
    settings = {
        "training__averaging": 0.9,
        "training__unknown_words": 0.2,
        "decoder__dropout_words": 0.3,
        "machine__checkpoint_seconds": 0,
    }
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for workspace in (whole, cut):
        shutil.copytree(finished, workspace)
    run_stage(small(whole, **settings), "train")

    learn = fitting.TrainingLoop.learn
    left = [steps]

    def dies(fit: fitting.TrainingLoop, step: Any) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        learn(fit, step)

    monkeypatch.setattr(fitting.TrainingLoop, "learn", dies)
    with pytest.raises(Killed):
        run_stage(small(cut, **settings), "train")
    status = states(small(cut, **settings))["train"]
    assert status.state == "interrupted" and f"step {steps} of 14" in status.why[0]
    monkeypatch.setattr(fitting.TrainingLoop, "learn", learn)
    run_stage(small(cut, **settings), "train")

    one, two = (artifacts(small(workspace, **settings))["train"] for workspace in (whole, cut))
    assert one.products == two.products
    for name in (trained.WEIGHTS, trained.LAST):
        first, second = (safetensors.torch.load_file(found.path / name) for found in (one, two))
        assert all(torch.equal(first[key], second[key]) for key in first)
    curves = [pq.read_table(found.path / trained.HISTORY).drop_columns("seconds").to_pylist() for found in (one, two)]
    assert curves[0] == curves[1]
    assert not list(cut.rglob("*checkpoint*"))


def test_a_training_that_is_interrupted_loses_no_step(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or `attend down`, waits for the end of the step, and a second one does not."""
    learn, steps = fitting.TrainingLoop.learn, [0]

    def interrupted(fit: fitting.TrainingLoop, step: Any) -> None:
        steps[0] += 1
        if steps[0] == 3:
            signal.raise_signal(signal.SIGINT)
        learn(fit, step)

    config, before = small(workspace, training__seed=5), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(fitting.TrainingLoop, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_stage(config, "train")
    status = states(config)["train"]
    assert status.state == "interrupted" and "step 3 of 14" in status.why[0]
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), deferred_interrupt("nothing") as is_interrupted:
        signal.raise_signal(signal.SIGINT)
        assert is_interrupted()
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_between_two_epochs_is_not_lost(workspace: Path) -> None:
    """Also where a library that runs then swallows what is raised."""
    config = small(workspace, training__seed=6)

    def swallowing(row: dict[str, float], _: Path | None) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_stage(config, "train", epoch_done=swallowing)
    assert "1 of 2 epochs done" in states(config)["train"].why[0]
    run_stage(config, "train")
    assert states(config)["train"].fresh


def test_a_killed_extraction_keeps_its_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.grids.store import GridStore

    config = small(tmp_path)
    run_stage(config, "ingest")
    draft = GridStore.draft
    left = [2]

    def dies(store: GridStore, *arguments: object) -> object:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return draft(store, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(GridStore, "draft", dies)
    with pytest.raises(Killed):
        run_stage(config, "extract")
    monkeypatch.setattr(GridStore, "draft", draft)
    run_stage(config, "extract")
    counts = artifacts(config)["extract"].ledger.counts
    assert (counts["grids"], counts["extracted"], counts["shards"]) == (60, 28, 4)


def test_the_dev_loss_is_that_of_the_captions_word_by_word(workspace: Path) -> None:
    """In nats per token, of the weights that are kept, without label smoothing, dropout or penalties."""
    config = small(workspace, training__epochs=2, training__label_smoothing=0.1)
    run_stage(config, "train")
    results = artifacts(config)
    decoder: Any = trained.load_decoder(results["train"].path)[0]
    grids = open_grids(results["extract"], config.machine)
    total, number = 0.0, 0
    for picture in read_captions(results["tensorise"].path, "dev"):
        grid = torch.from_numpy(grids.read([picture.digest])).float()
        for caption in picture.tokens.tolist():
            state = decoder.start(grid)
            for word, following in itertools.pairwise(caption[: caption.index(END) + 1]):
                logits, state = decoder.step(state, torch.tensor([[word]]))
                total -= float(torch.log_softmax(logits[0, 0].double(), dim=-1)[following].detach())
                number += 1
    history = pq.read_table(results["train"].path / trained.HISTORY).to_pylist()
    best = max(history, key=lambda row: (row["dev_cider"], row["epoch"]))
    assert best["dev_loss"] == pytest.approx(total / number, rel=1e-5)
    assert best["dev_perplexity"] == pytest.approx(math.exp(total / number), rel=1e-5)


def test_early_stopping_stops(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([10.0, 30.0, 20.0, 20.0, 40.0])
    others = {"dev_meteor": 0.0, "dev_bleu4": 0.0, "dev_mean": 0.0, "dev_loss": 1.0, "dev_perplexity": math.e}
    monkeypatch.setattr(DevEvaluator, "scores", lambda *_: {"dev_cider": next(scores), **others})
    config = small(workspace, training__epochs=5, training__patience=2)
    run_stage(config, "train")
    history = pq.read_table(artifacts(config)["train"].path / trained.HISTORY).to_pylist()
    assert [row["dev_cider"] for row in history] == [10.0, 30.0, 20.0, 20.0]


def test_vocabulary_is_by_falling_count_ties_alphabetical_from_train_alone(workspace: Path) -> None:
    texts = [["b", "a", "c"], ["b", "a"], ["d", "b", "c"]]
    vocabulary = build_vocabulary(texts, CaptionsConfig(min_count=2))
    assert vocabulary.words == ("b", "a", "c")
    assert vocabulary.encode(["c", "never", "b"], 4) == [START, 6, UNK, 4, END, NULL]
    assert vocabulary.encode(["b"] * 9, 4) == [START, 4, 4, 4, 4, END]
    assert vocabulary.decode([START, 5, 6, END, 4]) == ["a", "c"]
    found = artifacts(small(workspace))
    seen = {
        word
        for picture in read_pictures(found["ingest"].path, "train")
        for text in picture.captions
        for word in text.lower().split()
    }
    assert set(read_vocabulary(found["tensorise"].path).words) == {word for word in seen if word.isalnum()}


def test_captions_are_seventeen_long_int32_and_cover_every_caption(workspace: Path) -> None:
    found = artifacts(small(workspace))
    table = pq.read_table(found["tensorise"].path / CAPTIONS)
    assert str(table.schema.field("tokens").type) == "fixed_size_list<element: int32>[17]"
    assert table.num_rows == 300
    pictures = read_captions(found["tensorise"].path, "train")
    assert sum(len(picture.tokens) for picture in pictures) == 5 * found["ingest"].ledger.counts["train"]
    for row in np.concatenate([picture.tokens for picture in pictures]):
        length = list(row).index(END)
        assert row[0] == START and (row[length + 1 :] == NULL).all() and (row[1:length] > END).all()


def test_no_decoder_learns_to_end_where_a_caption_was_cut(workspace: Path) -> None:
    """What is stored keeps its END; what is trained and validated on has it only where the caption really ended."""
    config = small(workspace, captions__max_tokens=5)
    run_stage(config, "tensorise")
    results = artifacts(config, "tensorise")
    stored = pq.read_table(results["tensorise"].path / CAPTIONS).to_pylist()
    words = tokeniser(config.captions.tokeniser)
    texts = {
        picture.digest: picture.captions for split in SPLITS for picture in read_pictures(results["ingest"].path, split)
    }
    for digest, rows in itertools.groupby(stored, key=lambda row: str(row["digest"])):
        assert [row["cut"] for row in rows] == [len(words(text)) > 5 for text in texts[digest]]
    assert all(END in row["tokens"] for row in stored)
    assert 0 < sum(row["cut"] for row in stored) < len(stored)
    read = [picture for split in ("train", "dev") for picture in read_captions(results["tensorise"].path, split)]
    ends = np.concatenate([(picture.tokens == END).any(axis=1) for picture in read])
    assert ends.sum() == sum(not row["cut"] for row in stored if row["split"] != "test")
    batch = Batch.of(torch.zeros(1), torch.from_numpy(padded([picture.tokens for picture in read])))
    assert int((batch.next_words == END).sum()) == ends.sum()


def test_predictions_are_on_disk_and_scoring_them_again_gives_the_scores(workspace: Path) -> None:
    evaluation, found = small(workspace).evaluation, artifacts(small(workspace))
    record = json.loads((found["evaluate"].path / "scores.json").read_text())
    record.pop("confidence")  # is judged where it is fitted
    record.pop("neighbours")
    pictures, trained_on = (read_pictures(found["ingest"].path, split) for split in ("test", "train"))
    vocabulary, predictions = read_vocabulary(found["tensorise"].path), found["evaluate"].path / "predictions.parquet"
    assert score(predictions, pictures, trained_on, vocabulary, evaluation, evaluation.decoding()) == record
    assert "tokeniser:ptb" in record["signature"] and "beam:2" in record["signature"]


def test_every_held_out_picture_is_captioned_once(workspace: Path) -> None:
    """Each has five captions, and is one row all the same."""
    found = artifacts(small(workspace))
    digests = pq.read_table(found["evaluate"].path / "predictions.parquet").column("digest").to_pylist()
    assert sorted(digests) == [picture.digest for picture in read_pictures(found["ingest"].path, "test")]


def test_the_best_epoch_is_by_free_running_captions(workspace: Path) -> None:
    """What early stopping and the choice of weights go by is what the best weights say, unaided, of the dev split."""
    config = small(workspace, training__epochs=25, training__learning_rate=0.02, training__patience=25)
    run_stage(config, "train")
    found = artifacts(config)
    decoder, _ = trained.load_decoder(found["train"].path)
    vocabulary = read_vocabulary(found["tensorise"].path)
    grids, tokenise = open_grids(found["extract"], config.machine), tokeniser("treebank")
    scored = []
    for picture in read_pictures(found["ingest"].path, "dev"):
        grid = torch.from_numpy(grids.read([picture.digest])).float()
        ((caption,),) = decode(decoder, grid, Decoding(beam=1, max_length=16))
        scored.append(ScoredCaption(vocabulary.decode(caption.tokens), [tokenise(text) for text in picture.captions]))
    best = max(row["dev_cider"] for row in pq.read_table(found["train"].path / trained.HISTORY).to_pylist())
    assert best > 5
    assert measure("cider", scored)["cider"] == pytest.approx(best, abs=1e-6)


def test_batch_size_does_not_change_the_captions(workspace: Path) -> None:
    found = artifacts(small(workspace))
    pictures = read_pictures(found["ingest"].path, "train")
    captions = []
    for size in (1, 7):
        config = small(workspace, machine__decode_batch=size)
        memory = Memory.load(found["remember"].path)
        decoder, _ = trained.load_decoder(found["train"].path)
        search = PictureSearch(config.evaluation, config.machine, found["extract"], decoder, memory)
        captions.append([[caption.tokens for caption in own] for own in search.find(pictures).captions])
    assert captions[0] == captions[1]


def test_training_reads_through_the_reader(workspace: Path) -> None:
    config = small(workspace)
    reader = open_grids(artifacts(config)["extract"], config.machine)
    assert isinstance(reader, GridReader) and reader.shape == (2, 2, 512)


def test_killed_between_writing_and_publishing_loses_no_step(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(workspace, training__seed=8)

    def dies(*_: object) -> None:
        raise Killed

    publish = Workspace.publish
    monkeypatch.setattr(Workspace, "publish", dies)
    with pytest.raises(Killed):
        run_stage(config, "train")
    monkeypatch.setattr(Workspace, "publish", publish)
    monkeypatch.setattr(fitting.TrainingLoop, "learn", dies)  # no step may be taken again
    run_stage(config, "train")
    found = artifacts(config)["train"]
    assert sorted(path.name for path in found.path.iterdir()) == sorted([*found.ledger.files, "ledger.json"])


def test_a_run_works_on_the_state_it_began_with(tmp_path: Path, finished: Path) -> None:
    """A picture that arrives while a run goes on is the next run's."""
    config = picture_folder(tmp_path, finished, max_failed=0.01)
    inputs = inputs_of(config)
    run_stage(config, "ingest", inputs)
    run_stage(config, "extract", inputs)
    shutil.copy(tmp_path / "pictures" / "scene_000001.png", tmp_path / "pictures" / "later.png")
    run_stage(config, "tensorise", inputs)
    assert artifacts_of(config, inputs) == {"ingest", "extract", "tensorise"}
    assert not states(config)["ingest"].fresh


def artifacts_of(config: Config, inputs: Inputs) -> set[str]:
    return {status.stage.name for status in plan(config, inputs=inputs) if status.fresh}


def test_a_picture_changed_after_it_was_ingested_never_enters_the_cache(tmp_path: Path, finished: Path) -> None:
    config = picture_folder(tmp_path, finished, max_failed=1.0)
    inputs = inputs_of(config)
    run_stage(config, "ingest", inputs)
    pictures = tmp_path / "pictures"
    (pictures / "scene_000004.png").write_bytes((pictures / "scene_000005.png").read_bytes())
    with pytest.raises(AttendError, match=r"scene_000004.png: was changed while the run was going on: run again"):
        run_stage(config, "extract", inputs)


def test_raising_the_extract_version_makes_new_grids(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(workspace)
    raise_version(monkeypatch, config, "extract")
    run_stage(config, "extract")
    assert artifacts(config)["extract"].ledger.counts["extracted"] == 60
    assert not states(config)["train"].fresh


def test_a_workspace_inside_the_data_set_is_no_part_of_it(tmp_path: Path, finished: Path) -> None:
    config = picture_folder(tmp_path, finished, max_failed=0.01)
    inside = config.model_copy(
        update={"machine": config.machine.model_copy(update={"workspace": str(tmp_path / "pictures" / "ws")})}
    )
    before = inputs_of(inside, "ingest")
    (tmp_path / "pictures" / "ws").mkdir(exist_ok=True)
    shutil.copy(tmp_path / "pictures" / "scene_000001.png", tmp_path / "pictures" / "ws" / "sample.png")
    assert inputs_of(inside, "ingest") == before


@pytest.mark.parametrize("words", ["No space left on device (os error 28)", "database or disk is full"])
def test_a_full_disk_is_reported_whoever_finds_it(workspace: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    def full(*_: object) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr(best_weights, "save_weights", full)
    config = small(workspace, training__seed=3)
    with pytest.raises(AttendError, match=r"the disk is full \(train\): make room and run again"):
        run_stage(config, "train")
    assert states(config)["train"].state == "interrupted"


def test_a_picture_whose_disk_is_away_is_not_left_out_for_good(tmp_path: Path, finished: Path) -> None:
    config = picture_folder(tmp_path, finished, max_failed=1.0)
    away = max((tmp_path / "pictures").glob("*.png"), key=digest_of_file)  # the last that is extracted
    back = tmp_path / "away.png"
    run_stage(config, "ingest")
    inputs = inputs_of(config, "extract")  # the run has begun
    away.rename(back)
    with pytest.raises(AttendError, match=r"png: cannot be read on .*No such file.*run again when it can"):
        run_stage(config, "extract", inputs)
    before = {path: path.read_bytes() for path in config.workspace.glob("grids/*/shard-*")}
    assert len(before) >= 2
    back.rename(away)
    run_stage(config, "extract")
    assert artifacts(config)["extract"].ledger.counts["grids"] == 60
    assert all(path.read_bytes() == data for path, data in before.items())


def test_a_photograph_replaced_before_it_is_registered_is_refused(tmp_path: Path, finished: Path) -> None:
    """The champion would be captioned on another picture than its challenger."""
    config = picture_folder(tmp_path, finished, max_failed=0.0)
    inputs = inputs_of(config)
    for name in WITHOUT_MLFLOW:
        run_stage(config, name, inputs)
    for path in (tmp_path / "pictures").glob("*.png"):
        path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(AttendError, match=r"png: was changed while the run was going on: run again"):
        run_stage(config, "register", inputs)
