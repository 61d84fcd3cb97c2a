"""Champions: only who is better beyond doubt is promoted; a rollback restores, and no schedule undoes it."""

from __future__ import annotations

import hashlib
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
from tasks.config.stages import RegistryConfig
from tasks.evaluation import caption_and_score as evaluation
from tasks.mlflow_store import tracking
from tasks.mlflow_store.registration_record import REGISTRATION
from tasks.mlflow_store.runs import TRAIN_KEY
from tasks.mlflow_store.versions import default_champion, scores_of
from tasks.registry.promotion import was_rolled_back
from tests.cli import Capture, attend, refused
from tests.support import artifacts, pictures, plan, register_all, run_stage, small

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
    real = evaluation.write_predictions

    def registered(say: Said, **changes: object) -> dict[str, str]:
        def predict(*arguments: Any) -> None:
            real(*arguments)
            path = arguments[-1]
            rows = [{**row, "caption": say(row)} for row in pq.read_table(path).to_pylist()]
            pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)

        monkeypatch.setattr("tasks.evaluation.evaluate_decoder.write_predictions", predict)
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


@pytest.mark.slow
def test_only_who_is_better_beyond_doubt_is_promoted(tmp_path: Path, register: Callable[..., dict[str, str]]) -> None:
    assert register(mostly)["why"] == "version 1 is champion: it is the first"
    worse = register(nothing)
    assert worse["alias"] == "challenger"
    assert "version 2 is challenger: it does not beat version 1: bleu4 0.00" in worse["why"]
    assert " at 95%)" in worse["why"] and "better in 0.0% of resamples" in worse["why"]
    better = register(a_reference)
    assert better["alias"] == "champion" and "better in 100.0% of resamples" in better["why"]
    again = register(a_reference)
    assert again["alias"] == "challenger" and "+0.00 (+0.00 to +0.00 at 95%)" in again["why"]
    assert aliases(tmp_path) == {"champion": 3, "previous": 1, "challenger": 4}


@pytest.mark.slow
def test_how_sure_it_must_be_is_a_setting(tmp_path: Path, register: Callable[..., dict[str, str]]) -> None:
    """Better by a little: beyond doubt for one who asks for little."""
    register(mostly)
    doubted = register(lambda row: "nothing" if row["digest"] < "78" else a_reference(row), registry__certainty=0.999)
    assert doubted["alias"] == "challenger" and "99.9% is required" in doubted["why"]
    workspace = tmp_path / "workspace"
    rule = RegistryConfig(model="small", certainty=0.5, min_pictures=1, few_pictures=0, max_loss=0)
    decision = promote_version(workspace, "models:/small/2", rule, None)
    assert decision.alias == "champion" and aliases(tmp_path)["champion"] == 2


@pytest.mark.slow
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
    assert aliases(tmp_path) == {"champion": 1, "challenger": 4}
    with pytest.raises(AttendError, match="version 1 is its first champion: there is no earlier one to roll back to"):
        roll_back(workspace, "small")
    by_hand = "version 3 is champion: by hand, although it was champion and was rolled back: `attend models promote`"
    assert force_champion(workspace, "models:/small/3").startswith(by_hand)
    assert aliases(tmp_path) == {"champion": 3, "previous": 1, "challenger": 4}
    roll_back(workspace, "small")
    by_hand = "version 3 is champion: by hand, although it was rolled back to version 1"
    assert force_champion(workspace, "models:/small/3") == by_hand
    roll_back(workspace, "small")
    assert aliases(tmp_path) == {"champion": 1, "challenger": 4}


