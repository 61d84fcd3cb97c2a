"""Neighbours: captions of similar training pictures rank captions as CIDEr-D would, where that helps, and are left out
where it does not.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from models.captioner import Captioner
from models.matcher import Matcher
from models.neighbours import Memory, NearestPictures, StoredCaptions, _greatest
from models.ngrams import Frequencies, padded
from models.options import Neighbours
from models.ranking import ANY_LENGTH, Copy, NeighbourOpinion, consult, support_of, weights_of
from models.requests import answer
from models.search import Caption
from models.vocabulary import END, UNK, Vocabulary
from tasks.captioner.bundle import make_captioner
from tasks.common.files import digest_of_file
from tasks.config.stages import RegistryConfig
from tasks.data.manifest import Picture
from tasks.evaluation.caption_and_score import PREDICTIONS, read_predictions
from tasks.evaluation.report import REPORT
from tasks.evaluation.score_record import no_better_than_copied, read_scores
from tasks.metrics import ScoredCaption, measure
from tasks.metrics.cider import cider_d
from tasks.mlflow_store import tracking
from tasks.neighbours.fit import Candidates
from tasks.neighbours.fit_matcher import DualEncoder, fit_matcher
from tasks.neighbours.make_memory import memory_of, read_remembered
from tasks.registry.gates import gate_results
from tests.photographs import tabled
from tests.support import (
    artifacts,
    captioner_artifacts,
    pictures,
    plan,
    register_all,
    run_all,
    small,
    train_any_matcher,
    trained,
)

WORDS = 40
VOCABULARY = Vocabulary(tuple(f"word{number}" for number in range(WORDS)))


def remembered(count: int, per_picture: int = 3, seed: int = 0, channels: int = 8) -> tuple[Memory, list[list[Any]]]:
    """A memory of random pictures, each with captions of random words; and these captions."""
    generator = np.random.default_rng(seed)
    memory = memory_of(
        np.zeros((2, 2, channels), np.float32), generator.normal(size=(count, channels)).astype(np.float32), channels
    )
    captions = [
        [[*generator.integers(4, 4 + WORDS, generator.integers(1, 9)).tolist(), END] for _ in range(per_picture)]
        for _ in range(count)
    ]
    return with_captions(memory, captions), captions


def with_captions(memory: Memory, captions: list[list[Any]]) -> Memory:
    """The memory with captions of its pictures, and a matcher of random weights."""
    generator, vectors = np.random.default_rng(3), memory.vectors.shape[1]
    shapes = [(vectors, 6), (6,), (4 + WORDS, 6)]
    matcher = Matcher(*(generator.normal(size=shape).astype(np.float16) for shape in shapes))
    return replace(memory, captions=kept(captions), matcher=matcher)


def memory_with(captions: list[list[Any]]) -> Memory:
    """A memory of random pictures with these captions."""
    return with_captions(memory_of(np.zeros((1, 1, 8), np.float32), normal(len(captions), 8), 8), captions)


def kept(captions: list[list[Any]]) -> StoredCaptions:
    flat = [caption for own in captions for caption in own]
    return StoredCaptions.make(
        np.array([token for caption in flat for token in caption], np.uint16),
        np.array([len(caption) for caption in flat], np.uint16),
        np.array([len(own) for own in captions], np.uint16),
        Frequencies.from_references([padded(own) for own in captions]),
    )


def found_for(count: int, seed: int = 1) -> list[list[Caption]]:
    """Six captions of each of some pictures, the likeliest first; some repeat their words."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        tokens = [generator.integers(4, 12, generator.integers(1, 9)).tolist() for _ in range(6)]
        values = np.sort(-5 * generator.random(6))[::-1]
        found.append([Caption(own, float(value), True) for own, value in zip(tokens, values, strict=True)])
    return found


def test_similarities_are_weighted_means_of_cider_d() -> None:
    memory, captions = remembered(30)
    assert memory.captions is not None
    found, near = found_for(5), memory.look_up(normal(5, 8), 7)
    for own, said in zip(found, consult(memory, near, found, 0.2), strict=True):
        assert len(said.pictures) == 7
        weights = weights_of(said.cosines, 0.2)
        assert weights.sum() == pytest.approx(1) and weights == pytest.approx(np.sort(weights)[::-1])
        candidates = padded([caption.with_end for caption in own])
        expected = np.zeros(6)
        for picture, weight in zip(said.pictures.tolist(), weights, strict=True):
            scores = cider_d(candidates, padded(captions[picture]), memory.captions.frequencies) / 10
            expected += weight * scores
        assert said.similarities == pytest.approx(expected, abs=1e-9)
        support = support_of(memory.captions, own[0], said.pictures)
        assert float(support @ weights) == pytest.approx(said.similarities[0], abs=1e-9)


