"""`attend score`: score captions against references, in the COCO toolkit's file formats or attend's."""

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
        typer.Argument(
            metavar="REFERENCES",
            help="COCO annotations (.json); not for predictions.parquet, which contains its references",
        ),
    ] = None,
    metrics: Annotated[str, typer.Option(help="metrics, separated by commas")] = "bleu,meteor,rouge,cider",
    as_json: Json = False,
) -> None:
    """Score captions against references with BLEU, METEOR, ROUGE-L and CIDEr, with intervals and a signature."""
    from tasks.common.errors import suggestion
    from tasks.common.log import log
    from tasks.evaluation.caption_and_score import score_corpus, score_lines
    from tasks.evaluation.coco_files import corpus_of
    from tasks.metrics import METRICS

    names = tuple(name.strip() for name in metrics.split(","))
    computable = {name: member for name, member in METRICS.items() if not member.needs_facts}
    for name in names:
        if name not in computable:
            raise AttendError(f"--metrics: unknown metric {name!r}{suggestion(name, computable)}")
    corpus = corpus_of(predictions, references)
    if len(corpus) == 1 and "cider" in names:
        log.warning("cider: of a single picture it is 0 by definition: its words are those of all pictures")
    scores = score_corpus(corpus, names)
    if as_json:
        print_json(scores)
    else:
        typer.echo("\n".join(score_lines(scores)))
