"""`attend review`: people review and correct a model's captions, and the next run learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import Json, RuntimeOption, WorkspaceOption, print_json, whole_number
from tasks.common.errors import AttendError

if TYPE_CHECKING:
    from tasks.review.rates import Rate

_SHOWN = 10  # most frequent changes of words printed
_Answers = Annotated[
    Path | None, typer.Option(help="file of the answers (JSON lines); default: reviews.jsonl in the workspace")
]

app = typer.Typer(help="Have people correct captions, from which the next run learns.", no_args_is_help=True)


@app.command()
def serve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="folder of the photographs")],
    model: Annotated[
        str | None, typer.Option(help="models:/NAME@ALIAS or models:/NAME/VERSION, or an exported folder")
    ] = None,
    number: Annotated[int, typer.Option(help="maximum number of pictures to ask about", **whole_number(1))] = 100,
    share: Annotated[
        float,
        typer.Option(min=0, max=1, help="share of these pictures that is drawn at random, to measure the captions"),
    ] = 0.2,
    unlike: Annotated[
        float, typer.Option(min=0, max=1, help="share of these pictures that is least like the training pictures")
    ] = 0.2,
    answers: _Answers = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; any address but loopback requires the printed token")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", **whole_number(1, 65535))] = 8001,
    runtime: RuntimeOption = None,
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Serve a page on which people accept, correct or reject the captions of photographs that are worth checking."""
    from flows.registered.review_queue import QueueOptions
    from flows.review.serve import serve_review
    from tasks.review.queue import Shares

    if share + unlike > 1:
        raise AttendError(f"--share {share:g} and --unlike {unlike:g}: give shares that are 1 together, or less")
    file = _file_of(answers, workspace)
    options = QueueOptions(folder, model, number, Shares(share, unlike), file, workspace, runtime)
    if not serve_review(options, host, port):
        typer.echo(f"{folder}: nothing to ask about: its photographs were answered, or cannot be read")


def _file_of(answers: Path | None, workspace: Path) -> Path:
    """Return the file of the answers; AttendError if none is given and the workspace is in object storage."""
    from tasks.datasets.corrections import ANSWERS_FILE
    from tasks.pipeline.workspace import Workspace

    if answers is not None:
        path = answers.expanduser().absolute()
        if path.is_dir() or not path.parent.is_dir():
            raise AttendError(f"--answers: {answers}: {'is a folder' if path.is_dir() else 'its folder is not there'}")
        return path
    if Workspace(workspace).remote is not None:
        raise AttendError("--answers: the workspace is in object storage: give a file of this machine for the answers")
    return workspace / ANSWERS_FILE


@app.command()
def summary(answers: _Answers = None, workspace: WorkspaceOption = Path("workspace"), as_json: Json = False) -> None:
    """Print how many captions people accepted, by version and week, what they changed, and how often they agreed."""
    from tasks.datasets.corrections import read_answers
    from tasks.review.rates import summarise

    path = _file_of(answers, workspace)
    if not path.exists():
        raise AttendError(f"{path}: no such file: `attend review serve` writes it")
    totals = summarise(answer for _, answer in read_answers(path))
    if as_json:
        print_json(
            {
                "answers": sum(totals.verdicts.values()),
                "verdicts": totals.verdicts,
                **{
                    name: [rate._asdict() for rate in getattr(totals, name)] for name in ("versions", "weeks", "chosen")
                },
                "calibration": [{"confidence": one.confidence, **one.rate._asdict()} for one in totals.calibration],
                "edits": [{"from": before, "to": after, "times": times} for before, after, times in totals.edits],
                "agreement": None if totals.agreement is None else totals.agreement._asdict(),
            }
        )
        return
    verdicts = ", ".join(f"{number:,} {verdict}" for verdict, number in totals.verdicts.items())
    typer.echo(f"{sum(totals.verdicts.values()):,} answers: {verdicts}")
    for title, rates in (
        ("accepted, of those asked at random, by version", totals.versions),
        ("by week", totals.weeks),
        ("accepted, by why they were asked about", totals.chosen),
        ("accepted, by the model's confidence", [one.rate for one in totals.calibration]),
        ("pairs of people who agree", [totals.agreement] if totals.agreement else []),
    ):
        _print_rates(title, rates)
    if totals.edits:
        typer.echo("changed most often:")
    for before, after, times in totals.edits[:_SHOWN]:
        typer.echo(f"  {times:4}  {before or '(nothing)'} -> {after or '(nothing)'}")


def _print_rates(title: str, rates: list[Rate]) -> None:
    """Print a line for each rate, under a title; nothing if there are none."""
    if rates:
        typer.echo(f"{title}:")
    for rate in rates:
        typer.echo(f"  {rate.of:<28} {100 * rate.share:5.1f} %  ({rate.counted})")
