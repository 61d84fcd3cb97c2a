"""The confidence of captions: honest on captions it was not fitted to, low for pictures unlike any, in every answer."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from flows.commands.cli import app
from models.captioner import Captioner
from models.confidence import FEATURES, Confidence, features_of
from models.neighbours import pool
from models.search import Caption, decode, teacher_force
from tasks.captioner.bundle import make_captioner
from tasks.config.schema import Config
from tasks.evaluation.calibration import evaluate_confidence, fit, halves, why_not
from tasks.evaluation.caption_and_score import FITTED_TO, PREDICTIONS
from tasks.evaluation.score_record import confidence_lines, confidence_metrics, read_scores
from tasks.grids.index import open_grids
from tasks.metrics import ScoredCaption
from tasks.mlflow_store import tracking
from tests.support import artifacts, captioner_artifacts, pictures, register_all, run_all, trained


def config_of(workspace: Path, **changes: object) -> Config:
    """A config whose captions are right of some pictures and wrong of others."""
    shares = {"data__pictures": 400, "data__test_share": 0.3, "data__dev_share": 0.3, "training__epochs": 8}
    return trained(workspace, **{**shares, **changes})


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("confidence") / "workspace"
    register_all(config_of(workspace))
    return workspace


def planted(count: int, seed: int = 0) -> tuple[Any, Any]:
    """Features of captions, and which are acceptable: by the third feature alone."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, len(FEATURES)))
    features[:, FEATURES.index("distance")] = 0.5 + 0.1 * np.abs(features[:, FEATURES.index("distance")])
    probability = 1 / (1 + np.exp(-2 * features[:, FEATURES.index("gain")]))
    return features, generator.random(count) < probability


def test_a_fitted_confidence_is_calibrated_on_other_pictures_and_ranks() -> None:
    fitted = fit(*planted(2000))
    features, acceptable = planted(2000, seed=1)
    confidence = fitted(features.astype(np.float32)).astype(np.float64)
    scores = evaluate_confidence(confidence, features[:, 0], acceptable, "it is")
    assert scores["calibration_error"] < 0.04 and scores["auroc"] > 0.8
    assert scores["ranking"]["confidence"] < scores["ranking"]["log_probability"] and scores["gain"][0] > 0.1
    assert scores["ranking"]["random"] == pytest.approx(1 - scores["share"])
    assert sum(number for *_, number in scores["bins"]) == scores["pictures"] == 2000
    assert scores["curve"][-1] == pytest.approx([1, 1 - scores["share"], 1 - scores["share"]], abs=1e-6)


def test_features_that_say_nothing_get_no_weight() -> None:
    features, _ = planted(300)
    acceptable = features[:, 0] + np.random.default_rng(2).normal(size=300) > 0
    assert fit(features, acceptable).weights[1:].tolist() == [0, 0, 0, 0]


def test_far_from_all_that_is_known_the_confidence_falls() -> None:
    fitted = fit(*planted(500))
    rows = np.array([[0.0, 0.0, 0.0, 3.0, distance] for distance in (0.5, 0.6, 0.9, 1.2, 2.0)], np.float32)
    values = fitted(rows).tolist()
    assert values[0] > 0.9 and values == sorted(values, reverse=True) and values[-1] < 0.01


def test_a_random_or_a_perfect_confidence_is_judged_as_such() -> None:
    acceptable = np.arange(1000) % 4 == 0
    perfect = evaluate_confidence(acceptable.astype(float), np.zeros(1000), acceptable, "")
    assert perfect["auroc"] == 1 and perfect["calibration_error"] == 0
    constant = evaluate_confidence(np.full(1000, 0.25), np.zeros(1000), acceptable, "")
    assert constant["calibration_error"] < 0.01 and constant["auroc"] == 0.5  # a constant is calibrated, and no use
    assert constant["gain"] == [0, 0]


