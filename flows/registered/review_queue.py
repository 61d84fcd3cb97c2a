"""Questions for people: photographs captioned by a registered model, the most useful ones first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flows.registered.caption import caption_all, find_and_log
from flows.registered.pictures_to_caption import PictureFiles, open_pictures
from models.captioned import takes_grids
from models.options import Runtime
from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.common.wording import counted
from tasks.datasets.corrections import Chosen, read_answers
from tasks.review.queue import Question, Shares, choose


@dataclass(frozen=True)
class QueueOptions:
    """The options of a queue of questions.

    folder: of the photographs. model: an MLflow address; None for the champion in use. number: of questions, at
    most. answers: the file of earlier answers; their pictures are not asked about again. runtime: of the model; None
    for its first one.
    """

    folder: Path
    model: str | None
    number: int
    shares: Shares
    answers: Path
    workspace: Path
    runtime: Runtime | None = None


class Queue(NamedTuple):
    """The questions and why each was chosen, the version's address, its captioner, and the files by digest."""

    questions: list[tuple[Question, Chosen]]
    model: str
    captioner: Any
    files: dict[str, Path]


def questions_of(options: QueueOptions) -> Queue:
    """Caption the photographs without an answer, and return the questions to ask about them.

    Raises AttendError for options that cannot be used.
    """
    from tasks.mlflow_store.logged_model import load_captioner

    folder, workspace = options.folder, options.workspace
    if not folder.is_dir():
        raise AttendError(f"{folder}: is no folder: give the folder of the photographs")
    answered = {answer["picture"] for _, answer in read_answers(options.answers)} if options.answers.exists() else set()
    registered = find_and_log(options.model, workspace)
    captioner = load_captioner(*registered, options.runtime)
    if takes_grids(captioner.config):
        raise AttendError(f"{registered.address}: takes grids, and there are no photographs to look at")
    pictures = open_pictures([str(folder)], workspace)
    assert isinstance(pictures, PictureFiles)  # because it is a folder
    files = pictures.files()
    questions: list[Question] = []
    unanswered = files.keys() - answered
    unread = len(pictures) - sum(digest is not None for _, digest in pictures.named())
    for batch in caption_all(pictures, unanswered, captioner, registered.address, workspace, None):
        for row, result in batch:
            _, name = files[row["digest"]]
            if row["error"] is None:
                questions.append(_question(row["digest"], name, result))
            else:
                unread += 1
                log.warning(f"{name}: {row['error']}: not asked about")
    if unread:
        log.warning(f"{counted(unread, 'photograph')} without a caption, not asked about")
    if questions and questions[0].confidence is None:
        log.info(
            "this model's captions have no confidence: the least sure are those of least probability a word, and none "
            "is asked about as unlike the training pictures"
        )
    chosen = choose(questions, options.number, options.shares)
    return Queue(chosen, registered.address, captioner, {digest: file for digest, (file, _) in files.items()})


def _question(digest: str, name: str, result: Any) -> Question:
    """Return the question about a captioned photograph. result: the captioner's."""
    mean = result.log_probability / (len(result.tokens) + 1)
    sureness = mean if result.confidence is None else result.confidence
    return Question(digest, name, result.caption, result.confidence, sureness, result.distance)
