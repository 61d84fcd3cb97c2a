"""`attend score`: any captions against any references, in the toolkit's formats or ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import Json, print_json
from tasks.common.errors import AttendError


def score(
    predictions: Annotated[
        Path, typer.Argument(metavar="PREDICTIONS", help="COCO results (.json), or attend's predictions.parquet")
    ],
    references: Annotated[
        Path | None,
        typer.Argument(metavar="REFERENCES", help="COCO annotations (.json); predictions.parquet brings its own"),
    ] = None,
    metrics: Annotated[str, typer.Option(help="which, by names with commas between")] = "bleu,meteor,rouge,cider",
    as_json: Json = False,
) -> None:
    """Score captions against references: BLEU, METEOR, ROUGE-L, CIDEr, with intervals and a signature."""
    from tasks.common.errors import nearest
    from tasks.evaluation.caption_statistics import language
    from tasks.evaluation.coco_files import corpus_of
    from tasks.evaluation.predictions import score_corpus, score_lines
    from tasks.metrics import METRICS

    names = tuple(name.strip() for name in metrics.split(","))
    known = {name: member for name, member in METRICS.items() if not member.needs_facts}
    for name in names:
        if name not in known:
            raise AttendError(f"--metrics: unknown metric {name!r}{nearest(name, known)}")
    corpus = corpus_of(predictions, references)
    told = {**score_corpus(corpus, names), "language": language(corpus)}
    if as_json:
        print_json(told)
    else:
        typer.echo("\n".join(score_lines(told)))
