"""Formats of data sets, one adapter each."""

from typing import Annotated, get_args

from pydantic import Field

from tasks.datasets.base import DatasetOptions
from tasks.datasets.formats import Format
from tasks.datasets.sources import Sources

Dataset = Annotated[Format | Sources, Field(discriminator="adapter")]

ADAPTERS: dict[str, type[DatasetOptions]] = {
    adapter.model_fields["adapter"].default: adapter for adapter in (*get_args(Format), Sources)
}
