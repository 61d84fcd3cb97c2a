"""The whole pipeline in order, from photographs and captions to a registered captioner.

Each stage gets the sections of the config and the stages that it depends on. Stages run in the order of their
dependencies (`Stage.needs`), which is the order of the lines. Nothing runs here and nothing heavy is imported:
tasks/pipeline/plan.py finds out which stages are stale, and flows/operations/run_flow.py runs them with Prefect.
"""

from __future__ import annotations

from dataclasses import replace

from tasks.config.schema import Config
from tasks.data.ingest import Ingest
from tasks.data.tensorise import Tensorise
from tasks.evaluation.evaluate import Evaluate
from tasks.grids.extract import Extract
from tasks.neighbours.remember import Remember
from tasks.pipeline.stage import Pipeline
from tasks.registry.register import Register
from tasks.training.self_critical import SelfCritical
from tasks.training.train import DecoderStage, Train
from tasks.training.tune import Tune, TunedDecoder

_FROZEN_SUFFIX = "-frozen"  # ends the names of the stages before `tune`, which use the frozen backbone


def build_pipeline(config: Config) -> Pipeline:
    """Return the stages of a config, in the order of running."""
    machine, start = config.machine, config.starting_point
    # The stages before `tune` have the same keys as in a config without `tuning`, so they share artifacts.
    suffix = "" if config.tuning is None else _FROZEN_SUFFIX

    manifest = Ingest(machine=machine, data=config.data)
    grids = Extract(machine=machine, suffix=suffix, grids=config.grids, data=config.data, manifest=manifest)
    captions = Tensorise(machine=machine, captions=config.captions, manifest=manifest, start=start)
    trained = Train(
        machine=machine,
        suffix=suffix,
        decoder=config.decoder,
        training=config.training,
        start=start,
        grids=grids,
        captions=captions,
    )
    decoder: DecoderStage = trained

    if config.tuning is not None:
        tuned = Tune(machine=machine, tuning=config.tuning, data=config.data, frozen=trained)
        grids = replace(grids, suffix="", tuned=tuned)
        decoder = TunedDecoder(machine=machine, decoder=config.decoder, tuned=tuned, grids=grids, captions=captions)

    if config.self_critical is not None:
        decoder = SelfCritical(
            machine=machine,
            decoder=config.decoder,
            self_critical=config.self_critical,
            trained=decoder,
            grids=grids,
            captions=captions,
        )

    memory = Remember(machine=machine, memory=config.memory, grids=grids, captions=captions, start=start)
    scores = Evaluate(machine=machine, evaluation=config.evaluation, decoder=decoder, memory=memory)
    registered = Register(machine=machine, config=config, scores=scores)
    return Pipeline.ending_in(registered, config)