def test_too_few_captions_of_a_kind_fit_nothing_and_say_so() -> None:
    assert why_not(np.arange(100) < 50) is None
    assert str(why_not(np.arange(100) < 3)).startswith(
        "3 of 100 captions that it would be fitted to are acceptable, 15"
    )
    assert "are not acceptable" in str(why_not(np.arange(100) < 97))


def test_halves_are_halves_by_the_digest_alone() -> None:
    digests = [str(number) for number in range(101)]
    first = dict(zip(digests, halves(digests), strict=True))
    assert sum(first.values()) == 50
    assert first == dict(zip(digests[::-1], halves(digests[::-1]), strict=True))


def test_dev_is_fitted_to_and_test_is_judged(workspace: Path) -> None:
    found = artifacts(config_of(workspace))["evaluate"]
    scored, fitted_to = (pq.read_table(found.path / name).to_pylist() for name in (PREDICTIONS, FITTED_TO))
    assert {row["digest"] for row in scored}.isdisjoint(row["digest"] for row in fitted_to)
    assert all(0 < row["confidence"] < 1 for row in scored) and all(row["confidence"] is None for row in fitted_to)
    record = read_scores(found.path)
    assert isinstance(scores := record["confidence"], dict) and scores["acceptable"] == "all that it states is true"
    assert "is the probability that it is acceptable: that all that it states is true" in confidence_lines(record)[0]


@pytest.mark.slow
def test_scored_dev_halves_use_the_fit_of_the_other_half(tmp_path: Path) -> None:
    sizes = {"data__pictures": 700, "data__dev_share": 0.5, "training__epochs": 24}
    config = config_of(tmp_path / "workspace", evaluation__split="dev", **sizes)
    run_all(config)
    found = artifacts(config, "evaluate")["evaluate"]
    table = pq.read_table(found.path / PREDICTIONS).to_pylist()
    assert not (found.path / FITTED_TO).exists()
    captioner = make_captioner(config, captioner_artifacts(config))
    assert captioner.confidence is not None
    features = np.array([[row[name] for name in FEATURES] for row in table], np.float32)
    whole = captioner.confidence(features).tolist()
    # The model's own was fitted to both halves, so it differs from what each half was judged by.
    assert max(abs(row["confidence"] - own) for row, own in zip(table, whole, strict=True)) > 1e-4


def test_the_registered_model_says_what_the_evaluation_did(workspace: Path) -> None:
    """Confidence from photographs is that from cached grids, by every way out."""
    import mlflow

    tracking.connect(workspace)
    model = mlflow.pyfunc.load_model("models:/small@champion")
    config = config_of(workspace)
    expected = {
        row["digest"]: row for row in pq.read_table(artifacts(config)["evaluate"].path / PREDICTIONS).to_pylist()
    }
    files = {row["digest"]: path for path in pictures(workspace) if (row := expected.get(_digest(path))) is not None}
    chosen = list(files)[:8]
    rows = model.predict(pd.DataFrame({"image": [files[digest].read_bytes() for digest in chosen]}))
    for digest, row in zip(chosen, rows, strict=True):
        assert row["caption"] == expected[digest]["caption"]
        assert row["confidence"] == pytest.approx(expected[digest]["confidence"], abs=2e-3)
        assert len(row["token_probabilities"]) == len(row["tokens"])
        assert np.log(row["token_probabilities"]).sum() >= row["log_probability"] - 1e-4  # END counts in that
    (grey,) = model.predict(pd.DataFrame({"image": [_plain()]}))
    surer = [row["confidence"] > grey["confidence"] for row in expected.values()]
    assert np.mean(surer) > 0.5  # how many more depends on the processor, whose rounding trains another model