def test_the_most_similar_are_those_of_a_full_comparison_however_many_are_asked_at_once() -> None:
    spread = np.linspace(0.1, 3, 8, dtype=np.float32)  # of which whitening leaves nothing
    pooled, queries = normal(50, 8, seed=6) * spread + 1, normal(150, 8, seed=3) * spread + 1
    memory = memory_of(np.zeros((2, 2, 8), np.float32), pooled, 8)
    near = memory.look_up(queries, 7)
    whitening = np.linalg.cholesky(np.linalg.inv(np.cov(pooled.T)))  # any square root of it gives the same cosines
    of_queries, of_pooled = (unit((values - pooled.mean(axis=0)) @ whitening) for values in (queries, pooled))
    cosines = of_queries @ of_pooled.T
    np.testing.assert_allclose(near.cosines, -np.sort(-cosines, axis=1)[:, :7], atol=5e-3)  # float16 is kept
    np.testing.assert_allclose(np.take_along_axis(cosines, near.pictures, axis=1), near.cosines, atol=5e-3)
    distances = np.sort(np.linalg.norm(unit(queries)[:, None] - unit(pooled), axis=2), axis=1)
    np.testing.assert_allclose(near.distances, distances[:, :5].mean(axis=1), atol=5e-3)  # to whole pooled grids
    alone = memory.look_up(queries[77:78], 1)
    assert alone.pictures.tolist() == [[near.pictures[77, 0]]]
    assert alone.distances == pytest.approx(near.distances[77], abs=1e-6)  # however few are asked for
    assert memory.look_up(queries, 1000).pictures.shape == (150, 50)


@pytest.mark.parametrize("pictures", [1, 2, 5])
def test_few_pictures_are_found_whatever_their_number(pictures: int) -> None:
    pooled = normal(pictures, 8)
    memory = memory_of(np.zeros((2, 2, 8), np.float32), pooled, 8)
    assert memory.basis.shape == (8, max(pictures - 1, 1))  # no axis of rounding errors, which whitening would amplify
    near = memory.look_up(pooled, 60)
    assert near.pictures.shape == (pictures, pictures) and np.isfinite(near.cosines).all()
    assert near.pictures[:, 0].tolist() == list(range(pictures))
    np.testing.assert_allclose(near.distances, near.distances.clip(0, 2))


def test_large_values_of_a_backbone_change_no_neighbour() -> None:
    pooled, queries = normal(20, 8), normal(6, 8, seed=3)
    near, far = (
        memory_of(np.zeros((2, 2, 8), np.float32), pooled * scale, 8).look_up(queries * scale, 5)
        for scale in (np.float32(1), np.float32(1e5))  # beyond float16
    )
    np.testing.assert_array_equal(far.pictures, near.pictures)
    np.testing.assert_allclose(far.cosines, near.cosines, atol=5e-3)
    np.testing.assert_allclose(far.distances, near.distances, atol=5e-3)


def unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize(("pictures", "number"), [(7, 9), (64, 3), (1000, 3), (1001, 15), (4000, 60)])
def test_the_greatest_are_those_of_a_full_sort(pictures: int, number: int) -> None:
    values = normal(6, pictures)
    places, greatest = _greatest(values, number)
    assert np.array_equal(places, np.argsort(-values, axis=1)[:, :number])
    assert np.array_equal(greatest, -np.sort(-values, axis=1)[:, :number])


def normal(count: int, size: int, seed: int = 2) -> Any:
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)


