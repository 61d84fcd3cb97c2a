"""People correct captions: what they are asked, what becomes of their answers, and what the summary says of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from flows.commands.cli import app
from flows.preflight import verdict_of
from flows.registered.review_queue import QueueOptions, questions_of
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.config.schema import load
from tasks.data.manifest import read_pictures
from tasks.datasets.corrections import Answer, Corrections, add_answers, latest, read_answers
from tasks.evaluation.score_record import read_scores
from tasks.mlflow_store import tracking
from tasks.mlflow_store.versions import earlier_versions, find
from tasks.registry.reviewed import note_answers, note_rates
from tasks.review.queue import Question, Shares, at_random, choose
from tasks.review.rates import summarise
from tests.cli import Capture
from tests.cli import attend as attend_at
from tests.cli import review as attend
from tests.support import artifacts, pictures, run_stage, small, trained

RUNNER = CliRunner()


@pytest.fixture
def inbox(registered: Path, tmp_path: Path) -> Path:
    """A folder of thirty photographs that the champion can caption."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    for path in pictures(registered)[:30]:
        shutil.copy(path, folder)
    return folder


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


def test_answered_questions_are_not_asked_again(registered: Path, inbox: Path, tmp_path: Path) -> None:
    options = QueueOptions(inbox, None, 10, Shares(0.2), tmp_path / "reviews.jsonl", registered)
    asked = questions_of(options).questions
    assert len(asked) == 10
    for question, chosen in asked:
        assert question.picture == digest_of_file(inbox / question.name)
        assert (chosen == "at random") == at_random(question.picture)
    add_answers(options.answers, [answer(picture=question.picture, name=question.name) for question, _ in asked])
    again = questions_of(replace(options, number=100)).questions
    assert again and not {question.picture for question, _ in again} & {question.picture for question, _ in asked}
    note_answers(registered, options.answers)
    listed = RUNNER.invoke(app, ["models", "list", "--workspace", str(registered)], catch_exceptions=False).output
    assert "% accepted (" in listed
    assert "10 answers" in attend("summary", "--answers", options.answers, "--workspace", registered)


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
    artifact = artifacts(config, "ingest")["ingest"].path
    found = {split: {p.name: p.captions for p in read_pictures(artifact, split)} for split in ("train", "test")}
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
    text = attend_at(monkeypatch, capsys, "status", "photos.yaml", *settings)[1]
    assert (
        "stale       ingest    3 new answers, 2 pictures of answers left out there: in another split of photos" in text
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
    note_rates(tracking.connect(workspace), summarise([answer()]).versions)
    _, version = find(None, workspace).address.rsplit("/", 1)
    client = tracking.connect(workspace)
    scores = read_scores(artifacts(trained(workspace), "evaluate")["evaluate"].path)
    [told] = earlier_versions(client, "small", scores)
    assert (told.name, told.same) == (version, True) and told.reviewed.startswith("100 % accepted (")


def test_the_summary_of_answers() -> None:
    rows = [answer(picture=f"{at:064x}", who=None) for at in range(6)]
    rows += [answer(picture=f"{at:064x}", verdict="edited", given="a cat runs", confidence=0.1) for at in range(6, 8)]
    rows += [answer(picture=f"{9:064x}", verdict="skipped", given=None)]
    rows += [answer(picture=f"{10:064x}", chosen="least sure", verdict="rejected", given=None, model="models:/small/2")]
    rows += [answer(picture=f"{0:064x}", who="bob", verdict="rejected", given=None, when="2026-02-09T09:30:00Z")]
    found = summarise(rows)
    assert found.verdicts == {"accepted": 6, "edited": 2, "rejected": 2, "skipped": 1}
    [version] = found.versions
    assert (version.of, version.accepted, version.judged) == ("models:/small/1", 6, 9)
    assert version.low < version.share < version.high
    assert [(rate.of, rate.accepted, rate.judged) for rate in found.weeks] == [("2026-W05", 6, 8), ("2026-W07", 0, 1)]
    assert [(rate.of, rate.judged) for rate in found.chosen] == [("at random", 9), ("least sure", 1)]
    assert [(round(one.confidence, 3), one.rate.judged) for one in found.calibration] == [(0.1, 2), (0.5, 8)]
    assert found.edits == [("dog", "cat", 2)]
    assert found.agreement is not None and found.agreement[1:3] == (0, 1)
    assert summarise([]).agreement is None


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


def test_a_summary_of_no_answers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AttendError, match=r"reviews.jsonl: no such file: `attend review serve` writes it"):
        attend("summary", "--workspace", tmp_path / "workspace")