def test_a_word_is_as_likely_as_the_search_found_it(workspace: Path) -> None:
    captioner = make_captioner(config_of(workspace), captioner_artifacts(config_of(workspace)))
    captioner.decoding = replace(captioner.decoding, neighbours=False)  # they may choose another of those found
    grid = captioner.grids([path.read_bytes() for path in pictures(workspace)[:5]])
    start = captioner.steps.start(grid.astype(np.float32))
    found = decode(captioner.steps, start, len(grid), captioner.decoding)
    log_probabilities, _ = teacher_force(captioner.steps, start, [[captions[0].with_end] for captions in found])
    for result, captions, own in zip(captioner.from_grid(grid), found, log_probabilities[:, 0], strict=True):
        assert float(own.sum()) == pytest.approx(captions[0].log_probability, abs=1e-4)
        assert result.token_probabilities == pytest.approx(np.exp(own[: len(result.tokens)]).tolist(), abs=1e-5)


def test_features_do_not_depend_on_the_other_pictures(workspace: Path) -> None:
    config = config_of(workspace)
    found = artifacts(config)
    grids = open_grids(found["extract"], config.machine)
    captioner = make_captioner(config, captioner_artifacts(config))
    digests = list(grids._rows)[:6]
    memory = captioner.memory
    grid = grids.read(digests).astype(np.float32)
    blind = captioner.steps.start(memory.grid[None])
    captions = [[4, 5, 6], [7], [4, 8, 9, 10, 2], [5, 2], [6, 6, 6], [4]]

    def features(rows: list[int]) -> Any:
        chosen = [captions[row] for row in rows]
        log_probabilities, _ = teacher_force(
            captioner.steps, captioner.steps.start(grid[rows]), [[tokens] for tokens in chosen]
        )
        drawn = [
            Caption(tokens, 0.0, False, own[0, : len(tokens)])
            for tokens, own in zip(chosen, log_probabilities, strict=True)
        ]
        distances = memory.look_up(pool(grid[rows]), 1).distances
        return features_of(captioner.steps, blind, distances, np.zeros(len(rows), np.float32), drawn)

    together = features(list(range(6)))
    assert np.allclose(together, np.concatenate([features([row]) for row in range(6)]), atol=1e-4)
    assert np.allclose(memory.look_up(pool(grid), 1).distances, 0, atol=0.9)  # photographs that training saw are near


def test_captions_of_another_search_have_no_confidence_and_say_why(workspace: Path) -> None:
    captioner = make_captioner(config_of(workspace), captioner_artifacts(config_of(workspace)))
    photographs = [path.read_bytes() for path in pictures(workspace)[:3]]
    own = captioner.caption(photographs)
    assert all(result.confidence is not None and result.no_confidence is None for result in own)
    wide = captioner.decoding.beam + 2
    assert captioner.caption(photographs, n_best=wide)[0].confidence is None  # which widens the beam
    same = captioner.caption(photographs, beam=captioner.decoding.beam, n_best=2)
    assert [result.confidence for result in same] == [result.confidence for result in own]
    for other in ({"beam": captioner.decoding.beam + 2}, {"temperature": 0.5}, {"max_length": 7}):
        for result in captioner.caption(photographs, **other):
            assert result.confidence is None and result.caption and result.distance is not None
            assert "it was fitted to captions of" in str(result.no_confidence)
        with pytest.raises(ValueError, match="the captions of this search have no confidence: it was fitted to"):
            captioner.caption(photographs, min_confidence=0.5, **other)


def test_a_confidence_is_saved_and_loaded_whole(tmp_path: Path, workspace: Path) -> None:
    captioner = make_captioner(config_of(workspace), captioner_artifacts(config_of(workspace)))
    captioner.save(tmp_path)
    again = Captioner.load(tmp_path)
    assert captioner.confidence is not None and again.confidence is not None
    features = np.random.default_rng(0).normal(size=(5, len(FEATURES))).astype(np.float32)
    assert np.array_equal(again.confidence(features), captioner.confidence(features))
    assert isinstance(again.confidence, Confidence)