def test_a_copy_is_the_whole_caption_most_similar_to_the_others() -> None:
    shared = [10, 11, 12, 13, END]
    captions = [[shared, [20, 21, END]], [[10, 11, 12, 14, END]], [[10, 11, 15, 13, END]], [[10, 11, 12, UNK, END]]]
    captions += [[[30 + number, 31, 32]] for number in range(4)]  # cut
    near = NearestPictures(np.arange(8)[None], *(np.zeros(shape, np.float32) for shape in ((1, 8), 1, (1, 7))))
    (said,) = consult(memory_with(captions), near, [[]], 10.0)
    assert said.copy is not None and said.copy.tokens == shared and said.copy.similarity > 0
    # A caption's likeness to itself is none to others.
    (said,) = consult(memory_with([[[20 + number, END]] for number in range(8)]), near, [[]], 10.0)
    assert said.copy is not None and said.copy.similarity == pytest.approx(0, abs=1e-12)
    assert consult(memory_with(captions), near, [[]], 10.0, range(0))[0].copy is None
    (short,) = consult(memory_with(captions), near, [[]], 10.0, range(1, 4))
    assert short.copy is not None and short.copy.tokens == [20, 21, END]
    assert consult(memory_with([[[4, UNK, END]]] * 8), near, [[]], 10.0)[0].copy is None


def test_captions_are_ranked_by_likelihood_similarity_and_match() -> None:
    captions = [Caption([5], -2.0, True), Caption([6], -4.0, True), Caption([7], -2.0, True)]
    similarities, matches = np.array([0.0, 0.2, 0.0]), np.array([0.1, -0.2, 0.2])
    said = NeighbourOpinion(np.arange(2), np.ones(2, np.float32), similarities, matches, Copy([8, END], 0.3))
    assert said.order(captions, Neighbours(factor=0.0, match=0.0)) == [0, 2, 1]  # of equals, in their order
    assert said.order(captions, Neighbours(factor=16.0, match=0.0)) == [1, 0, 2]
    assert said.order(captions, Neighbours(factor=16.0, match=1.0)) == [1, 2, 0]
    assert said.order(captions, Neighbours(factor=16.0, match=8.0)) == [2, 0, 1]
    assert said.copy_instead(1, None) is None and said.copy_instead(1, 2.0) is None
    assert said.copy_instead(1, 1.2) == said.copy


def test_a_memory_is_saved_and_loaded_whole(tmp_path: Path) -> None:
    memory, _ = remembered(20)
    memory.save(tmp_path)
    again = Memory.load(tmp_path)
    assert memory.captions is not None and again.captions is not None
    found, near, same = found_for(3), memory.look_up(normal(3, 8), 5), again.look_up(normal(3, 8), 5)
    assert all(np.array_equal(getattr(near, name), getattr(same, name)) for name in near._fields)
    pairs = zip(consult(memory, near, found, 0.1), consult(again, same, found, 0.1), strict=True)
    for a, b in pairs:
        assert np.array_equal(a.similarities, b.similarities) and np.array_equal(a.matches, b.matches)
        assert a.copy == b.copy
    replace(memory, captions=None, matcher=None).save(tmp_path)
    assert Memory.load(tmp_path).captions is None and Memory.load(tmp_path).matcher is None


def test_a_matcher_tells_a_pictures_words_from_those_of_other_pictures() -> None:
    """Each picture shows a few of forty things, in a direction for each, and its captions name them."""
    generator = np.random.default_rng(7)
    shown = [generator.choice(WORDS, 3, replace=False) for _ in range(400)]
    things = normal(WORDS, 24, seed=8)
    pooled = np.stack([things[own].sum(axis=0) for own in shown]) + normal(400, 24, seed=9) / 10
    captions = [[[*(4 + generator.permutation(own)).tolist(), END] for _ in range(2)] for own in shown]
    memory = memory_of(np.zeros((1, 1, 24), np.float32), pooled[:300], 24)
    matcher = fit_matcher(memory.directions, kept(captions[:300]), len(VOCABULARY), torch.device("cpu"))
    held = memory.look_up(pooled[300:], 1).directions
    said = padded([own[0] for own in captions[300:]])
    matches = np.stack([matcher.matches(direction, said) for direction in held])
    assert (np.abs(matches) <= 1 + 1e-3).all()
    assert (matches.argmax(axis=1) == np.arange(100)).mean() > 0.8
    assert not matcher.words[UNK].any() and matcher.words[4].any()  # no caption has it
    again = fit_matcher(memory.directions, kept(captions[:300]), len(VOCABULARY), torch.device("cpu"))
    assert all(np.array_equal(getattr(matcher, name), getattr(again, name)) for name in ("projection", "bias", "words"))