@pytest.mark.slow
def test_versions_of_one_training_keep_what_each_was_scored_by(
    tmp_path: Path, register: Callable[..., dict[str, str]]
) -> None:
    """They share a run of MLflow."""
    workspace = tmp_path / "workspace"
    register(mostly, training__seed=0)
    register(nothing, training__seed=0, evaluation__beam=4)
    third = register(a_reference, training__seed=1)
    assert third["alias"] == "champion"
    client = tracking.connect(workspace)
    version = client.get_model_version("small", "1")
    query = f"tags.`mlflow.parentRunId` = '{version.run_id}'"
    runs = client.search_runs([client.get_run(str(version.run_id)).info.experiment_id], query)
    assert sorted(run.data.metrics["bleu1"] > 10 for run in runs) == [False, True]  # neither hides the other's scores
    found = {
        item.score: item
        for item in compare_versions(workspace, ["models:/small/1", "models:/small/3"]).against_first[0].scores
    }
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
    (found,) = compare_versions(workspace, ["models:/small/1", "models:/small@champion"]).against_first
    scores = {item.score: item for item in found.scores}
    assert set(scores) == {"bleu1", "bleu2", "bleu3", "bleu4", "truth"} and scores["bleu4"].second == 100.0
    assert all(" ".join(pair[0].caption) == "nothing" for pair in found.captions.values())
    flags = ["--workspace", str(workspace)]
    code, out, _ = attend(monkeypatch, capsys, "models", "compare", "models:/small/1", "models:/small/2", *flags)
    assert code == 0 and "+100.00" in out and out.count("small/1  nothing") == min(10, len(found.captions))
    code, out, _ = attend(
        monkeypatch, capsys, "models", "compare", "models:/small/1", "models:/small/2", "--json", *flags
    )
    assert len(json.loads(out)["captions"]) == len(found.captions)
    assert "give two versions or more" in refused(monkeypatch, capsys, "models", "compare", "models:/small/1", *flags)
    assert "--page: needs --on CONFIG" in refused(
        monkeypatch, capsys, "models", "compare", "models:/small/1", "models:/small/2", "--page", "c.html", *flags
    )
    line = refused(monkeypatch, capsys, "models", "promote", "models:/small/1", *flags)
    assert "not promoted: version 1 is challenger: it does not beat version 2" in line
    code, out, _ = attend(monkeypatch, capsys, "models", "promote", "models:/small/1", "--force", *flags)
    assert code == 0 and out.startswith(
        "version 1 is champion: by hand, although it does not beat version 2: bleu4 0.00"
    )
    code, out, err = attend(monkeypatch, capsys, "models", "rollback", "small", *flags)
    assert code == 0 and aliases(tmp_path)["champion"] == 2, err
    assert "no such model" in refused(monkeypatch, capsys, "models", "promote", "models:/small/9", *flags)
    assert "a rollback restores the champion before" in refused(
        monkeypatch, capsys, "models", "rollback", "models:/small/2", *flags
    )
    assert refused(monkeypatch, capsys, "models", "rollback", "smal", *flags)


def test_versions_are_compared_by_the_metrics_that_all_have(
    tmp_path: Path, register: Callable[..., dict[str, str]]
) -> None:
    register(mostly)
    register(nothing, evaluation__metrics=["meteor", "bleu"])
    register(a_reference, evaluation__metrics=["rouge", "bleu"])
    found = compare_versions(tmp_path / "workspace", [f"models:/small/{number}" for number in (1, 2, 3)])
    assert [[item.score for item in one.scores] for one in found.against_first] == [
        ["bleu1", "bleu2", "bleu3", "bleu4"]
    ] * 2
    first, second, third = next(iter(found.captions.values()))
    assert first.references == second.references == third.references and " ".join(second.caption) == "nothing"


