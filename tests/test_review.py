"""People correct captions: what they are asked, what becomes of their answers, and what the figures say of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from flows.commands.cli import app
from flows.preflight import verdict_of
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.config.schema import load
from tasks.data.manifest import read_pictures
from tasks.datasets.corrections import Answer, Corrections, add_answers, latest, read_answers
from tasks.evaluation.score_record import read_scores
from tasks.registry import tracking
from tasks.registry.reviewed import note_rates
from tasks.registry.versions import earlier_versions, find
from tasks.review.label_studio import LOCAL_FILES, answers_in
from tasks.review.queue import Question, Shares, at_random, choose
from tasks.review.rates import figures
from tests.support import artifacts, pictures, run_stage, small, trained
from tests.test_cli import Capture
from tests.test_cli import attend as attend_at

RUNNER = CliRunner()


def attend(*words: object) -> str:
    """What the command prints; an AttendError is raised, as it is to the program."""
    result = RUNNER.invoke(app, ["review", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def inbox(registered: Path, tmp_path: Path) -> Path:
    """A folder of thirty photographs that the champion can caption."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    for path in pictures(registered)[:30]:
        shutil.copy(path, folder)
    return folder


def annotated(tasks: list[dict[str, Any]], say: dict[int, dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Tasks as Label Studio exports them when a person left each caption as it was, but for what `say` changes."""
    exported = []
    for at, task in enumerate(tasks):
        annotation: dict[str, Any] = {
            "id": at,
            "completed_by": {"id": 1, "email": "ann@example.org"},
            "was_cancelled": False,
            "result": task["predictions"][0]["result"],
            "updated_at": "2026-01-31T09:30:00.000000Z",
        }
        exported.append({"id": at, **task, "annotations": [annotation | (say or {}).get(at, {})]})
    return exported


def text(caption: str) -> dict[str, Any]:
    return {"result": [{"from_name": "caption", "to_name": "image", "type": "textarea", "value": {"text": [caption]}}]}


def choice(value: str) -> dict[str, Any]:
    return {"result": [{"from_name": "verdict", "to_name": "image", "type": "choices", "value": {"choices": [value]}}]}


def answer(**changes: Any) -> Answer:
    plain: Any = {
        "picture": "a" * 64,
        "name": "a.png",
        "shown": "a dog runs",
        "given": "a dog runs",
        "verdict": "accepted",
        "model": "models:/small/1",
        "confidence": 0.5,
        "chosen": "at random",
        "who": "ann",
        "when": "2026-01-31T09:30:00Z",
    }
    plain.update(changes)
    return plain  # type: ignore[no-any-return]


def exported(**changes: Any) -> str:
    return json.dumps([{"data": {**answer(), "image": "x"}, **changes}])


def test_a_queue_goes_out_and_its_answers_come_in_once(registered: Path, inbox: Path, tmp_path: Path) -> None:
    answers, out = tmp_path / "reviews.jsonl", tmp_path / "tasks.json"
    given = ("--answers", answers, "--workspace", registered)
    assert "10 tasks" in attend("queue", inbox, "--out", out, "--number", 10, *given)
    tasks = json.loads(out.read_text())
    assert 'name="caption"' in out.with_suffix(".xml").read_text()
    for task in tasks:
        data = task["data"]
        assert data["picture"] == digest_of_file(inbox / data["name"])
        assert data["image"] == f"{LOCAL_FILES}{data['name']}"
        assert task["predictions"][0]["result"][0]["value"]["text"] == [data["shown"]]
        assert (data["chosen"] == "at random") == at_random(data["picture"])
    export = tmp_path / "export.json"
    said = {0: text("something else"), 1: choice("rejected"), 2: choice("no photograph"), 3: {"was_cancelled": True}}
    export.write_text(json.dumps([*annotated(tasks, said), *annotated(tasks, said)[:3]]))
    assert "10 answers added, 0 were there" in attend("take", export, *given)
    assert "0 answers added, 10 were there" in attend("take", export, *given)
    listed = RUNNER.invoke(app, ["models", "list", "--workspace", str(registered)], catch_exceptions=False).output
    assert "% accepted (" in listed
    found = [item for _, item in read_answers(answers)]
    verdicts = ["edited", "rejected", "no photograph", "skipped", *["accepted"] * 6]
    assert [item["verdict"] for item in found] == verdicts and found[0]["given"] == "something else"
    assert {item["who"] for item in found} == {"1"}
    # What was answered is not asked again.
    attend("queue", inbox, "--out", out, "--number", 100, *given)
    asked = {task["data"]["picture"] for task in json.loads(out.read_text())}
    assert not asked & {item["picture"] for item in found}
    assert "answers" in attend("summary", *given)


def test_the_least_sure_come_first_and_the_share_at_random_is_decided_by_content() -> None:
    questions = [Question(f"{at:064x}", f"{at}.png", "a dog", at / 1000, at / 1000) for at in range(1000)]
    chosen = choose(questions, 100, Shares(0.2))
    unsure = [question for question, why in chosen if why == "least sure"]
    random = [question for question, why in chosen if why == "at random"]
    assert len(random) == 20 and len(unsure) == 80
    assert unsure == [question for question in questions if not at_random(question.picture)][:80]
    assert abs(sum(question.sureness for question in random) / 20 - 0.5) < 0.2  # as sure as all are
    # Other captions, as of another version, choose the same ones at random.
    turned = [Question(q.picture, q.name, "a cat", None, -q.sureness) for q in questions]
    assert {q.picture for q, why in choose(turned, 100, Shares(0.2)) if why == "at random"} == {
        q.picture for q in random
    }
    assert len(choose(questions[:5], 100, Shares(0.2))) == 5 and choose([], 10, Shares(0.2)) == []
    assert {why for _, why in choose(questions, 50, Shares(0))} == {"least sure"}
    assert {why for _, why in choose(questions, 50, Shares(1))} == {"at random"}


def test_corrections_are_data_of_which_what_was_asked_at_random_is_test(registered: Path, inbox: Path) -> None:
    names = sorted(path.name for path in inbox.iterdir())
    answers = inbox.parent / "reviews.jsonl"
    said = [
        answer(name=name, picture=digest_of_file(inbox / name), chosen="at random" if at < 5 else "least sure", **more)
        for at, (name, more) in enumerate(
            [(name, {}) for name in names[:10]]
            + [(names[10], {"given": "two dogs", "verdict": "edited"})]
            + [(names[11], {"given": None, "verdict": "rejected"})]
        )
    ]
    add_answers(answers, said)
    own = {"adapter": "scenes", "pictures": 20, "side": 32, "seed": 9}
    people = {"adapter": "corrections", "path": answers, "images": inbox}
    config = small(
        inbox.parent / "w",
        data={"adapter": "sources", "sources": {"own": own, "people": people}},
        evaluation__metrics=["bleu"],
    )
    run_stage(config, "ingest")
    made = artifacts(config, "ingest")["ingest"].path
    found = {split: {p.name: p.captions for p in read_pictures(made, split)} for split in ("train", "test")}
    assert {f"people/{name}" for name in names[:5]} <= set(found["test"])
    assert {f"people/{name}" for name in names[5:11]} <= set(found["train"])
    assert found["train"][f"people/{names[10]}"] == ["two dogs"]
    assert not any(f"people/{names[11]}" in pictures for pictures in found.values())
    (inbox / "kept").mkdir()
    (inbox / names[2]).rename(inbox / "kept" / "renamed.png")
    run_stage(config, "ingest")
    moved = read_pictures(artifacts(config, "ingest")["ingest"].path, "test")
    assert {p.digest for p in moved} >= {digest_of_file(inbox / "kept" / "renamed.png")}
    assert "people/kept/renamed.png" in {p.name for p in moved}
    (inbox / "kept" / "renamed.png").unlink()
    run_stage(config, "ingest")  # the photograph was removed: what was said of it is left out
    left = read_pictures(artifacts(config, "ingest")["ingest"].path, "test")
    assert {p.digest for p in left} == {p.digest for p in moved if p.name != "people/kept/renamed.png"}
    written = inbox.parent / "config.yaml"
    written.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    assert "without a caption" not in str(verdict_of(str(written), []).findings)
    shutil.copy(inbox / names[1], inbox / names[0])
    with pytest.raises(AttendError, match=r"reviews.jsonl:1: .* is another picture than the one whose caption"):
        run_stage(config, "ingest")


def test_answers_join_by_themselves_and_status_says_how_many_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, registered: Path
) -> None:
    """`attend init` writes their source, whose file is not there before the first answer."""
    photos, rows = tmp_path / "photos", []
    photos.mkdir()
    for number, path in enumerate(pictures(registered)[:40]):
        shutil.copyfile(path, photos / path.name)
        split = "train" if number < 30 else "validation"
        rows.append(json.dumps({"file_name": path.name, "text": ["a shape", f"shape number {number}"], "split": split}))
    (photos / "metadata.jsonl").write_text("\n".join(rows))
    (tmp_path / "w.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    code, _, err = attend_at(monkeypatch, capsys, "init", "photos", "--weights", "w.safetensors")
    assert code == 0, err
    settings = ["grids={backbone: tiny, weights: 'random:0', image_size: 64}", "registry.runtimes=[torch]"]
    config = load("photos.yaml", settings)
    run_stage(config, "ingest")
    assert attend_at(monkeypatch, capsys, "status", "photos.yaml", *settings)[1].startswith("fresh       ingest")
    names = [path.name for path in sorted(photos.glob("*.png"))]
    held_out = {json.loads(row)["file_name"] for row in rows[30:]}
    answered = [name for name in names if name not in held_out][:3] + sorted(held_out)[:2]
    add_answers(
        tmp_path / "workspace" / "reviews.jsonl",
        [answer(name=name, picture=digest_of_file(photos / name), chosen="least sure") for name in answered],
    )
    said = attend_at(monkeypatch, capsys, "status", "photos.yaml", *settings)[1]
    assert (
        "stale       ingest    3 new answers, 2 pictures of answers left out there: in another split of photos" in said
    )
    run_stage(config, "ingest")
    trained_on = read_pictures(artifacts(config, "ingest")["ingest"].path, "train")
    assert sum("a dog runs" in picture.captions for picture in trained_on) == 3


def test_a_folder_with_none_of_the_photographs_is_refused(inbox: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    add_answers(tmp_path / "r.jsonl", [answer()])
    with pytest.raises(AttendError, match=r"other: has none of the 1 photographs of .*r.jsonl: set data.images"):
        list(Corrections(path=tmp_path / "r.jsonl", images=tmp_path / "other").rows(tmp_path))


def test_the_last_answer_of_each_person_counts(tmp_path: Path) -> None:
    first = answer(verdict="rejected", given=None)
    again = answer(when="2026-02-01T09:30:00Z")
    other = answer(who="bob", verdict="edited", given="a brown dog runs")
    add_answers(tmp_path / "a.jsonl", [again, first])
    add_answers(tmp_path / "a.jsonl", [other])
    read = [item for _, item in read_answers(tmp_path / "a.jsonl")]
    assert read == [again, first, other]
    later = answer(given="a dog sits", verdict="edited", when="2026-02-01T11:00:00+01:00")  # 10:00 in UTC
    assert later in latest([later, *read]) and later not in latest([answer(when="2026-02-01T10:00:00.5Z"), later])
    assert sorted(latest(read), key=lambda item: str(item["who"])) == [again, other]


def test_the_report_of_the_next_version_tells_what_people_accepted(registered: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    shutil.copytree(registered, workspace)
    note_rates(tracking.connect(workspace), figures([answer()]).versions)
    _, version = find(None, workspace).address.rsplit("/", 1)
    client = tracking.connect(workspace)
    scores = read_scores(artifacts(trained(workspace), "evaluate")["evaluate"].path)
    [told] = earlier_versions(client, "small", scores)
    assert (told.name, told.same) == (version, True) and told.reviewed.startswith("100 % accepted (")


def test_figures() -> None:
    said = [answer(picture=f"{at:064x}", who=None) for at in range(6)]
    said += [answer(picture=f"{at:064x}", verdict="edited", given="a cat runs", confidence=0.1) for at in range(6, 8)]
    said += [answer(picture=f"{9:064x}", verdict="skipped", given=None)]
    said += [answer(picture=f"{10:064x}", chosen="least sure", verdict="rejected", given=None, model="models:/small/2")]
    said += [answer(picture=f"{0:064x}", who="bob", verdict="rejected", given=None, when="2026-02-09T09:30:00Z")]
    found = figures(said)
    assert found.verdicts == {"accepted": 6, "edited": 2, "rejected": 2, "skipped": 1}
    [version] = found.versions
    assert (version.of, version.accepted, version.judged) == ("models:/small/1", 6, 9)
    assert version.low < version.share < version.high
    assert [(rate.of, rate.accepted, rate.judged) for rate in found.weeks] == [("2026-W05", 6, 8), ("2026-W07", 0, 1)]
    assert [(rate.of, rate.judged) for rate in found.chosen] == [("at random", 9), ("least sure", 1)]
    assert [(round(one.confidence, 3), one.rate.judged) for one in found.calibration] == [(0.1, 2), (0.5, 8)]
    assert found.edits == [("dog", "cat", 2)]
    assert found.agreement is not None and found.agreement[1:3] == (0, 1)
    assert figures([]).agreement is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[1]", r":1: is a list, not an object"),
        ("{", r":1: is not JSON.*: mend the line, or remove it"),
        (json.dumps(answer(picture=3)), r":1: picture: is 3; a text is needed"),
        (json.dumps(answer(verdict="fine")), r":1: verdict: is 'fine': give one of: accepted, edited"),
        (json.dumps(answer(chosen="")), r":1: chosen: is ''"),
        (json.dumps(answer(given=None)), r":1: given: is None; a text is needed"),
        (json.dumps(answer(verdict="skipped", given="")), r":1: given: an answer that is 'skipped' has no caption"),
        (json.dumps(answer(when="yesterday")), r":1: when: 'yesterday' is no time in ISO 8601"),
        (json.dumps(answer(confidence=float("nan"))), r":1: confidence: is nan; a number from 0 to 1"),
        (json.dumps(answer(shown="x\ud800")), r":1: shown: "),
        (json.dumps(answer(verdict="rejected")), r":1: given: an answer that is 'rejected' has no caption"),
        (json.dumps(answer(confidence="high")), r":1: confidence: is 'high'; a number from 0 to 1"),
    ],
)
def test_a_line_that_is_no_answer_is_refused(tmp_path: Path, line: str, why: str) -> None:
    (tmp_path / "reviews.jsonl").write_text(f"{line}\n")
    with pytest.raises(AttendError, match=why):
        list(read_answers(tmp_path / "reviews.jsonl"))


@pytest.mark.parametrize(
    ("export", "why"),
    [
        ("{}", r"is no list of tasks"),
        ('[{"image": "x"}]', r"\[0\]: has no data: export the project from Label Studio as JSON, not as JSON-MIN"),
        ('[{"data": {"image": "x"}}]', r"has no annotations: export the project from Label Studio"),
        ('[{"data": {"image": "x"}, "annotations": []}]', r"\[0\].data.picture: is missing: is this a task of"),
        ("[", r"is not JSON"),
        (exported(annotations=3), r"\[0\].annotations: is no list"),
        (exported(annotations=[3]), r"\[0\].annotations\[0\]: is no annotation with an id"),
        (exported(annotations=[{"id": 1, "updated_at": "yesterday"}]), r"\[0\].annotations\[0\]: when: 'yesterday'"),
    ],
)
def test_another_export_is_refused_and_nothing_is_added(tmp_path: Path, export: str, why: str) -> None:
    (tmp_path / "export.json").write_text(export)
    with pytest.raises(AttendError, match=why):
        attend("take", tmp_path / "export.json", "--answers", tmp_path / "r.jsonl", "--workspace", tmp_path)
    assert not (tmp_path / "r.jsonl").exists()


def test_two_annotations_of_a_task_are_two_answers(tmp_path: Path) -> None:
    data = {**answer(), "image": "x"}
    notes = [{"id": at, "completed_by": at, "updated_at": "2026-01-31T09:30:00Z", **text("a cat")} for at in (1, 2)]
    (tmp_path / "export.json").write_text(json.dumps([{"data": data, "annotations": notes}]))
    assert [item["who"] for item in answers_in(tmp_path / "export.json")] == ["1", "2"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("queue", "none", "--out", "q.json"), r"none: is no folder"),
        (("queue", ".", "--out", "q.txt"), r"--out: q.txt: give a name ending in .json"),
        (("queue", ".", "--out", "none/q.json"), r"--out: none: no such folder"),
        (("summary",), r"reviews.jsonl: no such file: `attend review serve` and `take` write it"),
    ],
)
def test_arguments_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttendError, match=why):
        attend(*words, "--workspace", tmp_path / "workspace")
