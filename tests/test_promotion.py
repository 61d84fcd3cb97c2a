"""Champions: only who is better beyond doubt is promoted; a rollback restores, and no schedule undoes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.registered import compare as comparison
from flows.registered.compare import compare_versions, force_champion, promote_version, roll_back
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.evaluation import caption_and_score as evaluation
from tasks.registry import tracking
from tasks.registry.registration_record import REGISTRATION
from tasks.registry.versions import scores_of
from tests.support import artifacts, register_all, small
from tests.test_cli import attend, refused

Said = Callable[[dict[str, Any]], str]


def a_reference(row: dict[str, Any]) -> str:
    return str(row["references"][0])


def nothing(row: dict[str, Any]) -> str:
    return "nothing"


def mostly(row: dict[str, Any]) -> str:
    return "nothing" if row["digest"] < "8" else a_reference(row)


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Registers another version whose captions are as told; what came of it."""
    seeds = iter(range(100))
    real = evaluation.predict

    def registered(say: Said, **changes: object) -> dict[str, str]:
        def predict(*arguments: Any) -> None:
            real(*arguments)
            path = arguments[-1]
            rows = [{**row, "caption": say(row)} for row in pq.read_table(path).to_pylist()]
            pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)

        monkeypatch.setattr(evaluation, "predict", predict)
        changes.setdefault("training__seed", next(seeds))
        config = config_of(tmp_path, **changes)
        register_all(config)
        return told(config)

    return registered


def config_of(tmp_path: Path, **changes: object) -> Config:
    return small(tmp_path / "workspace", data__pictures=120, data__test_share=0.4, **{"training__epochs": 1, **changes})


def told(config: Config) -> dict[str, str]:
    found: dict[str, str] = json.loads((artifacts(config)["register"].path / REGISTRATION).read_text())
    return found


def aliases(tmp_path: Path) -> dict[str, int]:
    client = tracking.connect(tmp_path / "workspace")
    return {name: int(version) for name, version in client.get_registered_model("small").aliases.items()}


def test_only_who_is_better_beyond_doubt_is_promoted(tmp_path: Path, register: Callable[..., dict[str, str]]) -> None:
    assert register(mostly)["why"] == "version 1 is champion: the first"
    worse = register(nothing)
    assert (
        worse["alias"] == "challenger"
        and "version 2 is challenger: it does not beat version 1: bleu4 0.00" in worse["why"]
    )
    assert " at 95%)" in worse["why"] and "better in 0.0% of resamples" in worse["why"]
    better = register(a_reference)
    assert better["alias"] == "champion" and "better in 100.0% of resamples" in better["why"]
    again = register(a_reference)
    assert again["alias"] == "challenger" and "+0.00 (+0.00 to +0.00 at 95%)" in again["why"]
    assert aliases(tmp_path) == {"champion": 3, "previous": 1, "challenger": 4}


def test_how_sure_it_must_be_is_a_setting(tmp_path: Path, register: Callable[..., dict[str, str]]) -> None:
    """Better by a little: beyond doubt for one who asks for little."""
    register(mostly)
    doubted = register(lambda row: "nothing" if row["digest"] < "78" else a_reference(row), registry__certainty=0.999)
    assert doubted["alias"] == "challenger" and "99.9% is required" in doubted["why"]
    workspace = tmp_path / "workspace"
    decision = promote_version(workspace, "models:/small/2", "bleu4", 0.5, None)
    assert decision.promoted and aliases(tmp_path)["champion"] == 2


