"""Gates: captions that are all the same, name one thing everywhere or fit other pictures make no champion."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flows.commands.story import print_end
from flows.page.history import record_run
from flows.page.project_page import write_page
from flows.registered.compare import force_champion, promote_version
from models.vocabulary import END, START
from tasks.config.schema import Config
from tasks.config.stages import RegistryConfig
from tasks.evaluation.caption_and_score import PREDICTIONS
from tasks.evaluation.self_retrieval import self_retrieval
from tasks.grids.index import open_grids
from tasks.metrics import ScoredCaption
from tasks.mlflow_store import tracking
from tasks.mlflow_store.registration_record import REGISTRATION
from tasks.pipeline.ledger import Artifact
from tasks.registry.gates import GateResult, gate_results
from tasks.training.outputs import load_decoder
from tests.support import artifacts, plan, register_all, run_all, small, trained

GATES = {"max_same_caption": 0.5, "max_overused_word": 0.5, "min_retrieved": 0.1}
OBJECTS = ("dog", "child", "bicycle", "boat", "horse", "tree")
Said = Callable[[int], str]


def corpus(say: Said, pictures: int = 120) -> dict[str, ScoredCaption]:
    """Captions of pictures of which people name one object each, with its place."""
    return {
        str(number): ScoredCaption(say(number).split(), [truth(number).split(), f"one {truth(number)}".split()])
        for number in range(pictures)
    }


def truth(number: int) -> str:
    return f"a {OBJECTS[number % len(OBJECTS)]} beside wall number{number}"


def of_all(share: float) -> Callable[[], npt.NDArray[np.bool_]]:
    """101 captions, of which this share find their picture."""
    return lambda: np.arange(101) < share * 101


def results(say: Said, champion: Said | None = None, retrieved: float = 0.4) -> dict[str, GateResult]:
    captions = corpus(say)
    pairs = None
    if champion is not None:
        theirs = corpus(champion)
        pairs = {digest: (theirs[digest], item) for digest, item in captions.items()}
    found = gate_results(RegistryConfig(model="any", **GATES), captions, pairs, of_all(retrieved), {})
    return {result.name: result for result in found}


def test_an_honest_version_passes_with_and_without_a_champion() -> None:
    alone, compared = results(truth), results(truth, champion=truth)
    assert set(alone) == set(compared) == set(GATES)
    assert not any(result.refused for result in [*alone.values(), *compared.values()])


def test_one_caption_for_most_pictures_is_refused() -> None:
    found = results(lambda number: "a dog" if number % 3 else truth(number))["max_same_caption"]
    assert found.refused and found.value == pytest.approx(2 / 3)
    assert '80 of 120 pictures have the same caption, "a dog"' in str(found)
    assert not results(lambda number: "a dog" if number % 2 else truth(number))["max_same_caption"].refused


def test_one_thing_that_is_named_everywhere_is_refused() -> None:
    found = results(lambda number: f"dogs {truth(number)}")["max_overused_word"]
    assert found.refused and found.value == pytest.approx(5 / 6)
    assert '"dogs" is said of 120 of 120 pictures, and people mention it in the captions of 20' in str(found)
    assert results(lambda number: truth(number).replace("a ", "dogs "))["max_overused_word"].refused


def test_captions_that_fit_other_pictures_are_refused() -> None:
    assert results(truth, retrieved=0.01)["min_retrieved"].refused
    assert "2 of 101 captions are likelier for their own picture than for each of 100 others" in str(
        results(truth, retrieved=0.01)["min_retrieved"]
    )
    assert not results(truth, retrieved=0.1)["min_retrieved"].refused


def test_few_pictures_refuse_nothing_by_chance() -> None:
    captions = corpus(lambda number: "a dog" if number < 3 else truth(number), pictures=5)
    registry = RegistryConfig(model="any", max_same_caption=0.5)
    (found,) = gate_results(registry, captions, None, of_all(1), {})
    assert found.value == pytest.approx(0.6) and not found.refused


def test_no_gate_asks_unless_it_is_set() -> None:
    def never() -> npt.NDArray[np.bool_]:
        raise AssertionError("nothing is to be retrieved")

    assert gate_results(RegistryConfig(model="any"), corpus(lambda _: "a dog"), None, never, {}) == []


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, dict[str, Artifact]]:
    """A config whose captions say something, evaluated."""
    config = trained(tmp_path_factory.mktemp("gates"), data__test_share=0.3)
    run_all(config)
    return config, artifacts(config, "evaluate")


def predictions(found: dict[str, Artifact]) -> list[tuple[str, list[int]]]:
    rows = pq.read_table(found["evaluate"].path / PREDICTIONS, columns=["digest", "tokens"]).to_pylist()
    return [(row["digest"], row["tokens"]) for row in rows]


def test_self_retrieval_is_what_forward_says_picture_by_picture(
    evaluated: tuple[Config, dict[str, Artifact]],
) -> None:
    config, found = evaluated
    decoder, _ = load_decoder(found["train"].path)
    grids, captions = open_grids(found["extract"], config.machine), sorted(predictions(found))
    retrieved = self_retrieval(decoder.eval(), grids, captions, torch.device("cpu"))
    scores = np.array(
        [[likelihood(decoder, grids, digest, tokens) for _, tokens in captions] for digest, _ in captions]
    )
    expected = []
    for own in range(len(captions)):
        others = np.delete(scores[:, own], own)
        expected.append(scores[own, own] > others.max())
    assert sorted(retrieved.tolist()) == sorted(expected) and 0 < sum(expected) < len(expected)


@torch.inference_mode()
def likelihood(decoder: Any, grids: Any, digest: str, tokens: list[int]) -> float:
    """The log-probability of a caption, step by step."""
    state, total, last = decoder.start(torch.from_numpy(grids.read([digest])).float()), 0.0, START
    for token in [*tokens, END]:
        logits, state = decoder.step(state, torch.tensor([[last]]))
        total += float(torch.log_softmax(logits[0, 0], dim=0)[token])
        last = token
    return total


def test_captions_of_other_pictures_find_their_picture_by_chance_alone(
    evaluated: tuple[Config, dict[str, Artifact]],
) -> None:
    config, found = evaluated
    decoder, _ = load_decoder(found["train"].path)
    grids, captions = open_grids(found["extract"], config.machine), predictions(found)
    shuffled = [
        (digest, tokens) for (digest, _), (_, tokens) in zip(captions, captions[1:] + captions[:1], strict=True)
    ]
    own, others = (
        self_retrieval(decoder.eval(), grids, pairs, torch.device("cpu")).mean() for pairs in (captions, shuffled)
    )
    assert own > 5 * max(others, 1 / len(captions))


def test_gates_warn_of_the_first_version_and_refuse_later_ones(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from tasks.evaluation import caption_and_score as evaluation

    workspace, real = tmp_path / "workspace", evaluation.write_predictions

    def always_a_dog(*arguments: Any) -> None:
        real(*arguments)
        rows = [{**row, "caption": "a dog"} for row in pq.read_table(arguments[-1]).to_pylist()]
        pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(arguments[-1])), arguments[-1])

    monkeypatch.setattr("tasks.evaluation.evaluate_decoder.write_predictions", always_a_dog)
    gates = {f"registry__{name}": limit for name, limit in GATES.items() if name != "min_retrieved"}
    config = small(workspace, data__pictures=120, data__test_share=0.4, training__epochs=1, **gates)
    register_all(config)
    first = json.loads((artifacts(config)["register"].path / REGISTRATION).read_text())
    assert first["why"].startswith("version 1 is champion: it is the first, although ")
    assert 'pictures have the same caption, "a dog"' in first["why"]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    for gate in ("max_same_caption", "max_overused_word"):  # a warning for each
        assert sum(f"registry.{gate} is 0.5" in warning for warning in warnings) == 1
    client = tracking.connect(workspace)
    assert client.get_registered_model("small").aliases == {"champion": 1}
    config = small(workspace, data__pictures=120, data__test_share=0.4, training__epochs=1, training__seed=1, **gates)
    register_all(config)
    told = json.loads((artifacts(config)["register"].path / REGISTRATION).read_text())
    assert told["alias"] == "challenger" and 'pictures have the same caption, "a dog"' in told["why"]
    tags = client.get_model_version("small", "2").tags
    assert "registry.max_overused_word is 0.5" in tags["attend.gate.max_overused_word"]
    rule = RegistryConfig(model="small", certainty=0.5, min_pictures=1, few_pictures=0, max_loss=0)
    decision = promote_version(workspace, "models:/small/2", rule, None)
    assert decision.alias == "challenger" and "the same caption" in decision.why
    why = force_champion(workspace, "models:/small/2")
    assert why.startswith("version 2 is champion: by hand, although ") and "the same caption" in why
    assert client.get_model_version("small", "2").tags["attend.decision"] == why
    assert client.get_registered_model("small").aliases == {"champion": 2, "previous": 1}
    # The page and the story of the run say who is champion now.
    record_run(config, artifacts(config), ["register"])
    page = write_page(config, plan(config)).read_text(encoding="utf-8")
    assert "<td>champion</td>" in page
    assert "The report of version 2" in page and "Data that is worth a look" in page
    capsys.readouterr()
    print_end(config, artifacts(config), "attend run")
    told_now = capsys.readouterr().out
    assert "champion now; when it was registered: version 2 is challenger" in told_now and "--force" not in told_now


def only(
    name: str,
    limit: float,
    captions: dict[str, ScoredCaption],
    champion: Said | None = None,
    sources: dict[str, set[str]] | None = None,
) -> GateResult:
    """What one gate found in captions; champion: what it says of the same pictures."""
    pairs = None
    if champion is not None:
        theirs = {digest: champion(number).split() for number, digest in enumerate(captions)}
        pairs = {digest: (ScoredCaption(theirs[digest], item.references), item) for digest, item in captions.items()}
    (found,) = gate_results(RegistryConfig(model="any", **{name: limit}), captions, pairs, of_all(1), sources or {})
    return found


def test_a_slice_that_loses_is_refused_whatever_the_rest_gains() -> None:
    def said(number: int) -> str:
        return f"a man walks by wall{number}" if number % 4 else f"one woman runs by tree{number}"

    def references(number: int) -> list[list[str]]:
        return [said(number).split(), f"{said(number)} today".split()]

    worse_of_women = {
        str(number): ScoredCaption(said(number).split() if number % 4 else ["someone"], references(number))
        for number in range(80)
    }
    found = only("max_slice_loss", 0.1, worse_of_women, champion=said)
    assert found.refused and 'CIDEr loses 100.0% of the champion\'s on 20 pictures, "people call it a woman"' in str(
        found
    )
    same = {str(number): ScoredCaption(said(number).split(), references(number)) for number in range(80)}
    assert not only("max_slice_loss", 0.1, same, champion=said).refused


def test_a_source_that_loses_is_refused() -> None:
    def said(number: int) -> str:
        return f"someone walks by wall{number}"

    looked_at = {str(number): {"people"} for number in range(30)}
    worse = {
        str(number): ScoredCaption(said(number).split() if number >= 30 else ["x"], [said(number).split()])
        for number in range(120)
    }
    found = only("max_slice_loss", 0.1, worse, champion=said, sources=looked_at)
    assert found.refused and '100.0% of the champion\'s on 30 pictures, "source people"' in str(found)


def test_slices_are_scored_with_intervals_and_told_in_the_card() -> None:
    from tasks.evaluation.slices import scores_by_slice

    a_man = ScoredCaption(["a", "man"], [["a", "man", "stands", "alone", "with", "wool"]])
    captions = {**corpus(truth), **{f"man {number}": a_man for number in range(20)}}
    sources = {digest: {"people", "web"} if digest == "man 0" else {"people"} for digest in captions if "man" in digest}
    found = {part.name: part for part in scores_by_slice(captions, sources)}
    assert found["people call it a man"].pictures == found["source people"].pictures == 20
    assert "source web" not in found  # of one picture
    tiny = 1e-9  # a mean of equal numbers is rounded
    assert all(part.interval[0] - tiny <= part.cider <= part.interval[1] + tiny for part in found.values())
