"""The settings and input files of a model, as the parameters of its MLflow run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.grids.extract import Extract
from tasks.pipeline.plan import Inputs
from tasks.pipeline.stage import Stage
from tasks.training.train import Train


def run_params(stage: Stage, inputs: Inputs) -> dict[str, Any]:
    """Return `section.field` -> value for a training stage and all stages before it.

    The digests of input files are included, as `grids.weights` and `decoder.NAME`. Fields that are None are left out.
    inputs: name of a stage -> digests of its inputs from outside the workspace.
    """
    params: dict[str, Any] = {}
    files: dict[str, str] = {}
    for current in (*stage.all_upstream(), stage):
        for name, section in current.sections().items():
            params |= {f"{name}.{field}": value for field, value in section.key_part().items() if value is not None}
        digests: Mapping[str, str] = inputs.get(current.name, {})
        if isinstance(current, Extract):
            files["grids.weights"] = digests["weights"]
        elif isinstance(current, Train):
            files |= {f"decoder.{name}": digest for name, digest in digests.items()}
    return {**params, **files}
