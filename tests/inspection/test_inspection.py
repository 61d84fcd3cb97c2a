"""The inspection of data by the trained model: planted faults are found, and what is as it should be is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tasks.inspection.doubtful_captions import doubts_of
from tasks.inspection.drift import LEVEL, measure_drift
from tasks.inspection.look_alikes import look_alikes
from tasks.inspection.record import ALIKE, DOUBTFUL, UNLIKE, UNUSUAL, describe_drift, read_inspection
from tasks.inspection.unusual_captions import script_of, unusual_captions
from tasks.mlflow_store import tracking
from tests.support import artifacts, register_all, trained


def sample(count: int, seed: int, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, 16, generator=generator) + 1 + shift * torch.arange(16) / 16, dim=1)


def test_drift_has_its_level_and_is_found() -> None:
    """At 1 %, of 150 halves of one world five and more alarms have a probability of under 2 %."""
    whole = sample(120, seed=0)
    alarms = 0
    for seed in range(150):
        order = torch.randperm(120, generator=torch.Generator().manual_seed(seed))
        alarms += measure_drift(whole[order[:60]], whole[order[60:]], seed)["alarm"]
    assert alarms <= 4
    found = measure_drift(sample(60, 1), sample(60, 2, shift=1.5))
    assert found["alarm"] and found["probability"] == pytest.approx(1 / 1000) and found["distance"] > 0
    assert (found["known"], found["arrived"]) == (60, 60)


def test_drift_is_the_energy_distance_pair_by_pair() -> None:
    first, second = sample(7, 1), sample(5, 2, shift=1)

    def mean(one: Tensor, other: Tensor) -> float:
        return float(np.mean([float((a - b).norm()) for a in one for b in other]))

    expected = 2 * mean(first, second) - mean(first, first) - mean(second, second)
    assert measure_drift(first, second)["distance"] == pytest.approx(expected, abs=1e-5)


def test_look_alikes_are_pairs_much_closer_than_neighbours_are() -> None:
    pooled = sample(1500, 3)
    twins = normalize(pooled[[7, 1200]] + 0.002, dim=1)
    found, total = look_alikes(torch.cat([pooled, twins]), most=10)
    assert total >= len(found) >= 2
    assert {(pair.first, pair.second) for pair in found[:2]} == {(7, 1500), (1200, 1501)}
    assert all(pair.distance < 0.56 for pair in found) and look_alikes(pooled, most=1)[0][:1] == found[2:3]
    assert look_alikes(pooled[:2], most=10) == ([], 0)


def test_a_caption_that_gains_nothing_where_the_others_do_is_doubtful() -> None:
    values = doubts_of(np.array([2.0, 2.2, -0.1, 1.9]))
    assert values.argmax() == 2 and values[2] > 1 and max(values[[0, 1, 3]]) < -0.9
    assert doubts_of(np.array([0.4])).tolist() == [-0.4]


def test_captions_of_another_language_script_or_length_stand_out() -> None:
    usual = [f"a {colour} dog runs over the {place}" for colour in ("red", "big", "old", "wet") for place in
             ("hill", "road", "sand", "grass", "snow")]  # fmt: skip
    captions = {str(number): usual[number % 20 :][:5] or usual[:5] for number in range(60)}
    assert unusual_captions(captions) == []
    planted = {
        "german": "ein Hund springt aus dem Wasser",
        "russian": "собака бежит по траве",
        "numbers": "12 34",
        "long": " ".join(["a red dog runs over the hill and"] * 6),
        "short": "dog",
    }
    found = {item.digest: item.why for item in unusual_captions({**captions, **{k: [v] for k, v in planted.items()}})}
    assert found.keys() == planted.keys()
    assert "written in Cyrillic letters, the others in Latin" in found["russian"] and "words" in found["long"]
    assert "6 of its 6 words are in hardly any other caption" in found["german"]
    assert unusual_captions({"one": ["dog", "собака"]}) == []  # too few to say what is usual
    assert script_of("ネコが座る") == script_of("猫") == "CJK"


@pytest.mark.slow
def test_the_champions_pictures_are_known_and_faults_that_arrive_are_found(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    first = trained(workspace, data__pictures=120, data__test_share=0.2)
    register_all(first)
    before = read_inspection(artifacts(first)["register"].path)
    assert before is not None and "no champion" in str(before["drift"]) and before["captions"] == 600
    more = trained(workspace, data__pictures=160, data__test_share=0.2)
    register_all(more)
    folder = artifacts(more)["register"].path
    after = read_inspection(folder)
    assert after is not None and not isinstance(after["drift"], str)
    assert after["drift"]["known"] == 120 and after["drift"]["arrived"] == 40 and not after["drift"]["alarm"]
    rows = pq.read_table(folder / "findings.parquet").to_pylist()
    known = set(pq.read_table(artifacts(first)["ingest"].path / "manifest.parquet")["digest"].to_pylist())
    assert {row["kind"] for row in rows} <= {ALIKE, DOUBTFUL, UNLIKE, UNUSUAL}
    unlike = [row for row in rows if row["kind"] == UNLIKE]
    assert unlike and known.isdisjoint(row["digest"] for row in unlike)
    page = (folder / "inspection.html").read_text(encoding="utf-8")
    assert page.count("<img ") >= len(unlike) and "http" not in page.replace("http-equiv", "")
    client = tracking.connect(workspace)
    tags = client.get_model_version("small", "2").tags
    assert tags["attend.drift"] == describe_drift(after["drift"]) and f"{LEVEL:g}" in tags["attend.drift"]


def test_captions_of_other_pictures_are_found(tmp_path: Path) -> None:
    """A tenth of the captions were exchanged before the training: they lead the list of doubtful ones."""
    import random

    from sklearn.metrics import roc_auc_score

    from tasks.data.caption_files import read_captions
    from tasks.data.manifest import read_pictures
    from tasks.grids.index import open_grids
    from tasks.inspection.doubtful_captions import doubts
    from tasks.training.outputs import load_decoder
    from tests.support import run_all

    config = trained(tmp_path / "workspace", data__pictures=300, training__epochs=15)
    run_all(config)
    found = artifacts(config, "train")
    grids = open_grids(found["extract"], config.machine)
    captioned = read_captions(found["tensorise"].path, "dev") + read_captions(found["tensorise"].path, "train")[:60]
    generator = random.Random(0)
    places = [(picture, row) for picture in range(len(captioned)) for row in range(len(captioned[picture].tokens))]
    moved = generator.sample(places, len(places) // 10)
    tokens = [picture.tokens.copy() for picture in captioned]
    for (to, row), (source, other) in zip(moved, moved[1:] + moved[:1], strict=True):
        tokens[to][row] = captioned[source].tokens[other]
    planted = [type(picture)(picture.digest, own) for picture, own in zip(captioned, tokens, strict=True)]
    decoder, _ = load_decoder(found["train"].path)
    known = [picture.digest for picture in read_pictures(found["ingest"].path, "train")]
    mean = torch.from_numpy(grids.read(known).mean(axis=0, dtype=np.float32))
    values = doubts(decoder.eval(), mean, grids, planted, torch.device("cpu"), 60)
    is_moved = [place in set(moved) for place in places]
    assert roc_auc_score(is_moved, np.concatenate(values)) > 0.8
