"""Adapters that read data sets in the formats in which they are published, one adapter per format.

To add one, write a class in a file of this folder and add its name to `Dataset`.
"""

from typing import Annotated, get_args

from pydantic import Field

from tasks.datasets.arrays import Arrays
from tasks.datasets.base import DatasetOptions
from tasks.datasets.coco import Coco
from tasks.datasets.coco_tensor_file import CocoPt
from tasks.datasets.flickr_tokens import Flickr8k, Flickr30k
from tasks.datasets.huggingface import HuggingFace
from tasks.datasets.image_folder import ImageFolder
from tasks.datasets.karpathy import Karpathy
from tasks.datasets.scenes import Scenes
from tasks.datasets.table import Table
from tasks.datasets.webdataset import WebDataset

Dataset = Annotated[
    ImageFolder | Table | Coco | Karpathy | Flickr8k | Flickr30k | WebDataset | HuggingFace | CocoPt | Arrays | Scenes,
    Field(discriminator="adapter"),
]

ADAPTERS: dict[str, type[DatasetOptions]] = {
    adapter.model_fields["adapter"].default: adapter for adapter in get_args(get_args(Dataset)[0])
}
