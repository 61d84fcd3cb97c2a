"""The registered model: found again, loaded where this project is not, each version running its own code."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import mlflow
import pandas as pd
import pyarrow.parquet as pq
import pytest
from mlflow.metrics import MetricValue

from flows.commands.old_versions import old_versions
from flows.registered.evaluate import evaluate_registered
from flows.unregistered import log_evaluation
from tasks.captioner import bundle
from tasks.common.errors import AttendError
from tasks.common.source import commit
from tasks.config.schema import Config
from tasks.data.manifest import GENERATED_FOLDER
from tasks.evaluation.coco_files import corpus_of
from tasks.inspection.record import INSPECTION
from tasks.metrics import measure
from tasks.mlflow_store import tracking
from tasks.mlflow_store.catalogue import all_versions
from tasks.mlflow_store.logged_model import load_captioner, log_model
from tasks.mlflow_store.mlflow_pages import mlflow_ui
from tasks.mlflow_store.registration_record import REGISTRATION
from tasks.mlflow_store.runs import check_experiment, get_or_create_experiment, training_log
from tasks.mlflow_store.versions import address_of, registered_models
from tasks.training.outputs import WEIGHTS
from tests.support import (
    HERE,
    artifacts,
    captioner_artifacts,
    give_store,
    pictures,
    plan,
    planned,
    run_stage,
    small,
    trained,
)
from tests.support import register_all as run_all


@pytest.fixture(scope="module")
def workspace(registered: Path) -> Path:
    return registered


def told(config: Config) -> dict[str, str]:
    found: dict[str, str] = json.loads((artifacts(config)["register"].path / REGISTRATION).read_text())
    return found


def outside(workspace: Path, code: str) -> str:
    """Run code in a process that has the installed libraries, but not this project."""
    prelude = f"""
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
sys.path = [place for place in sys.path if place not in ("", {str(HERE)!r})]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__.lower()]
for name in ("models", "tasks", "flows"):
    try:
        __import__(name)
        raise SystemExit(name + " can be imported here: the test says nothing")
    except ImportError:
        pass
import mlflow, pathlib
mlflow.set_tracking_uri("sqlite:///{workspace}/mlflow.db")
pictures = sorted(pathlib.Path({str(workspace)!r}).glob("artifacts/ingest/*/{GENERATED_FOLDER}/*.png"))
"""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MLFLOW_TRACKING_URI")
    }
    done = subprocess.run(
        [sys.executable, "-c", prelude + code],
        cwd=workspace.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_model_captions_without_this_project(workspace: Path) -> None:
    text = outside(
        workspace,
        """
import json
model = mlflow.pyfunc.load_model("models:/small@champion")
rows = model.predict({"image": [path.read_bytes() for path in pictures[:20]]})
print(json.dumps([row["caption"] for row in rows]))
""",
    )
    captioner = registry_captioner(workspace)
    expected = [item.caption for item in captioner.caption([path.read_bytes() for path in pictures(workspace)[:20]])]
    assert json.loads(text.splitlines()[-1]) == expected
    assert len(set(expected)) > 1


def registry_captioner(workspace: Path):  # type: ignore[no-untyped-def]
    config = trained(workspace)
    return bundle.make_captioner(config, captioner_artifacts(config))


@pytest.mark.slow
def test_two_versions_run_their_own_code_in_one_process(workspace: Path, tmp_path: Path) -> None:
    """The second version's code shouts; both are loaded beside a stranger's `models` package."""
    shutil.copytree(bundle.CODE, tmp_path / "code")
    source = tmp_path / "code" / "captioned.py"
    quiet, loud = "caption=texts[0][0],", "caption=texts[0][0].upper(),"
    assert quiet in source.read_text()
    source.write_text(source.read_text().replace(quiet, loud))
    captioner = registry_captioner(workspace)
    bundle.write_bundle(captioner, tmp_path / "bundle", source=tmp_path / "code")
    client = tracking.connect(workspace)
    run_id = client.create_run(get_or_create_experiment(client, workspace, "other")).info.run_id
    address = log_model(run_id, "small.1", {"torch": tmp_path / "bundle"}, captioner)
    text = outside(
        workspace,
        f"""