def test_a_matcher_is_the_dual_encoder_that_was_trained() -> None:
    torch.manual_seed(0)
    encoder = DualEncoder(8, len(VOCABULARY)).eval()
    weights = (encoder.projection.weight.T, encoder.projection.bias, encoder.words.weight[: len(VOCABULARY)])
    matcher = Matcher(*(weight.detach().numpy().astype(np.float16) for weight in weights))
    directions, said = unit(normal(5, 8)), padded([[4, 5, END], [6, END], [7, 7, 8, 9, END], [UNK], [10]])
    with torch.no_grad():
        tokens = torch.from_numpy(np.where(said < 0, len(VOCABULARY), said))
        expected = encoder(torch.from_numpy(directions), tokens) / encoder.log_scale.exp()
    found = np.stack([matcher.matches(direction, said) for direction in directions])
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-3)  # float16 is kept
    assert matcher.matches(directions[0], padded([])).shape == (0,)


def candidates_of(knows: bool, count: int = 120) -> Candidates:
    """Pictures whose likelier caption is wrong, as the memory knows; or right, and the memory is of other things."""
    generator = np.random.default_rng(5)
    pooled = normal(count, 8)
    memory = memory_of(np.zeros((1, 1, 8), np.float32), pooled, 8)
    right = [[*generator.integers(4, 4 + WORDS, 6).tolist(), END] for _ in range(count)]
    said = right if knows else [[*generator.integers(4, 4 + WORDS, 6).tolist(), END] for _ in range(count)]
    found = []
    for own in right:
        wrong = generator.integers(4, 4 + WORDS, 6).tolist()
        likelier, other = (wrong, own[:-1]) if knows else (own[:-1], wrong)
        found.append([Caption(likelier, -3.0, True), Caption(other, -4.0, True)])
    held = [Picture(str(number), str(number), [VOCABULARY.text(own)], None) for number, own in enumerate(right)]
    memory = with_captions(memory, [[own] for own in said])
    return Candidates(found, memory.look_up(pooled, 60), held, memory, VOCABULARY, ANY_LENGTH)


def test_the_weight_of_the_matcher_is_fitted() -> None:
    """The words of each right caption, and these alone, point in the direction of its picture."""
    pooled = normal(120, 40)
    memory = memory_of(np.zeros((1, 1, 40), np.float32), pooled, 40)
    words = np.zeros((4 + WORDS, 40), np.float16)
    words[4:] = np.eye(40)
    matcher = Matcher(np.eye(memory.directions.shape[1], 40, dtype=np.float16), np.zeros(40, np.float16), words)
    right = np.abs(memory.directions).argmax(axis=1)
    memory.directions[np.arange(120), right] *= np.sign(memory.directions[np.arange(120), right])
    near = memory.look_up(pooled, 60)._replace(directions=memory.directions)
    found = [
        [Caption([4 + (own + 1) % 40] * 4, -4.0, True), Caption([4 + own] * 4, -5.0, True)] for own in right.tolist()
    ]
    held = [
        Picture(str(number), str(number), [VOCABULARY.text([4 + own] * 4)], None) for number, own in enumerate(right)
    ]
    nothing = [[[UNK, END]]] * 120
    weights = []
    for own in (matcher, None):
        kept_memory = replace(memory, captions=kept(nothing), matcher=own)
        fitted = Candidates(found, near, held, kept_memory, VOCABULARY, ANY_LENGTH).fit(np.ones(120, np.bool_))
        weights.append(0.0 if fitted.neighbours is None else fitted.neighbours.match)
    assert weights[0] > 0 and weights[1] == 0


