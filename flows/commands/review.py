"""`attend review`: people look at a model's captions, correct them, and the next run learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import Json, RuntimeOption, WorkspaceOption, print_json, whole_number
from tasks.common.errors import AttendError
from tasks.common.log import log

if TYPE_CHECKING:
    from tasks.review.rates import Rate

_FILE = "reviews.jsonl"  # of the answers, in the workspace
_SHOWN = 10  # words that were changed
_Answers = Annotated[
    Path | None, typer.Option(help="file of the answers, JSON lines; by default reviews.jsonl in the workspace")
]

app = typer.Typer(help="People correct captions, and the next run learns from it.", no_args_is_help=True)


@app.command()
def queue(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="folder of the photographs")],
    out: Annotated[Path, typer.Option(help="write the tasks into this .json file, and the interface beside it")],
    model: Annotated[str | None, typer.Option(help="models:/NAME@ALIAS or models:/NAME/VERSION")] = None,
    number: Annotated[int, typer.Option(help="the most pictures to ask about", **whole_number(1))] = 100,
    share: Annotated[
        float, typer.Option(min=0, max=1, help="share of them that is drawn at random, to measure the captions by")
    ] = 0.2,
    prefix: Annotated[
        str | None, typer.Option(help="what precedes a picture's name in its address; by default Label Studio's folder")
    ] = None,
    answers: _Answers = None,
    runtime: RuntimeOption = None,
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Write the photographs worth a look as tasks for Label Studio: the least sure ones, and some at random."""
    from flows.registered.review_queue import write_queue
    from tasks.review.label_studio import LOCAL_FILES

    at = workspace.expanduser().absolute()
    address = LOCAL_FILES if prefix is None else prefix
    written = write_queue(out, folder, model, number, share, answers or at / _FILE, address, at, runtime)
    if not written:
        typer.echo(f"{folder}: nothing to ask about: its photographs were answered, or cannot be read")
        return
    typer.echo(f"{out}: {written:,} tasks; the interface of the project: {out.with_suffix('.xml')}")


@app.command()
def take(
    export: Annotated[Path, typer.Argument(metavar="EXPORT.json", help="what Label Studio exported as JSON")],
    answers: _Answers = None,
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Add the answers of an export of Label Studio to the file of answers, each once."""
    from tasks.datasets.corrections import add_answers, read_answers
    from tasks.pipeline.workspace import Workspace
    from tasks.registry import tracking
    from tasks.registry.reviewed import note_rates
    from tasks.review.label_studio import answers_in
    from tasks.review.rates import figures

    at = workspace.expanduser().absolute()
    path = answers or at / _FILE
    given = answers_in(export)
    with Workspace(at).lock("reviews", f"answers of {path}"):
        before = [answer for _, answer in read_answers(path)] if path.exists() else []
        known = {answer.get("source") for answer in before}
        by_source = {answer["source"]: answer for answer in given}
        new = [answer for source, answer in by_source.items() if source not in known]
        if new:
            add_answers(path, new)
    typer.echo(f"{path}: {len(new):,} answers added, {len(by_source) - len(new):,} were there")
    try:
        unknown = note_rates(tracking.connect(at, must_exist=True), figures([*before, *new]).versions)
    except AttendError as error:
        log.warning(f"the versions in MLflow do not say what people accepted: {error}")
    else:
        for address in unknown:
            log.warning(
                f"{address}: is not registered here: MLflow does not say how many of its captions were accepted"
            )
    typer.echo(f"to learn from them, add to data.sources: {{adapter: corrections, path: {path}, images: FOLDER}}")


@app.command()
def summary(answers: _Answers = None, workspace: WorkspaceOption = Path("workspace"), as_json: Json = False) -> None:
    """Print how many captions people accepted, by version and week, what they changed, and how far they agree."""
    from tasks.datasets.corrections import read_answers
    from tasks.review.rates import figures

    path = answers or workspace.expanduser().absolute() / _FILE
    if not path.exists():
        raise AttendError(f"{path}: no such file: `attend review take` writes it")
    found = figures(answer for _, answer in read_answers(path))
    if as_json:
        print_json(
            {
                "answers": found.answers,
                **{name: [rate._asdict() for rate in getattr(found, name)] for name in ("versions", "weeks", "chosen")},
                "calibration": [{"confidence": one.confidence, **one.rate._asdict()} for one in found.calibration],
                "edits": [{"from": before, "to": after, "times": times} for before, after, times in found.edits],
                "agreement": None if found.agreement is None else found.agreement._asdict(),
            }
        )
        return
    typer.echo(f"{found.answers:,} answers")
    for title, rates in (
        ("accepted, of those asked at random, by version", found.versions),
        ("by week", found.weeks),
        ("accepted, by why they were asked about", found.chosen),
        ("accepted, by the model's confidence", [one.rate for one in found.calibration]),
        ("pairs of people who agree", [found.agreement] if found.agreement else []),
    ):
        _print_rates(title, rates)
    if found.edits:
        typer.echo("changed most often:")
    for before, after, times in found.edits[:_SHOWN]:
        typer.echo(f"  {times:4}  {before or '(nothing)'} -> {after or '(nothing)'}")


def _print_rates(title: str, rates: list[Rate]) -> None:
    """Print a line for each rate, under a title; nothing where there is none."""
    if rates:
        typer.echo(f"{title}:")
    for rate in rates:
        typer.echo(f"  {rate.of:<28} {100 * rate.share:5.1f} %  ({rate.counted})")
