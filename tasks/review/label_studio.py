"""Questions as tasks of Label Studio, with the captions filled in, and answers from what it exports (JSON)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from tasks.common.errors import AttendError
from tasks.datasets.corrections import GIVING, Answer, Chosen, Verdict, checked
from tasks.datasets.documents import parse_json
from tasks.review.queue import Question

LOCAL_FILES = "/data/local-files/?d="  # under which Label Studio serves the folder LOCAL_FILES_DOCUMENT_ROOT
INTERFACE = """<View>
  <Image name="image" value="$image"/>
  <Header value="Correct the caption, or leave it as it is. Submit to go on; skip what you cannot say."/>
  <TextArea name="caption" toName="image" rows="2" editable="true" maxSubmissions="1"/>
  <Choices name="verdict" toName="image" choice="single" showInline="true">
    <Choice value="rejected"/>
    <Choice value="no photograph"/>
  </Choices>
</View>
"""
_ASKED = ("picture", "name", "shown", "model", "chosen")


def tasks_of(questions: Iterable[tuple[Question, Chosen]], model: str, prefix: str) -> list[dict[str, Any]]:
    """Return a task of each question. prefix: what stands before a picture's name in its address."""
    tasks = []
    for question, chosen in questions:
        caption = {"from_name": "caption", "to_name": "image", "type": "textarea", "value": {"text": [question.shown]}}
        prediction = {"model_version": model, "score": question.confidence, "result": [caption]}
        asked = {field: getattr(question, field) for field in ("picture", "name", "shown", "confidence")}
        data = {"image": f"{prefix}{quote(question.name)}", **asked, "model": model, "chosen": chosen}
        tasks.append({"data": data, "predictions": [prediction]})
    return tasks


def answers_in(export: Path) -> list[Answer]:
    """Return the answers of a file that Label Studio exported as JSON; raise AttendError where it is another file."""
    document = parse_json(export)
    if not isinstance(document, list):
        raise AttendError(f"{export}: is no list of tasks: export the project from Label Studio as JSON")
    if document and all(isinstance(task, dict) and "data" in task and "annotations" not in task for task in document):
        raise AttendError(f"{export}: has no annotations: export the project from Label Studio, and give that file")
    return [answer for at, task in enumerate(document) for answer in _of_task(task, f"{export}: [{at}]")]


def _of_task(task: Any, where: str) -> list[Answer]:
    """Return the answers to one task."""
    data = task.get("data") if isinstance(task, dict) else None
    if not isinstance(data, dict):
        raise AttendError(f"{where}: has no data: export the project from Label Studio as JSON, not as JSON-MIN")
    for field in _ASKED:
        if not isinstance(data.get(field), str):
            raise AttendError(f"{where}.data.{field}: is missing: is this a task of `attend review queue`?")
    if data["chosen"] not in get_args(Chosen):
        raise AttendError(f"{where}.data.chosen: {data['chosen']!r} is none of: {', '.join(get_args(Chosen))}")
    annotations = task.get("annotations") or []
    if not isinstance(annotations, list):
        raise AttendError(f"{where}.annotations: is no list: export the project from Label Studio as JSON")
    return [_answer(data, note, f"{where}.annotations[{at}]") for at, note in enumerate(annotations)]


def _answer(data: dict[str, Any], annotation: Any, where: str) -> Answer:
    """Return the answer of one annotation. data: of its task."""
    is_annotation = isinstance(annotation, dict) and isinstance(annotation.get("result") or [], list)
    if not is_annotation or annotation.get("id") is None:
        raise AttendError(f"{where}: is no annotation with an id: export the project from Label Studio as JSON")
    texts = _values(annotation, "caption", "text")
    choices = _values(annotation, "verdict", "choices")
    given = " ".join(" ".join(texts).split())
    verdict: Verdict
    if annotation.get("was_cancelled"):
        verdict = "skipped"
    elif choices and choices[0] in ("rejected", "no photograph"):
        verdict = choices[0]  # type: ignore[assignment] # one of the two
    elif not given:
        verdict = "skipped"
    else:
        verdict = "accepted" if given == " ".join(data["shown"].split()) else "edited"
    when = annotation.get("updated_at") or annotation.get("created_at")
    answer = {
        "picture": data["picture"],
        "name": data["name"],
        "shown": data["shown"],
        "given": given if verdict in GIVING else None,
        "verdict": verdict,
        "model": data["model"],
        "confidence": data.get("confidence"),
        "chosen": data["chosen"],
        "who": _person(annotation.get("completed_by")),
        "when": when,
        "source": f"label studio {annotation['id']} {when}",
    }
    return checked(answer, where)


def _values(annotation: dict[str, Any], control: str, kind: str) -> list[str]:
    """Return the texts of a control of the interface."""
    found: list[str] = []
    for item in annotation.get("result") or []:
        if isinstance(item, dict) and item.get("from_name") == control and isinstance(item.get("value"), dict):
            values = item["value"].get(kind) or []
            found += [str(value) for value in (values if isinstance(values, list) else [values])]
    return found


def _person(given: Any) -> str | None:
    """Return the number of the account that made an annotation, which every form of an export has."""
    if isinstance(given, dict):
        given = given.get("id")
    return None if given is None else str(given)