import types
sys.modules["models"] = types.ModuleType("models")
one = mlflow.pyfunc.load_model("models:/small@champion")
two = mlflow.pyfunc.load_model("{address}")
data = {{"image": [pictures[0].read_bytes()]}}
print(one.predict(data)[0]["caption"]); print(two.predict(data)[0]["caption"]); print(one.predict(data)[0]["caption"])
""",
    )
    first, second, again = text.splitlines()[-3:]
    assert first == again and second == first.upper() and second != first


def test_inputs_in_every_form_and_a_bad_picture_among_good_ones(workspace: Path) -> None:
    import mlflow

    tracking.connect(workspace)
    model = mlflow.pyfunc.load_model("models:/small@champion")
    photograph = pictures(workspace)[0].read_bytes()
    expected = model.predict(pd.DataFrame({"image": [photograph]}))[0]
    assert expected["caption"] and expected["error"] is None and expected["tokens"] == expected["caption"].split()
    inner = model.unwrap_python_model()
    for form in (
        pd.DataFrame({"image": [base64.b64encode(photograph).decode()]}),
        pd.DataFrame({"image": [base64.b64encode(photograph)]}),
        {"image": [photograph]},
        [photograph],
        [base64.b64encode(photograph).decode()],
        [f"data:image/png;base64,{base64.b64encode(photograph).decode()}"],
        [base64.urlsafe_b64encode(photograph).decode().rstrip("=")],
        [base64.encodebytes(photograph).decode()],
        [{"image": photograph}],
    ):
        assert inner.predict(None, form)[0]["caption"] == expected["caption"]
    rows = model.predict(pd.DataFrame({"image": [photograph, b"\xff\xd8 broken", photograph]}))
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert rows[0]["caption"] == rows[2]["caption"] == expected["caption"]


def test_parameters_are_bounded_and_work(workspace: Path) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException

    tracking.connect(workspace)
    model = mlflow.pyfunc.load_model("models:/small@champion")
    data = pd.DataFrame({"image": [pictures(workspace)[0].read_bytes()]})
    (row,) = model.predict(data, params={"beam_size": 2, "n_best": 2, "max_length": 12, "return_attention": True})
    assert 0 < len(row["tokens"]) <= 12 and len(row["alternatives"]) == 1
    assert len(row["attention"]) == len(row["tokens"])
    assert sum(map(sum, row["attention"][0])) == pytest.approx(1.0, abs=1e-5)
    for params in ({"beam_size": 10**8}, {"max_length": -3}, {"n_best": 33}, {"top_k": -1}):
        with pytest.raises(MlflowException, match="give 1 to"):
            model.predict(data, params=params)


def test_the_run_holds_params_curves_scores_files_and_samples(workspace: Path) -> None:
    client = tracking.connect(workspace)
    run = client.get_run(told(trained(workspace))["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["training.learning_rate"] == "0.01"
    assert {"loss", "dev_bleu4", "bleu4", "truth"} <= set(run.data.metrics)
    (scores,) = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    assert scores.data.metrics["bleu4"] == run.data.metrics["bleu4"]
    assert {"bleu4", "truth"} <= set(scores.data.metrics) and scores.info.run_name.startswith("evaluation-")
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")] == list(
        range(1, len(pq.read_table(artifacts(trained(workspace))["train"].path / "history.parquet")) + 1)
    )
    names = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {
        "vocabulary.json",
        "history.parquet",
        "checkpoints",
    } <= names
    (evaluation,) = [name for name in names if name.startswith("evaluation-")]
    kept = {Path(item.path).name for item in client.list_artifacts(run.info.run_id, evaluation)}
    assert kept == {
        "predictions.parquet",
        "scores.json",
        "report.html",
        "pictures.parquet",
        "findings.parquet",
        "inspection.json",
        "inspection.html",
    }


@pytest.mark.slow
def test_a_model_whose_files_were_changed_is_refused(workspace: Path, tmp_path: Path) -> None:
    """By damage to a weight, or by code put into a bundle that keeps the digest of another."""
    captioner = registry_captioner(workspace)
    for name in ("decoder.safetensors", "vocabulary.json", "models/captioner.py", "models/added.py"):
        folder = tmp_path / name.replace("/", "-")
        bundle.write_bundle(captioner, folder)
        content = bytearray((folder / name).read_bytes() if (folder / name).exists() else b"# added\n")
        content[-2] ^= 1
        (folder / name).write_bytes(content)
        code = (
            f"import runpy; from pathlib import Path; folder = Path({str(folder)!r}); "
            "runpy.run_path(str(folder / 'load.py'))['load'](folder)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "do not match the digest that they were registered with" in done.stderr, (name, done.stderr)


def test_registering_again_makes_no_second_version(workspace: Path) -> None:
    """And the data are inspected as they were then, not as those of a champion."""
    config = trained(workspace)
    before, folder = told(config), artifacts(config)["register"].path
    inspection = (folder / INSPECTION).read_bytes()
    shutil.rmtree(folder)
    assert run_stage(config, "register").state != "fresh"
    assert told(config)["version"] == before["version"]
    assert (folder / INSPECTION).read_bytes() == inspection
    client = tracking.connect(workspace)
    assert len(client.search_model_versions("name = 'small'")) == 1
    assert len(client.search_runs([client.get_run(before["run_id"]).info.experiment_id])) == 2  # and its scores


def test_a_champion_scored_on_other_pictures_is_scored_anew(
    tmp_path: Path, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "workspace"
    shutil.copytree(workspace, copy)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{copy}/other.db"
    try:
        # Ranking by neighbours would be fitted to the same pictures for one and to each half for the other.
        run_all(trained(copy, evaluation__neighbours="off"))
        config = trained(copy, evaluation__neighbours="off", evaluation__split="dev")
        run_all(config)
        printed = capsys.readouterr().err
        assert "version 1 was scored on other pictures; it captions these now" in printed
        # The same weights on the same pictures: no better than itself.
        assert told(config)["alias"] == "challenger"
        assert "does not beat version 1: bleu4" in told(config)["why"] and "+0.00" in told(config)["why"]
    finally:
        del os.environ["MLFLOW_TRACKING_URI"]


def test_a_registration_that_the_store_lost_is_made_again(tmp_path: Path, workspace: Path) -> None:
    copy = tmp_path / "photos #1, \u00e9"
    shutil.copytree(workspace, copy)
    (copy / "mlflow.db").unlink()
    status = plan(trained(copy))[-1]
    assert status.state == "damaged" and "models:/small/1 is not in mlflow.db any more" in status.why
    run_stage(trained(copy), "register")
    assert plan(trained(copy))[-1].fresh


@pytest.mark.parametrize("name", ["what?", "%41"])
def test_a_workspace_that_mlflow_cannot_keep_models_in_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(AttendError, match=r"MLflow cannot store models below a path with \? or %: give another path"):
        tracking.check_store(tmp_path / name)


def test_a_server_that_does_not_answer_is_reported_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9/")
    with pytest.raises(AttendError, match=r"MLflow server http://127.0.0.1:9 does not answer") as caught:
        tracking.check_store(tmp_path)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_credentials_in_the_address_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:s%40cret@127.0.0.1:{server.server_port}/base/")
        tracking.check_store(tmp_path)
    assert asked == [("/base/health", f"Basic {base64.b64encode(b'user:s@cret').decode()}")]


def test_a_registry_of_its_own_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    workspace = tmp_path / "workspace"
    give_store(workspace)
    shutil.copytree(workspace, tmp_path / "other")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{tmp_path}/other/mlflow.db")
    tracking.connect(workspace)
    try:
        assert mlflow.get_registry_uri() == f"sqlite:///{tmp_path}/other/mlflow.db"
    finally:
        mlflow.set_registry_uri("")


def test_pages_at_a_port_that_is_taken_are_refused(workspace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AttendError, match=f"--port: {port} is taken by another program: give another port"):
            mlflow_ui(workspace, port)


def test_credentials_are_told_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: "postgresql+psycopg2://user:secret@host/db")
    with pytest.raises(
        AttendError, match=r"models:/x/8: cannot be downloaded from postgresql.psycopg2://host/db"
    ) as caught:
        load_captioner("models:/x/8")
    assert "secret" not in str(caught.value)


def test_a_registered_model_is_scored_from_photographs_once(workspace: Path, tmp_path: Path) -> None:
    """The champion scores on its own pictures what it scored when it was evaluated; the second time it is answered."""
    config = trained(workspace)
    told_scores = json.loads((artifacts(config)["evaluate"].path / "scores.json").read_text())
    client = tracking.connect(workspace)
    found = client.get_experiment_by_name("small")
    assert found is not None
    experiment = found.experiment_id
    before = len(client.search_runs([experiment]))
    first = evaluate_registered(config)
    assert (
        first.scores["scores"] == pytest.approx(told_scores["scores"])
        and first.scores["signature"] == told_scores["signature"]
    )
    assert first.scores["language"] == pytest.approx(told_scores["language"])
    again = evaluate_registered(config, "models:/small/1", tmp_path / "out")
    exported = corpus_of(tmp_path / "out" / "results.json", tmp_path / "out" / "annotations.json")
    assert measure("bleu", exported)["bleu4"] == pytest.approx(first.scores["scores"]["bleu4"])
    assert again.scores["scores"] == pytest.approx(first.scores["scores"])
    runs = client.search_runs([experiment])
    assert len(runs) == before + 1 and {run.info.status for run in runs} == {"FINISHED"}
    with pytest.raises(AttendError, match="models:/small/77: no such model"):
        evaluate_registered(config, "models:/small/77")


def test_mlflow_evaluates_photographs_in_base64(workspace: Path) -> None:
    client = tracking.connect(workspace)
    experiment = get_or_create_experiment(client, workspace, "evaluated")
    photograph = base64.b64encode(pictures(workspace)[0].read_bytes()).decode()
    words = mlflow.metrics.make_metric(
        eval_fn=lambda predictions, targets, metrics: MetricValue(  # noqa: ARG005 -- as MLflow calls it
            aggregate_results={"sum": float(sum(len(text.split()) for text in predictions))}
        ),
        greater_is_better=True,
        name="words",
    )
    model = mlflow.pyfunc.load_model("models:/small@champion")
    (alone,) = model.predict({"image": [photograph]})
    rows = pd.DataFrame({"image": [photograph, photograph], "caption": ["a ring", "a ring"]})
    with mlflow.start_run(experiment_id=experiment):
        found = mlflow.models.evaluate(  # type: ignore[no-untyped-call]
            model, data=rows, targets="caption", predictions="caption", extra_metrics=[words], evaluators=["default"]
        )
    assert alone["error"] is None and found.metrics["words/sum"] == 2 * len(alone["caption"].split())


def test_predictions_file_is_plain_parquet(workspace: Path) -> None:
    path = artifacts(trained(workspace))["evaluate"].path / "predictions.parquet"
    names = ["digest", "caption", "tokens", "log_probability", "finished", "alternatives", "copied"]
    names += ["mean_log_probability", "similarity", "gain", "distance", "confidence", "references", "facts"]
    assert pq.read_schema(path).names == names


@pytest.mark.slow
def test_every_way_out_of_the_registry_says_the_same(workspace: Path, tmp_path: Path) -> None:
    """In fresh environments: one of the model's own requirements, one of this project's wheel."""
    done = bench("conformance.interfaces", written(tmp_path, trained(workspace)))
    assert done.count("| 6 of 6 |") == 5  # as many as its test split has


@pytest.mark.slow
def test_hostile_requests_are_borne(workspace: Path) -> None:
    folder = str(pictures(workspace)[0].parent)
    assert "every good request answered as when alone" in bench(
        "soak.hostile", str(workspace), folder, "--requests", "200"
    )


def written(tmp_path: Path, config: Config) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json", exclude={"data": {"path"}})))
    return str(path)


def bench(name: str, *arguments: str) -> str:
    """What a bench prints."""
    command = [sys.executable, "-m", f"bench.{name}", *arguments]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mlflow_knows_what_a_model_was_made_from(registered: Path) -> None:
    """Its data sets by digest, its commit, and its scores on a named data set, by which MLflow compares models."""
    client = tracking.connect(registered, must_exist=True)
    version = client.get_model_version("small", "1")
    run = client.get_run(str(version.run_id))
    assert run.inputs is not None
    inputs = {item.dataset.name: item for item in run.inputs.dataset_inputs}
    assert {name: item.tags[0].value for name, item in inputs.items()} == {
        "small train": "training",
        "small dev": "validation",
    }
    manifest = artifacts(trained(registered))["ingest"]
    assert inputs["small train"].dataset.digest == manifest.ledger.products["train"][:32]
    logged = client.get_logged_model(str(version.source).removeprefix("models:/"))
    assert json.loads(logged.tags["mlflow.modelVersions"])[0] == {"name": "small", "version": version.version}
    scores = {metric.key: (metric.value, metric.dataset_name, metric.dataset_digest) for metric in logged.metrics or []}
    digest = manifest.ledger.products["test"][:32]
    value, *data_set = scores["bleu4"]
    assert value == pytest.approx(float(version.tags["score.bleu4"])) and data_set == ["small test", digest]
    of_version = client.search_runs([run.info.experiment_id], "tags.`attend.version` = 'models:/small/1'")
    (evaluation,) = (found for found in of_version if "attend.evaluation" not in found.data.tags)  # others' scores
    assert evaluation.data.tags["mlflow.parentRunId"] == version.run_id
    contexts = {item.tags[0].value for item in evaluation.inputs.dataset_inputs} if evaluation.inputs else set()
    assert contexts == {"evaluation"}
    head = run.data.tags.get("mlflow.source.git.commit", "")
    assert version.tags.get("attend.commit", "") == head == manifest.ledger.versions.get("commit", "")
    assert head.removesuffix("+changes") == commit().removesuffix("+changes")  # empty where there is no git


def test_a_model_loaded_by_any_address_stays_fresh(registered: Path) -> None:
    """MLflow writes into a model's folder by which address it was loaded."""
    tracking.connect(registered, must_exist=True)
    for address in ("models:/small@champion", "models:/small/1", "models:/small@champion"):
        assert load_captioner(address) is not None
        assert all(status.fresh for status in plan(trained(registered)))


