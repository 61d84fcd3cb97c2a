"""Rules stand once: what a decoder's options are by default, and what does not go together."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from models.decoders import DECODERS
from models.options import Decoding
from tasks.common.errors import AttendError
from tasks.config.decoder import DecoderConfig
from tasks.config.schema import refusals, validate
from tasks.config.stages import EvaluationConfig
from tests.support import small


@pytest.mark.parametrize("name", DECODERS)
def test_a_config_that_sets_nothing_has_the_options_defaults(name: str) -> None:
    assert DecoderConfig(name=name).resolved() == DECODERS[name].options()
    assert DecoderConfig(name=name).key_part().items() >= {"name": name, "embedding": 512}.items()


def test_every_option_can_be_set() -> None:
    options = {item.name for member in DECODERS.values() for item in fields(member.options)}
    assert options == set(DecoderConfig.model_fields) - {"name", "members"}
    decoding = {item.name for item in fields(Decoding)} - {"top_k", "top_p", "seed", "min_length"}  # of requests alone
    assert decoding == set(EvaluationConfig.model_fields) - {"split", "metrics", "acceptable"}
    assert EvaluationConfig().decoding() == Decoding(neighbours=True)
    assert EvaluationConfig(search="sample").decoding() == Decoding(search="sample")


@pytest.mark.parametrize("name", DECODERS)
def test_the_defaults_that_descriptions_name(name: str) -> None:
    named = 0
    for option in fields(DECODERS[name].options):
        description = DecoderConfig.model_fields[option.name].description or ""
        told = re.search(r"default: (.+)$", description)
        assert told is not None, option.name
        general, _, special = told[1].replace("`", "").partition(", for ")
        other, _, value = special.rpartition(" ")
        expected = yaml.safe_load(value if other == name else general)
        if option.default is None:
            assert isinstance(expected, str)  # a sentence
        else:
            assert expected == option.default, option.name
            named += 1
    assert named >= 7


def test_options_that_clash_are_refused_by_config_and_decoder_alike() -> None:
    message = r"tie_weights: embedding has size 512, the output has 256: set decoder\.embedding=256"
    for refuse in (DecoderConfig, lambda name, **options: DECODERS[name].options(**options)):
        with pytest.raises(ValueError, match=message):
            refuse(name="lstm", hidden=256, tie_weights=True)
        with pytest.raises(ValueError, match=r"hidden: 30 is not a multiple of 4 and of decoder\.heads=8"):
            refuse(name="transformer", hidden=30)


def test_settings_shared_with_training_are_set_there_alone(tmp_path: Path) -> None:
    config = small(tmp_path, tuning={"epochs": 1}, self_critical={}, training__seed=7, training__label_smoothing=0.1)
    assert config.tuning is not None and config.self_critical is not None
    assert (config.tuning.seed, config.tuning.label_smoothing, config.self_critical.seed) == (7, 0.1, 7)
    assert validate(config.model_dump(mode="json"), "again") == config  # a config that is written is read again
    with pytest.raises(AttendError, match=r"tuning\.patience: is that of training: set training\.patience"):
        small(tmp_path, tuning={"patience": 9})


def test_a_shared_field_is_refused_among_all_that_is_wrong() -> None:
    found, config = refusals("flickr8k_tuned", ["data.path=.", "tuning.patience=3"])
    assert found == ["tuning.patience: is that of training: set training.patience"] and config is not None