def test_a_rollback_restores_and_is_not_undone_by_the_next_run(
    tmp_path: Path, register: Callable[..., dict[str, str]]
) -> None:
    workspace = tmp_path / "workspace"
    for say in (nothing, mostly, a_reference):
        register(say)
    assert aliases(tmp_path) == {"champion": 3, "previous": 2}
    assert roll_back(workspace, "small") == "small: version 2 is champion again, version 3 was rolled back"
    assert aliases(tmp_path) == {"champion": 2, "previous": 1}
    config = config_of(tmp_path, training__seed=2)
    shutil.rmtree(artifacts(config)["register"].path)
    register_all(config)  # as a schedule would, whose ledger was lost
    assert told(config)["alias"] == "challenger" and "was rolled back" in told(config)["why"]
    assert aliases(tmp_path)["champion"] == 2
    # Other settings of the evaluation make another version of the same training.
    again = register(a_reference, training__seed=2, evaluation__length_normalisation=0.5)
    assert int(again["version"]) == 4 and again["alias"] == "challenger" and "was rolled back" in again["why"]
    roll_back(workspace, "small")
    assert aliases(tmp_path) == {"champion": 1}
    with pytest.raises(AttendError, match="version 1 is its first champion: there is no earlier one to roll back to"):
        roll_back(workspace, "small")
    assert force_champion(workspace, "models:/small/3") == "version 3 is champion: by hand"
    assert aliases(tmp_path) == {"champion": 3, "previous": 1}
    roll_back(workspace, "small")
    assert aliases(tmp_path) == {"champion": 1}


def test_versions_of_one_training_keep_what_each_was_scored_by(
    tmp_path: Path, register: Callable[..., dict[str, str]]
) -> None:
    """They share a run of MLflow."""
    workspace = tmp_path / "workspace"
    register(mostly, training__seed=0)
    register(nothing, training__seed=0, evaluation__beam=4)
    third = register(a_reference, training__seed=1)
    assert third["alias"] == "champion"
    version = tracking.connect(workspace).get_model_version("small", "1")
    found = {item.score: item for item in compare_versions(workspace, "models:/small/1", "models:/small/3").scores}
    assert found["bleu4"].first == pytest.approx(scores_of(version)["bleu4"]) and found["bleu4"].first > 10
    assert f"bleu4 100.00 against {found['bleu4'].first:.2f}" in third["why"]


def test_versions_side_by_side(
    tmp_path: Path,
    register: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workspace = tmp_path / "workspace"
    register(nothing)
    register(a_reference)
    found = compare_versions(workspace, "models:/small/1", "models:/small@champion")
    scores = {item.score: item for item in found.scores}
    assert set(scores) == {"bleu1", "bleu2", "bleu3", "bleu4", "truth"} and scores["bleu4"].second == 100.0
    assert all(" ".join(pair[0].caption) == "nothing" for pair in found.captions.values())
    place = ["--workspace", str(workspace)]
    code, out, _ = attend(monkeypatch, capsys, "compare", "models:/small/1", "models:/small/2", *place)
    assert code == 0 and "+100.00" in out and out.count("first:  nothing") == min(10, len(found.captions))
    code, out, _ = attend(monkeypatch, capsys, "compare", "models:/small/1", "models:/small/2", "--json", *place)
    assert len(json.loads(out)["captions"]) == len(found.captions)
    line = refused(monkeypatch, capsys, "promote", "models:/small/1", *place)
    assert "not promoted: version 1 is challenger: it does not beat version 2" in line
    code, out, _ = attend(monkeypatch, capsys, "promote", "models:/small/1", "--force", *place)
    assert code == 0 and out.strip() == "version 1 is champion: by hand"
    code, out, err = attend(monkeypatch, capsys, "rollback", "small", *place)
    assert code == 0 and aliases(tmp_path)["champion"] == 2, err
    assert "no such model" in refused(monkeypatch, capsys, "promote", "models:/small/9", *place)
    assert "a rollback restores the champion before" in refused(
        monkeypatch, capsys, "rollback", "models:/small/2", *place
    )
    assert refused(monkeypatch, capsys, "rollback", "smal", *place)


def test_versions_scored_on_different_pictures_are_not_compared(
    tmp_path: Path, register: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    register(mostly)
    other = register(nothing, evaluation__split="dev")
    # The champion was scored anew on those, from photographs, by its own real captions.
    assert other["alias"] == "challenger"
    with pytest.raises(AttendError, match="were scored on different pictures or settings: add --on CONFIG"):
        compare_versions(workspace, "models:/small/1", "models:/small/2")
    monkeypatch.undo()
    found = comparison.compare_versions(workspace, "models:/small/1", "models:/small/2", config_of(tmp_path))
    assert {item.score for item in found.scores} >= {"bleu4"} and len(found.captions) > 3
