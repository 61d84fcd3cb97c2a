"""All that made a model, as the parameters of its MLflow run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.grids.extract import Grids
from tasks.pipeline.plan import Inputs
from tasks.pipeline.stage import Stage
from tasks.training.train import Trained


def params_of(stage: Stage, inputs: Inputs) -> dict[str, Any]:
    """Return `section.field` -> value for a training stage and all stages before it, and the files that they read.

    inputs: name of a stage -> digests of what came to it from outside.
    """
    params: dict[str, Any] = {}
    files: dict[str, str] = {}
    for made_by in (*stage.before(), stage):
        for name, section in made_by.sections().items():
            params |= {f"{name}.{field}": value for field, value in section.key_part().items() if value is not None}
        given: Mapping[str, str] = inputs.get(made_by.name, {})
        if isinstance(made_by, Grids):
            files["grids.weights"] = given["weights"]
        elif isinstance(made_by, Trained):
            files |= {f"decoder.{name}": digest for name, digest in given.items()}
    return {**params, **files}
