"""The whole pipeline in order, from photographs and captions to a registered captioner.

Each line creates a stage and passes it the stages that it depends on. Stages run in the order of what they need
(`Stage.needs`), which is that of the lines. Nothing runs here and nothing heavy is imported:
tasks/pipeline/plan.py finds out which of these stages are stale, and flows/operations/run_flow.py has Prefect run them.
"""

from __future__ import annotations

from tasks.config.schema import Config
from tasks.data.ingest import ingest
from tasks.data.tensorise import tensorise
from tasks.evaluation.evaluate import evaluate
from tasks.grids.extract import extract
from tasks.neighbours.remember import remember
from tasks.pipeline.stage import Pipeline
from tasks.registry.register import register
from tasks.training.self_critical import self_critical
from tasks.training.train import DecoderStage, train
from tasks.training.tune import tune, tuned_decoder

_FROZEN_SUFFIX = "-frozen"  # ends the names of the stages before `tune`, whose backbone is frozen


def build_pipeline(config: Config) -> Pipeline:
    """Return the stages of a config, in the order in which they run."""
    # The stages before `tune` have the keys of a config without `tuning`: they share artifacts.
    suffix = "" if config.tuning is None else _FROZEN_SUFFIX

    manifest = ingest(config)
    grids = extract(config, manifest, suffix=suffix)
    captions = tensorise(config, manifest)
    trained = train(config, grids, captions, suffix=suffix)
    decoder: DecoderStage = trained

    if config.tuning is not None:
        tuned = tune(config, config.tuning, trained)
        grids = extract(config, manifest, tuned)
        decoder = tuned_decoder(config, tuned, grids, captions)

    if config.self_critical is not None:
        decoder = self_critical(config, config.self_critical, decoder)

    memory = remember(config, grids, captions)
    scores = evaluate(config, decoder, memory)
    registered = register(config, scores)
    return Pipeline.ending_in(registered, config)