def test_the_best_weights_are_logged_while_a_training_goes_on(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    give_store(workspace)
    config = small(workspace, training__epochs=4)
    for name in ("ingest", "extract", "tensorise"):
        run_stage(config, name)
    with (
        pytest.raises(KeyboardInterrupt),
        training_log(workspace, "small", "a key", {}) as log,
    ):
        files: list[Path] = []

        def stop(row: dict[str, float], best: Path | None) -> None:
            log.try_log_epoch(row, best)
            files.extend([best] if best is not None else [])
            if row["epoch"] == 3:
                raise KeyboardInterrupt

        run_stage(config, "train", epoch_done=stop)
    client = tracking.connect(workspace)
    logged = Path(client.download_artifacts(log.run_id, "checkpoints", str(tmp_path)))
    assert [path.name for path in logged.iterdir()] == [WEIGHTS]
    assert (logged / WEIGHTS).read_bytes() == files[-1].read_bytes()
    run = client.get_run(log.run_id)
    assert run.info.status == "KILLED" and {"dev_loss", "dev_perplexity"} <= set(run.data.metrics)


def test_weights_that_mlflow_does_not_take_do_not_stop_a_training(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with training_log(workspace, "small", "another key", {}) as log:

        def fails(*_: object) -> None:
            raise PermissionError(13, "Permission denied", "/mlruns")

        monkeypatch.setattr(log.client, "log_artifact", fails)
        log.try_log_epoch({"epoch": 1.0, "loss": 2.0}, tmp_path / "weights")
        log.try_log_epoch({"epoch": 1.0, "loss": 3.0}, None)  # logged already
    assert tracking.connect(workspace).get_run(log.run_id).data.metrics["loss"] == 2.0


def test_a_training_that_is_not_registered_is_logged_all_the_same(finished: Path, tmp_path: Path) -> None:
    """With scores, weights and report; once; and again where MLflow lost it. Registered later, it is the same run."""
    copy = tmp_path / "workspace"
    shutil.copytree(finished, copy)
    config = small(copy)
    give_store(copy)
    for _ in range(2):
        log_evaluation(config, planned(config, "evaluate"))
    client = tracking.connect(copy)
    (experiment,) = (found for found in client.search_experiments() if found.name == "small")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 2
    (evaluation,) = (run for name, run in runs.items() if name.startswith("evaluation-"))
    (training,) = (run for name, run in runs.items() if not name.startswith("evaluation-"))
    scores = json.loads((artifacts(config, "evaluate")["evaluate"].path / "scores.json").read_text())["scores"]
    figures = {name: value for name, value in evaluation.data.metrics.items() if not name.startswith("copied_")}
    assert figures == pytest.approx(scores) and {f"copied_{name}" for name in scores} <= evaluation.data.metrics.keys()
    files = {item.path for item in client.list_artifacts(training.info.run_id, evaluation.info.run_name)}
    assert {Path(path).name for path in files} == {
        "predictions.parquet",
        "pictures.parquet",
        "scores.json",
        "report.html",
    }
    assert client.list_artifacts(training.info.run_id, "checkpoints") and "dev_bleu4" in training.data.metrics
    client.delete_run(training.info.run_id)
    client.delete_run(evaluation.info.run_id)
    log_evaluation(config, planned(config, "evaluate"))
    run_all(config)
    assert len(client.search_runs([experiment.experiment_id])) == 2
    assert client.get_model_version("small", "1").run_id is not None


def test_a_champion_whose_run_was_removed_stops_no_registration(tmp_path: Path) -> None:
    """As by `mlflow gc`, which removes what was deleted for good."""
    workspace = tmp_path / "workspace"
    run_all(small(workspace))
    client = tracking.connect(workspace)
    run = told(small(workspace))["run_id"]
    client.delete_run(run)
    address = f"sqlite:///{workspace}/mlflow.db"
    command = [sys.executable, "-m", "mlflow", "gc", "--backend-store-uri", address, "--run-ids", run]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "MLFLOW_TRACKING_URI": address})
    run_all(small(workspace, training__seed=3))
    assert told(small(workspace, training__seed=3))["version"] == "2"
    assert old_versions(workspace, 0, 0.0) == []  # both have an alias
    for alias, version in client.get_registered_model("small").aliases.items():
        if str(version) == "1":
            client.delete_registered_model_alias("small", alias)
    assert [(address_of(item.version), item.runs) for item in old_versions(workspace, 0, 0.0)] == [
        ("models:/small/1", [])
    ]