def test_neighbours_are_consulted_where_they_help_and_left_out_where_they_do_not() -> None:
    everything = np.ones(120, np.bool_)
    helped = candidates_of(knows=True).fit(everything)
    assert helped.neighbours is not None and helped.gain > 1
    assert candidates_of(knows=False).fit(everything).neighbours is None


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a registered version whose neighbours are set, and which has a matcher."""
    workspace = tmp_path_factory.mktemp("neighbours") / "workspace"
    with pytest.MonkeyPatch.context() as patch:
        train_any_matcher(patch)
        register_all(config_of(workspace))
    return workspace


SET = {"number": 10, "temperature": 0.2, "factor": 8.0, "match": 1.5, "copies": 1.1}


def config_of(workspace: Path, **changes: object) -> Any:
    return trained(workspace, **{"evaluation__beam": 4, "evaluation__neighbours": SET, **changes})


def test_the_model_says_what_the_evaluation_did(ranked: Path) -> None:
    config = config_of(ranked)
    found = artifacts(config)
    rows = {row["digest"]: row for row in pq.read_table(found["evaluate"].path / PREDICTIONS).to_pylist()}
    captioner = make_captioner(config, captioner_artifacts(config))
    assert captioner.neighbours == Neighbours(**SET)  # type: ignore[arg-type]
    files = {path: row for path in pictures(ranked) if (row := rows.get(digest_of_file(path))) is not None}
    results = captioner.caption([path.read_bytes() for path in files], explain=True)
    for row, result in zip(files.values(), results, strict=True):
        assert row["caption"] == result.caption and row["similarity"] >= 0
        assert row["log_probability"] == pytest.approx(result.log_probability, abs=1e-3)
        assert result.supporting is not None and len(result.supporting) == 3
        assert all(one.captions and 0 <= one.support <= 1 for one in result.supporting)
    plain = captioner.caption([path.read_bytes() for path in files], neighbours=False)
    assert [item.caption for item in plain] != [item.caption for item in results]
    with pytest.raises(ValueError, match="none rank these captions"):
        captioner.caption([next(iter(files)).read_bytes()], neighbours=False, explain=True)


def test_supporting_pictures_are_training_pictures_with_these_captions(ranked: Path) -> None:
    found = artifacts(config_of(ranked))
    table = pq.read_table(found["ingest"].path / "manifest.parquet").to_pylist()
    captions = {row["digest"]: {text.lower().rstrip(" .") for text in row["captions"]} for row in table}
    digests = read_remembered(found["remember"].path)
    assert {row["digest"] for row in table if row["split"] == "train"} == set(digests)
    captioner = make_captioner(config_of(ranked), captioner_artifacts(config_of(ranked)))
    (result,) = captioner.caption([pictures(ranked)[0].read_bytes()], explain=True)
    for one in result.supporting or []:
        assert {text.rstrip(" .") for text in one.captions} <= captions[digests[one.picture]]


def test_off_leaves_the_captions_out_of_the_model(ranked: Path, tmp_path: Path) -> None:
    config = config_of(ranked, evaluation__neighbours=False)  # as YAML reads `off`
    assert config.evaluation.neighbours == "off" and not config.evaluation.decoding().neighbours
    register_all(config)
    assert Memory.load(artifacts(config, "remember")["remember"].path).matcher is not None
    captioner = make_captioner(config, captioner_artifacts(config))
    captioner.save(tmp_path)
    with np.load(tmp_path / "memory.npz") as saved:
        assert set(saved) == {"grid", "mean", "basis", "vectors"}
    assert Captioner.load(tmp_path).neighbours is None
    record = read_scores(artifacts(config)["evaluate"].path)
    assert record["neighbours"] == "evaluation.neighbours is off"
    assert record["copied"]  # a baseline needs no consent of the model's


@pytest.mark.parametrize(
    ("change", "ran"),
    [
        ({"memory__pictures": 50}, {"remember", "evaluate"}),
        ({"evaluation__neighbours": {"factor": 4.0}}, {"evaluate"}),
    ],
)
def test_settings_of_the_memory_train_nothing(finished_copy: Path, change: dict[str, object], ran: set[str]) -> None:
    assert {name for name, state in run_all(small(finished_copy, **change)).items() if state != "fresh"} == ran


def test_a_memory_is_bounded_and_says_so(finished_copy: Path) -> None:
    config = small(finished_copy, memory__pictures=20)
    run_all(config)
    found = artifacts(config, "remember")["remember"]
    assert Memory.load(found.path).vectors.shape[0] == 20 and len(read_remembered(found.path)) == 20
    assert found.ledger.notes[0].endswith("pictures are left out: memory.pictures is 20")


def test_a_matcher_is_trained_if_there_are_enough_captions(
    finished_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"memory__pictures": 20, "evaluation__beam": 4, "evaluation__neighbours": {"match": 3.0}}
    config = small(finished_copy, **settings)
    run_all(config)
    found = artifacts(config, "evaluate")
    captions = len(Memory.load(found["remember"].path).captions.lengths)  # type: ignore[union-attr]
    assert found["remember"].ledger.notes[-1].startswith(f"no matcher: {captions} captions of 20 pictures are too few")
    assert read_scores(found["evaluate"].path)["neighbours"]["match"] == 0  # type: ignore[index]
    assert "without a matcher" in found["evaluate"].ledger.notes[0]
    train_any_matcher(monkeypatch)
    config = small(finished_copy, **settings, memory__joined=False)
    run_all(config)
    found = artifacts(config, "evaluate")
    assert Memory.load(found["remember"].path).matcher is not None
    assert read_scores(found["evaluate"].path)["neighbours"]["match"] == 3.0  # type: ignore[index]


def test_a_removed_picture_leaves_the_next_memory(tmp_path: Path) -> None:
    table_file = tmp_path / "data" / "captions.csv"
    table_file.parent.mkdir()
    config = tabled(table_file.parent, 40, tmp_path / "workspace")
    run_all(config)
    (gone, *_) = read_remembered(artifacts(config, "remember")["remember"].path)
    table = pq.read_table(artifacts(config, "ingest")["ingest"].path / "manifest.parquet").to_pylist()
    (name,) = [row["name"] for row in table if row["digest"] == gone]
    (table_file.parent / name).unlink()
    table_file.write_text("\n".join(line for line in table_file.read_text().splitlines() if not line.startswith(name)))
    assert "remember" in {status.stage.name for status in plan(config) if not status.fresh}
    run_all(config)
    assert gone not in read_remembered(artifacts(config, "remember")["remember"].path)


def test_copying_is_scored_beside_the_model_and_a_model_that_is_no_better_is_reported(
    ranked: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    found = artifacts(config_of(ranked))["evaluate"]
    record = read_scores(found.path)
    corpus = list(read_predictions(found.path / PREDICTIONS, "copied").values())
    assert record["copied"]["bleu4"]["value"] == pytest.approx(measure("bleu", corpus)["bleu4"])
    client = tracking.connect(ranked)
    version = client.get_model_version("small", "1")
    assert "copied from similar pictures" in str(version.description)
    children = client.search_runs(
        [client.get_run(str(version.run_id)).info.experiment_id], f"tags.`mlflow.parentRunId` = '{version.run_id}'"
    )
    values = [child.data.metrics["copied_bleu4"] for child in children]
    assert pytest.approx(record["copied"]["bleu4"]["value"]) in values
    untrained = small(tmp_path / "workspace", training__epochs=1, training__learning_rate=1e-6)
    register_all(untrained)
    assert no_better_than_copied(read_scores(artifacts(untrained)["evaluate"].path), "bleu4")
    assert "no better than copying captions of similar pictures" in caplog.text


def test_rows_have_neighbours_on_request_only(ranked: Path) -> None:
    captioner = make_captioner(config_of(ranked), captioner_artifacts(config_of(ranked)))
    photograph = pictures(ranked)[0].read_bytes()
    (plain,), (explained,) = (
        answer(captioner, [photograph], {"return_neighbours": wanted}) for wanted in (False, True)
    )
    assert plain["neighbours"] == [] and len(explained["neighbours"]) == 3
    assert {**plain, "neighbours": []} == {**explained, "neighbours": []}
    supports = [one["support"] for one in explained["neighbours"]]
    assert all(one["captions"] for one in explained["neighbours"]) and all(0 <= value <= 1 for value in supports)


def test_the_report_shows_the_pictures_that_support_a_caption(ranked: Path) -> None:
    report = artifacts(config_of(ranked))["register"].path / REPORT
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', report.read_text(encoding="utf-8"))
    assert found is not None
    data = json.loads(found.group(1))
    assert {item["name"] for item in data["copied"]} >= {"BLEU-4"} and "most similar training pictures" in data[
        "neighbours"
    ]
    for card in data["cards"].values():
        assert len(card["neighbours"]) == 3
        assert all(one["photograph"] and one["captions"] for one in card["neighbours"])


def test_a_gate_refuses_what_is_worse_than_copying() -> None:
    said = {str(number): ScoredCaption(["a", "cat"], [[f"dog{number}", "runs", "fast"]]) for number in range(40)}
    copied = {name: replace(item, caption=item.references[0]) for name, item in said.items()}
    registry = RegistryConfig(model="any", min_over_copied=1)
    for own, other, refused in ((said, copied, True), (copied, said, False)):
        (result,) = gate_results(registry, own, None, lambda: np.zeros(0, np.bool_), {}, other)
        assert result.name == "min_over_copied" and result.refused == refused
        assert "by copying captions of similar training pictures" in str(result)