def test_versions_scored_on_different_pictures_are_not_compared(
    tmp_path: Path, register: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    register(mostly)
    other = register(nothing, evaluation__split="dev")
    # The champion was scored anew on those, from photographs, by its own real captions.
    assert other["alias"] == "challenger"
    with pytest.raises(AttendError, match="were scored on different pictures: add --on CONFIG"):
        compare_versions(workspace, ["models:/small/1", "models:/small/2"])
    monkeypatch.undo()
    versions = ["models:/small/1", "models:/small/2"]
    (found,) = comparison.compare_versions(workspace, versions, config_of(tmp_path)).against_first
    assert {item.score for item in found.scores} >= {"bleu4"} and len(found.captions) > 3


def test_doctored_predictions_promote_nobody(tmp_path: Path, register: Callable[..., dict[str, str]]) -> None:
    """Neither a challenger's, in the workspace, nor a champion's, in MLflow."""
    workspace = tmp_path / "workspace"
    register(mostly)
    register(nothing)
    config = config_of(tmp_path, training__seed=1)
    shutil.rmtree(artifacts(config)["register"].path)
    scored = artifacts(config)["evaluate"].path
    path = scored / "predictions.parquet"
    whole = path.read_bytes()
    rows = [{**row, "caption": a_reference(row)} for row in pq.read_table(path).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)
    forged = path.read_bytes()
    # A file of the same size passes until it is read; so that it does, the ledger is forged as well in the second try.
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(AttendError, match="does not match its digest: not registered: run again"):
        run_stage(config, "register")
    assert plan(config, read="suspects")[-2].state == "damaged"  # the next run evaluates again
    path.write_bytes(forged)
    ledger = json.loads((scored / "ledger.json").read_text())
    ledger["files"]["predictions.parquet"] = {"sha256": hashlib.sha256(forged).hexdigest(), "size": len(forged)}
    (scored / "ledger.json").write_text(json.dumps(ledger))
    with pytest.raises(AttendError, match=r"does not give the scores in scores.json \(bleu1\): not registered"):
        run_stage(config, "register")
    (stored,) = [
        path
        for path in workspace.glob("mlartifacts/**/predictions.parquet")
        if str(tracking.connect(workspace).get_model_version("small", "1").run_id) in path.parts
    ]
    stored.write_bytes(forged)
    with pytest.raises(AttendError, match="its run has no captions"):
        compare_versions(workspace, ["models:/small/1", "models:/small/2"])
    assert aliases(tmp_path)["champion"] == 1


def test_few_pictures_decide_nothing(tmp_path: Path, register: Callable[..., dict[str, str]]) -> None:
    """A bootstrap of one picture is certain of everything."""
    register(nothing)
    register(a_reference, registry__min_pictures=1000)
    told_second = told(config_of(tmp_path, training__seed=1, registry__min_pictures=1000))
    assert told_second["alias"] == "challenger"
    assert " pictures cannot decide, 1000 are required (registry.min_pictures): hold out more" in told_second["why"]
    assert aliases(tmp_path)["champion"] == 1
    assert force_champion(tmp_path / "workspace", "models:/small/2")


def test_a_score_that_is_0_for_both_decides_nothing(tmp_path: Path, register: Callable[..., dict[str, str]]) -> None:
    register(nothing)
    why = register(lambda row: a_reference(row).split()[-1])["why"]
    assert "version 2 is challenger: bleu4 is 0 for both and cannot decide: set registry.promote_on to" in why


def test_scores_of_training_pictures_replace_no_champion(
    tmp_path: Path, register: Callable[..., dict[str, str]]
) -> None:
    first = register(a_reference, evaluation__split="train")
    assert first["alias"] == "champion" and "although its scores are of pictures it was trained on" in first["why"]
    version = tracking.connect(tmp_path / "workspace").get_model_version("small", "1")
    assert "training pictures, captioned free-running" in str(version.description)
    assert "held-out" not in str(version.description)
    second = register(a_reference, evaluation__split="train")
    assert second["alias"] == "challenger" and "its scores are of pictures it was trained on" in second["why"]
    assert register(a_reference)["alias"] == "champion"  # the first captions these pictures now, and scores less


def test_how_a_champion_is_chosen_makes_no_other_version(
    tmp_path: Path, register: Callable[..., dict[str, str]]
) -> None:
    register(mostly)
    config = config_of(tmp_path, training__seed=0, registry__certainty=0.8, registry__promote_on="bleu1")
    assert run_stage(config, "register").fresh
    shutil.rmtree(artifacts(config)["register"].path)
    renamed = config_of(tmp_path, training__seed=0, registry={"model": "small", "min_pictures": 1}, name="other")
    assert set(register_all(renamed).values()) <= {"fresh", "missing"} and told(renamed)["version"] == "1"


def test_commands_without_a_model_use_the_one_promoted_to_last(
    tmp_path: Path, register: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """And not the one that was touched last: by a refused challenger, or by another program."""
    workspace = tmp_path / "workspace"
    register(nothing)
    register(mostly, registry={"model": "second", "min_pictures": 1})
    register(nothing, registry={"model": "small", "min_pictures": 1})  # refused
    client = tracking.connect(workspace)
    client.create_registered_model("theirs")
    client.set_registered_model_tag("small", "touched", "now")
    assert default_champion(client, workspace) == "models:/second@champion"
    flags = ["--workspace", str(workspace)]
    assert attend(monkeypatch, capsys, "models", "use", "small", *flags)[1] == "in use: models:/small@champion\n"
    assert default_champion(client, workspace) == "models:/small@champion"
    assert "theirs: no model of this name has a champion" in refused(
        monkeypatch, capsys, "models", "use", "theirs", *flags
    )
    attend(monkeypatch, capsys, "models", "use", *flags)
    assert default_champion(client, workspace) == "models:/second@champion"


def test_a_version_of_unknown_training_is_rolled_back_alone(
    tmp_path: Path, register: Callable[..., dict[str, str]]
) -> None:
    for say in (nothing, mostly, a_reference):
        register(say)
    client = tracking.connect(tmp_path / "workspace")
    for version in ("2", "3"):  # as another program registers them
        client.delete_model_version_tag("small", version, TRAIN_KEY)
    roll_back(tmp_path / "workspace", "small")
    assert not was_rolled_back(client, client.get_model_version("small", "2"))
    assert was_rolled_back(client, client.get_model_version("small", "3"))


def test_pictures_that_are_in_training_too_are_reported_wherever_scores_are(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    generated = small(tmp_path / "drawn", data__pictures=40)
    run_stage(generated, "ingest")
    lines = []
    for number, path in enumerate(pictures(tmp_path / "drawn")):
        split = ("train", "dev", "test")[0 if number < 24 else 1 if number < 30 else 2]
        lines.append({"file_name": path.name, "text": "a shape", "split": split})
    folder.mkdir()
    for path in pictures(tmp_path / "drawn"):
        shutil.copyfile(path, folder / path.name)
    for train, test in zip(lines[:3], lines[30:33], strict=True):  # three test pictures are train pictures
        shutil.copyfile(folder / train["file_name"], folder / test["file_name"])
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = small(tmp_path / "workspace", data={"adapter": "imagefolder", "path": folder}, training__epochs=1)
    register_all(config)
    scores = json.loads((artifacts(config)["evaluate"].path / "scores.json").read_text())
    assert scores["also_in_training"] == 3
    sentence = "3 of these pictures are identical to pictures of the train split: the scores are too good"
    assert sentence in str(tracking.connect(config.workspace).get_model_version("small", "1").description)
    (report,) = config.workspace.glob("mlartifacts/**/report.html")
    assert sentence in report.read_text()
