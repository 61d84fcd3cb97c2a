"""Questions for people: photographs that a registered model captions, those worth a look first."""

from __future__ import annotations

import json
from pathlib import Path

from flows.registered.caption import caption_all, find_and_tell, grids_for
from flows.registered.pictures_to_caption import open_pictures
from models.captioned import takes_grids
from models.options import Runtime
from tasks.common.errors import AttendError
from tasks.common.files import write_atomically
from tasks.common.log import log
from tasks.common.progress import Bar
from tasks.common.wording import counted
from tasks.datasets.corrections import read_answers
from tasks.review.label_studio import INTERFACE, tasks_of
from tasks.review.queue import Question, choose


def write_queue(
    out: Path,
    folder: Path,
    model: str | None,
    number: int,
    share: float,
    answers: Path,
    prefix: str,
    workspace: Path,
    runtime: Runtime | None,
) -> int:
    """Write the questions as tasks of Label Studio to `out`, its interface beside them, and return their number.

    folder: of the photographs. model: an MLflow address; None for the champion promoted last. number: of questions, at
    most. share: of them at random. answers: the file of those that are there; their pictures are not asked about again.
    prefix: of the photographs' addresses. Nothing is written where there is no question. Raises AttendError for
    arguments that cannot be used.
    """
    from tasks.registry.logged_model import load_captioner

    if out.suffix != ".json":
        raise AttendError(f"--out: {out}: give a name ending in .json")
    if not out.parent.is_dir():
        raise AttendError(f"--out: {out.parent}: no such folder")
    if not folder.is_dir():
        raise AttendError(f"{folder}: is no folder: give the folder of the photographs")
    known = {answer["picture"] for _, answer in read_answers(answers)} if answers.exists() else set()
    found = find_and_tell(model, workspace)
    captioner = load_captioner(*found, runtime)
    if takes_grids(captioner.config):
        raise AttendError(f"{found.address}: takes grids, and there are no photographs to look at")
    pictures = open_pictures([str(folder)], workspace)
    names = {digest: name for name, digest in reversed(list(pictures.named())) if digest is not None}
    questions: list[Question] = []
    wanted = names.keys() - known
    unread = len(pictures) - sum(digest is not None for _, digest in pictures.named())
    with Bar(len(wanted), "captions", "pictures") as bar:
        for rows in caption_all(pictures, wanted, captioner, grids_for(captioner, found.address, workspace), None):
            questions += [_question(row, names[row["digest"]]) for row in rows if row["error"] is None]
            for row in rows:
                if row["error"] is not None:
                    unread += 1
                    log.warning(f"{names[row['digest']]}: {row['error']}: not asked about")
            bar.advance(len(rows))
    if unread:
        log.warning(f"{counted(unread, 'photograph')} without a caption, not asked about")
    if questions and questions[0].confidence is None:
        log.info("this model's captions have no confidence: the least sure are those of least probability a word")
    chosen = choose(questions, number, share)
    if not chosen:
        return 0
    tasks = tasks_of(chosen, found.address, prefix)
    write_atomically(out, f"{json.dumps(tasks, indent=1, ensure_ascii=False)}\n")
    write_atomically(out.with_suffix(".xml"), INTERFACE)
    return len(chosen)


def _question(row: dict[str, object], name: str) -> Question:
    """Return the question about a captioned photograph. row: of `attend caption`."""
    shown, confidence, likelihood = str(row["text"]), row["confidence"], row["log_probability"]
    assert isinstance(likelihood, float)
    if isinstance(confidence, float):
        return Question(str(row["digest"]), name, shown, confidence, confidence)
    return Question(str(row["digest"]), name, shown, None, likelihood / (len(shown.split()) + 1))
