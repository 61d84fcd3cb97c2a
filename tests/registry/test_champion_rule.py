"""The rule that decides who is champion: each of its sentences, and that it is the same for every way to ask it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.registered.evaluate import evaluate_registered
from tasks.config.stages import RegistryConfig
from tasks.evaluation import caption_and_score as evaluation
from tasks.metrics import ScoredCaption
from tasks.metrics.bootstrap import ScoreComparison
from tasks.mlflow_store import tracking
from tasks.mlflow_store.registration_record import REGISTRATION
from tasks.registry.champion_rule import Candidate, Decision, Match, decide, grown
from tasks.registry.comparison import ModelComparison, side_by_side
from tests.support import artifacts, register_all, small

RULE = RegistryConfig(model="m", promote_on="cider", certainty=0.95, min_pictures=30, few_pictures=200, max_loss=0.2)
VERSION = Candidate("version 2")
MORE = "20 more pictures"


def match(
    first: float,
    second: float,
    low: float,
    better: float,
    pictures: int = 47,
    grown: str | None = None,
    left_out: int = 0,
) -> Match:
    """The champion with `first`, a version with `second`, whose difference is at least `low` at 95 %."""
    item = ScoredCaption(["a", "dog"], [["a", "dog"]])
    scores = [ScoreComparison("cider", first, second, (low, 2 * (second - first) - low), better)]
    captions = {str(number): (item, item) for number in range(pictures)}
    return Match("version 1", ModelComparison(captions, scores, left_out), grown)


def test_the_first_becomes_champion_whatever_speaks_against_it() -> None:
    assert decide(RULE, VERSION, None) == Decision("champion", "version 2 is champion: it is the first", [])
    poor = Candidate("version 1", ["all have the same caption"], trained_on_scored=True)
    decision = decide(RULE, poor, None)
    assert decision.alias == "champion" and len(decision.warnings) == 2
    assert decision.why.startswith("version 1 is champion: it is the first, although all have the same caption; its")


@pytest.mark.parametrize("pictures", [47, 1000])
def test_a_significantly_better_version_wins(pictures: int) -> None:
    assert decide(RULE, VERSION, match(30, 34, 0.1, 0.95, pictures)).alias == "champion"
    decision = decide(RULE, VERSION, match(30, 34, -0.1, 0.94, pictures))
    assert decision.alias == "challenger" and decision.why == (
        "version 2 is challenger: it does not beat version 1: cider 34.00 against 30.00, +4.00 (-0.10 to +8.10 at 95%), "
        "better in 94.0% of resamples; 95.0% is required"
    )


def test_with_few_pictures_more_training_data_wins_if_not_worse() -> None:
    decision = decide(RULE, VERSION, match(30, 30.5, -5.9, 0.6, grown=MORE))
    assert decision.alias == "champion" and "it was trained on 20 more pictures and is not worse than" in decision.why
    assert "with 47 pictures, registry.max_loss allows a loss of 6.00" in decision.why
    decision = decide(RULE, VERSION, match(30, 30.5, -6.1, 0.6, grown=MORE))
    assert decision.alias == "challenger" and "20 more pictures, but may be worse than version 1" in decision.why
    for other in (match(30, 30.5, -5.9, 0.6), match(30, 30.5, -5.9, 0.6, pictures=200, grown=MORE)):
        assert decide(RULE, VERSION, other).alias == "challenger"


def test_gates_and_rollbacks_refuse_later_versions_whatever_they_score() -> None:
    better = match(30, 50, 15, 1.0, grown=MORE)
    refused = Candidate("version 2", ["all have the same caption"])
    assert decide(RULE, refused, better).why == "version 2 is challenger: all have the same caption"
    withdrawn = Candidate("version 2", rolled_back=True)
    assert "was rolled back" in decide(RULE, withdrawn, better).why
    assert "pictures it was trained on" in decide(RULE, Candidate("version 2", trained_on_scored=True), better).why


def test_an_undecidable_comparison_is_reported() -> None:
    few = match(30, 50, 15, 1.0, pictures=29, grown=MORE, left_out=11)
    why = decide(RULE, VERSION, few).why
    assert (
        "29 pictures cannot decide (11 more are left out: one of the two versions was trained on them), 30 are" in why
    )
    assert "cider is 0 for both and cannot decide" in decide(RULE, VERSION, match(0, 0, 0, 0, grown=MORE)).why
    other = RULE.model_copy(update={"promote_on": "truth"})
    assert "truth does not apply to these captions" in decide(other, VERSION, match(30, 50, 15, 1.0)).why


def test_only_a_strict_superset_has_grown() -> None:
    before = {"a": 5, "b": 1}
    assert grown(before, {**before, "c": 1, "d": 5}) == "2 more pictures"
    assert grown(before, {"a": 5, "b": 3}) == "2 more captions"
    for now in (before, {"a": 5, "c": 9, "d": 9}, {"a": 4, "b": 9}, {"a": 4, "b": 1, "c": 1}, None):
        assert grown(before, now) is None
    assert grown(None, before) is None


def test_pictures_that_a_version_was_trained_on_are_left_out(tmp_path: Path) -> None:
    rows = [{"digest": name, "caption": "a dog", "references": ["a dog runs"], "facts": None} for name in "abc"]
    for name in ("first", "second"):
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / name)
    found = side_by_side(tmp_path / "first", tmp_path / "second", ("bleu",), {"b", "x"})
    assert set(found.captions) == {"a", "c"} and found.left_out == 1
    assert side_by_side(tmp_path / "first", tmp_path / "second", ("bleu",), set("abc")).scores == []


SCHEMA = pa.schema(
    [("digest", pa.string()), ("caption", pa.string()), ("references", pa.list_(pa.string())), ("facts", pa.string())]
)
Registered = Callable[..., dict[str, str]]


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registered:
    """Register a version whose captions are right for a share of the pictures where they are decoded with a beam."""
    real = evaluation.write_predictions

    beam = 0
    real_rows = evaluation.rows_of

    def rows_of(*arguments: Any) -> Any:
        nonlocal beam
        beam = arguments[-1].beam
        return real_rows(*arguments)

    def predict(*arguments: Any) -> None:
        real(*arguments)
        path = arguments[-1]
        rows = pq.read_table(path).to_pylist()
        for row in rows:
            row["caption"] = str(row["references"][0]) if beam > 1 or row["digest"] < "8" else "nothing"
        pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)

    def registered(**changes: object) -> dict[str, str]:
        settings = {"data__pictures": 120, "data__test_share": 0.4, "training__epochs": 1, **changes}
        config = small(tmp_path / "workspace", **settings)
        register_all(config)
        record: dict[str, str] = json.loads((artifacts(config)["register"].path / REGISTRATION).read_text())
        return record

    monkeypatch.setattr("tasks.evaluation.evaluate_decoder.rows_of", rows_of)
    monkeypatch.setattr("tasks.evaluation.evaluate_decoder.write_predictions", predict)
    return registered


def test_a_version_that_only_searches_better_wins(register: Registered, tmp_path: Path) -> None:
    """The weights are the same: each version is compared by its own search."""
    first = register(evaluation__beam=1)
    second = register(evaluation__beam=3)
    assert (first["version"], second["version"], second["alias"]) == ("1", "2", "champion")
    assert "it beats version 1: bleu4 100.00 against" in second["why"]
    client = tracking.connect(tmp_path / "workspace")
    keys = {client.get_model_version("small", number).tags["attend.train_key"] for number in ("1", "2")}
    assert len(keys) == 1


@pytest.mark.slow
def test_a_champion_captions_new_pictures_with_its_own_search(
    register: Registered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the held-out pictures are others than those it was scored on, whatever search the config sets."""
    searched: list[int] = []
    real = evaluation.score

    def score(*arguments: Any) -> Any:
        searched.append(arguments[-1].beam)
        return real(*arguments)

    register(evaluation__beam=1)
    monkeypatch.setattr("tasks.evaluation.rescore.score", score)
    second = register(evaluation__beam=3, data__pictures=140)
    assert searched == [1] and second["version"] == "2"
    config = small(tmp_path / "workspace", data__pictures=160, data__test_share=0.4, evaluation__beam=5)
    assert "|beam:1|" in evaluate_registered(config, "models:/small/1").scores["signature"] and searched == [1, 1]