def test_captions_of_little_confidence_are_replaced(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow.exceptions import MlflowException

    captioner = make_captioner(config_of(workspace), captioner_artifacts(config_of(workspace)))
    photographs = [path.read_bytes() for path in pictures(workspace)[:20]]
    plain = captioner.caption(photographs)
    limit = float(np.median([result.confidence for result in plain]))
    for before, after in zip(plain, captioner.caption(photographs, min_confidence=limit, otherwise="?"), strict=True):
        assert before.confidence is not None and after.confidence == pytest.approx(before.confidence, abs=1e-6)
        if before.confidence < limit - 1e-6:
            assert (after.caption, after.tokens, after.alternatives) == ("?", [], [])
        elif before.confidence > limit + 1e-6:
            assert after == before

    import mlflow

    tracking.connect(workspace)
    model = mlflow.pyfunc.load_model("models:/small@champion")
    data = pd.DataFrame({"image": photographs[:2]})
    rows = model.predict(data, params={"min_confidence": 1.0, "otherwise": "not sure"})
    assert [row["caption"] for row in rows] == ["not sure"] * 2 and all(0 < row["confidence"] < 1 for row in rows)
    with pytest.raises(MlflowException, match=r"min_confidence is 1\.5: give 0"):
        model.predict(data, params={"min_confidence": 1.5})

    out, folder = tmp_path / "captions.csv", pictures(workspace)[0].parent
    for arguments in (["--min-confidence", "1", "--otherwise", "not sure"], []):
        app(["caption", str(folder / "*_00000*.png"), "--out", str(out), "--workspace", str(workspace), *arguments],
            standalone_mode=False)  # fmt: skip
        with out.open(encoding="utf-8", newline="") as file:
            said = list(csv.DictReader(file))
        assert all(0 < float(row["confidence"]) < 1 for row in said)
        assert ({row["text"] for row in said} == {"not sure"}) == bool(arguments)
    capsys.readouterr()
    app(["caption", str(pictures(workspace)[0]), "--json", "--workspace", str(workspace)], standalone_mode=False)
    assert 0 < json.loads(capsys.readouterr().out)[0]["confidence"] < 1


def test_scores_card_and_mlflow_tell_how_good_it_is(workspace: Path) -> None:
    client = tracking.connect(workspace)
    version = client.get_model_version("small", "1")
    assert "A caption's confidence is the probability" in str(version.description)
    record = read_scores(artifacts(config_of(workspace))["evaluate"].path)
    figures = confidence_metrics(record)
    assert set(figures) >= {"confidence_calibration_error", "confidence_auroc", "confidence_risk_coverage_random"}
    run = client.get_run(str(version.run_id))
    (child,) = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    assert child.data.metrics["confidence_auroc"] == pytest.approx(figures["confidence_auroc"])


def test_a_model_without_confidence_says_so(tmp_path: Path) -> None:
    config = trained(tmp_path / "workspace", training__epochs=1)
    run_all(config)
    found = artifacts(config, "evaluate")["evaluate"]
    assert "captions have no confidence" in found.ledger.notes[1]
    captioner = make_captioner(config, captioner_artifacts(config))
    (result,) = captioner.caption([pictures(config.workspace)[0].read_bytes()])
    assert result.confidence is None and result.token_probabilities
    with pytest.raises(ValueError, match="the captions of this model have no confidence"):
        captioner.caption([b""] * 1 + [pictures(config.workspace)[0].read_bytes()], min_confidence=0.5)


def test_acceptable_is_a_cider_where_no_facts_are_known() -> None:
    from tasks.evaluation.calibration import describe_acceptable, is_acceptable

    captions = [
        ScoredCaption(text.split(), [["a", "dog", "runs", "far"], ["a", "dog", "runs"], ["one", "cat"]])
        for text in ("a dog runs far", "a dog runs", "blue boats", "cats")
    ] + [ScoredCaption(["x"], [["other", "things", str(number)]]) for number in range(6)]
    assert is_acceptable(captions, 50).tolist()[:4] == [True, True, False, False]
    assert describe_acceptable(captions, 50) == "its CIDEr-D is 50 or more"


def _digest(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def _plain() -> bytes:
    """A picture of nothing."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (48, 48), (250, 20, 250)).save(file, "PNG")
    return file.getvalue()