def test_more_models_than_mlflow_gives_at_once_are_all_found(tmp_path: Path) -> None:
    client = tracking.connect(tmp_path / "workspace")
    for number in range(101):
        client.create_registered_model(f"model-{number:03}")
    assert len({model.name for model in registered_models(client)}) == 101


def test_models_of_other_programs_may_have_a_quote_in_their_name(tmp_path: Path) -> None:
    client = tracking.connect(tmp_path / "workspace")
    client.create_registered_model("Ann's photos")
    client.create_model_version("Ann's photos", "file:///photos")
    assert [version.address for version in all_versions(tmp_path / "workspace")] == ["models:/Ann's photos/1"]


def test_a_deleted_experiment_is_named_with_the_command_that_restores_it(tmp_path: Path) -> None:
    client = tracking.connect(tmp_path / "workspace")
    number = client.create_experiment("small")
    client.delete_experiment(number)
    for refuses in (check_experiment, lambda workspace, name: get_or_create_experiment(client, workspace, name)):
        with pytest.raises(AttendError, match=f"mlflow experiments restore --experiment-id {number}`, or set"):
            refuses(tmp_path / "workspace", "small")


def test_weights_have_the_permissions_of_new_files(finished: Path, registered: Path) -> None:
    """Another user, or a container that is not root: as the umask says, which safetensors' own files ignore."""
    files = [path for root in (finished, registered) for path in root.rglob("*.safetensors")]
    assert len(files) > 4 and {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~_umask()}


def _umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now
