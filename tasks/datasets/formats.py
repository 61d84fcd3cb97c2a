"""The supported formats, one adapter each. To add one, write a class in a file of this folder and list it below."""

from __future__ import annotations

from tasks.datasets.arrays import Arrays
from tasks.datasets.coco import Coco
from tasks.datasets.coco_tensor_file import CocoPt
from tasks.datasets.corrections import Corrections
from tasks.datasets.flickr_tokens import Flickr8k, Flickr30k
from tasks.datasets.huggingface import HuggingFace
from tasks.datasets.image_folder import ImageFolder
from tasks.datasets.karpathy import Karpathy
from tasks.datasets.scenes import Scenes
from tasks.datasets.table import Table
from tasks.datasets.texts import Texts
from tasks.datasets.webdataset import WebDataset

Format = (
    ImageFolder
    | Table
    | Texts
    | Coco
    | Karpathy
    | Flickr8k
    | Flickr30k
    | WebDataset
    | HuggingFace
    | CocoPt
    | Arrays
    | Scenes
    | Corrections
)
