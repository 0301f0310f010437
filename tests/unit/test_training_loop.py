"""The loop of training: it learns, it goes on exactly, and nothing that stops it leaves it broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from checkpoint_files import random_weights  # noqa: E402
from harken.errors import OptionError, OutputError  # noqa: E402
from harken.training import graft  # noqa: E402
from harken.training.acceptance import Acceptance, count_acceptance, count_forward_passes  # noqa: E402
from harken.training.example_store import ExampleStore  # noqa: E402
from harken.training.loop import LoopCallbacks, count_steps, learning_rate_at, train  # noqa: E402
from harken.training.network import run_decoder, run_encoder  # noqa: E402
from harken.training.objective import Distillation, FineTuning, SequenceBatch, mask_time  # noqa: E402
from harken.training.options import DistillOptions  # noqa: E402
from harken.training.run_directory import RunDirectory, snapshot  # noqa: E402
from harken.training.student import (  # noqa: E402
    TOKEN_EMBEDDING,
    copy_decoder_layers,
    evenly_spaced_layers,
    scored_token_ids,
    student_dims,
    trainable_weights,
)
from harken.types import Dims  # noqa: E402
from tiny_models import DIMS, TOKENIZER, make_backend, make_mel, make_weights  # noqa: E402
from training_data import make_example, make_examples  # noqa: E402

OPTIONS = DistillOptions(
    epochs=6, batch_size=3, learning_rate=5e-3, eval_steps=4, dropout=0.1, mask_time_fraction=0.2
)


def distillation(options: DistillOptions = OPTIONS, looks_at: int = DIMS.n_vocab) -> Distillation:
    weights = copy_decoder_layers(make_weights(), (1,))
    return Distillation(
        dims=student_dims(DIMS, 1),
        weights=weights,
        trainable=trainable_weights(weights),
        scored_ids=np.arange(looks_at),
        teacher_embedding=weights[TOKEN_EMBEDDING],
        dtype=torch.float32,
        options=options,
    )


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny matrices: threads would mostly wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Training:
    """A small training in a folder; may be stopped behind any step."""

    def __init__(self, folder: Path, options: DistillOptions = OPTIONS) -> None:
        self.journal, self.options = RunDirectory(folder / "training"), options
        self.library = ExampleStore(self.journal.examples_folder)
        self.journal.create_or_resume({"task": "test"})
        self.pieces = make_examples(self.library, 7)
        self.held_out = make_examples(self.library, 2, held_out=True)
        self.best: list[int] = []

    def run(self, stop_after: int | None = None) -> tuple[bool, dict[str, torch.Tensor]]:
        objective, done = distillation(self.options), [0]

        def step(number: int, of: int, loss: float) -> None:
            done[0] = number

        watch = LoopCallbacks(
            on_step=step,
            on_best=lambda point: self.best.append(point.step),
            should_stop=lambda: done[0] == stop_after,
        )
        ended = train(objective, self.pieces, self.held_out, self.library, self.journal, self.options, 5, watch)
        return ended, snapshot(objective.trainable)


def test_it_learns(tmp_path: Path) -> None:
    training = Training(tmp_path)
    ended, _ = training.run()
    points = training.journal.load_learning_curve()
    assert ended
    assert [point.step for point in points] == [0, 4, 8, 12, 16, 18]
    losses = [point.loss for point in points if point.loss is not None]
    assert losses[-1] < 0.5 * losses[0]
    assert points[-1].held_out.mean_loss < 0.3 * points[0].held_out.mean_loss
    assert points[-1].held_out.acceptance_rate > 0.9
    merits = [point.held_out.ranking_key for point in points]
    assert training.best == [p.step for i, p in enumerate(points) if merits[i] == max(merits[: i + 1])]


@pytest.mark.parametrize("stops", [(1,), (4,), (5, 14)])
def test_going_on_gives_bit_equal_weights(tmp_path: Path, stops: tuple[int, ...]) -> None:
    whole, parts = Training(tmp_path / "whole"), Training(tmp_path / "parts")
    _, wanted = whole.run()
    for stop in stops:
        ended, _ = parts.run(stop_after=stop)
        assert not ended
    ended, got = parts.run()
    assert ended
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)
    assert parts.journal.load_learning_curve() == whole.journal.load_learning_curve()


def test_an_end_without_warning_loses_only_what_was_not_saved(tmp_path: Path) -> None:
    whole, parts = Training(tmp_path / "whole"), Training(tmp_path / "parts")
    _, wanted = whole.run()

    class Killed(BaseException):
        pass

    def killed(number: int, of: int, loss: float) -> None:
        if number == 11:
            raise Killed

    objective = distillation()
    with pytest.raises(Killed):
        train(
            objective,
            parts.pieces,
            parts.held_out,
            parts.library,
            parts.journal,
            OPTIONS,
            5,
            LoopCallbacks(on_step=killed),
        )
    assert parts.journal.load_state()["step"] == 8
    _, got = parts.run()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)
    assert parts.journal.load_learning_curve() == whole.journal.load_learning_curve()


def test_a_finished_training_has_nothing_to_do(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.run()
    before = training.journal.load_learning_curve()
    assert training.run()[0]
    assert training.journal.load_learning_curve() == before


def test_the_embedding_does_not_change(tmp_path: Path) -> None:
    weights = copy_decoder_layers(make_weights(), (0,))
    assert TOKEN_EMBEDDING not in trainable_weights(weights)
    assert not weights[TOKEN_EMBEDDING].requires_grad


def test_the_whole_network_reads_as_the_oracle_does(tmp_path: Path) -> None:
    weights = {name: torch.tensor(values) for name, values in make_weights().items()}
    mel, tokens = make_mel(1), [1, 5, 9, 200, 4]
    with torch.inference_mode():
        heard = run_encoder(weights, DIMS, torch.tensor(mel[0]))
        logits = (
            run_decoder(weights, DIMS, torch.tensor([tokens]), heard)[0] @ weights[TOKEN_EMBEDDING].T
        ).numpy()
    reference_backend = make_backend("numpy", tmp_path)
    session = reference_backend.open_session(reference_backend.encode(mel), [0], len(tokens))
    ids, logprobs = session.extend([tokens], len(tokens)).top(3)
    got = torch.log_softmax(torch.tensor(logits), -1).numpy()
    np.testing.assert_allclose(np.take_along_axis(got, ids, 1), logprobs, atol=1e-4)


def test_padding_changes_nothing() -> None:
    weights = {name: torch.tensor(values) for name, values in make_weights().items()}
    heard = torch.randn(DIMS.n_audio_ctx, DIMS.n_audio_state)
    with torch.inference_mode():
        alone = run_decoder(weights, DIMS, torch.tensor([[3, 4, 5]]), heard)
        padded = run_decoder(weights, DIMS, torch.tensor([[3, 4, 5, 0, 0], [9, 8, 7, 6, 5]]), heard)
    torch.testing.assert_close(padded[:1, :3], alone, rtol=1e-4, atol=1e-5)


def test_a_batch_picks_what_is_to_be_foretold() -> None:
    example = make_example(np.random.default_rng(0), sequences=2)
    batch = SequenceBatch.from_sequences(example.sequences)
    assert batch.tokens.shape == (2, 7)
    assert batch.labels.tolist() == [7, 9, 7, 9, 3] * 2
    before = batch.tokens.flatten()[batch.target_positions].tolist()
    assert before == [1, 7, 9, 7, 9] * 2


def test_a_student_of_all_layers_is_its_teacher() -> None:
    layers = evenly_spaced_layers(2, DIMS.n_text_layer)
    weights = copy_decoder_layers(make_weights(), layers)
    rng = np.random.default_rng(3)
    example = make_example(rng)
    heard = torch.tensor(example.audio_features).float()
    row = example.sequences[0]
    with torch.inference_mode():
        states = run_decoder(weights, DIMS, torch.tensor(row.tokens[None, :-1]), heard)[0, row.text_start - 1 :]
    example = replace(example, sequences=(replace(row, teacher_states=states.half().numpy()),))
    objective = Distillation(
        dims=student_dims(DIMS, 2),
        weights=weights,
        trainable=trainable_weights(weights),
        scored_ids=np.arange(DIMS.n_vocab),
        teacher_embedding=weights[TOKEN_EMBEDDING],
        dtype=torch.float32,
        options=DistillOptions(dropout=0.0, mask_time_fraction=0.0),
    )
    loss, positions = objective.loss(example)
    cross_entropy = objective.evaluate(example).total_loss
    assert float(loss.detach()) == pytest.approx(cross_entropy, rel=1e-3)
    assert positions == len(row.tokens) - row.text_start


def test_fine_tuning_reaches_the_encoder_unless_it_is_frozen() -> None:
    example = make_example(np.random.default_rng(0))
    mel = np.random.default_rng(1).standard_normal((DIMS.n_mels, 2 * DIMS.n_audio_ctx)).astype(np.float16)
    for frozen in (True, False):
        weights = {name: torch.tensor(values) for name, values in make_weights().items()}
        chosen = {
            name: values.requires_grad_()
            for name, values in weights.items()
            if name.startswith("decoder.") or not frozen
        }
        objective = FineTuning(
            dims=DIMS, weights=weights, trainable=chosen, dtype=torch.float32, options=OPTIONS
        )
        loss, _ = objective.loss(example if frozen else replace(example, audio_features=mel))
        loss.backward()
        assert (weights["encoder.conv1.weight"].grad is None) is frozen
        assert weights[TOKEN_EMBEDDING].grad is not None


def test_masks_hide_no_more_than_their_share() -> None:
    torch.manual_seed(0)
    heard = torch.ones(1500, 4)
    hidden = [(mask_time(heard, 0.1) == 0).all(1).float().mean().item() for _ in range(50)]
    assert 0.05 < sum(hidden) / len(hidden) < 0.12
    assert torch.equal(mask_time(heard, 0.0), heard)


@pytest.mark.parametrize(
    ("layers", "of", "chosen"),
    [(1, 12, (11,)), (2, 12, (0, 11)), (3, 12, (0, 6, 11)), (4, 12, (0, 4, 7, 11)), (4, 4, (0, 1, 2, 3))],
)
def test_layers_are_evenly_spaced(layers: int, of: int, chosen: tuple[int, ...]) -> None:
    assert evenly_spaced_layers(layers, of) == chosen


@pytest.mark.parametrize(("layers", "of"), [(0, 12), (5, 12), (3, 2)])
def test_layers_that_are_not_there(layers: int, of: int) -> None:
    with pytest.raises(OptionError, match=f"layers={layers}: allowed is 1 to {min(4, of)}"):
        evenly_spaced_layers(layers, of)


NARROW = replace(DIMS, n_audio_state=32, n_text_state=32)


def test_a_graft_on_a_turned_encoder_reads_as_it_did() -> None:
    weights = random_weights(NARROW, 3, np.float32)
    rng = np.random.default_rng(0)
    turn, offset = rng.standard_normal((64, 32)).astype(np.float32), rng.standard_normal(32).astype(np.float32)
    heard = [rng.standard_normal((24, 64)).astype(np.float32) for _ in range(9)]
    theirs = [its @ turn + offset for its in heard]
    pairs = ((a.astype(np.float16), b.astype(np.float16)) for a, b in zip(heard, theirs, strict=True))
    map = graft.fit_stitching_map(pairs, 65, 32)
    np.testing.assert_allclose(map, np.vstack([turn, offset]), atol=0.05)
    dims = graft.stitched_dims(NARROW, DIMS)
    assert (dims.n_audio_state, dims.n_text_state, dims.has_encoder) == (64, 32, False)
    exact = graft.stitch_decoder(weights, np.vstack([turn, offset]).astype(np.float64))
    tokens = torch.tensor([[1, 5, 9, 200, 4]])
    with torch.inference_mode():
        wanted = run_decoder(
            {name: torch.tensor(weights[name]) for name in weights}, NARROW, tokens, torch.tensor(theirs[0])
        )
        got = run_decoder(exact, dims, tokens, torch.tensor(heard[0]))
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"n_vocab": 999}, "n_vocab=1864, not 999"), ({"n_text_layer": 5}, "at most 4 layers")],
)
def test_a_decoder_that_cannot_be_grafted(change: dict[str, int], reason: str) -> None:
    def model(dims: Dims) -> SimpleNamespace:
        return SimpleNamespace(dims=dims, path="other")

    with pytest.raises(OptionError, match=f"start='other': allowed is .*{reason}"):
        graft.check_stitchable(model(replace(DIMS, **change)), model(DIMS))


def test_what_is_grafted_learns_fastest(tmp_path: Path) -> None:
    slow, whole = Training(tmp_path / "slow"), Training(tmp_path / "whole")
    rates = []
    for training, share in ((slow, lambda name: 0.0), (whole, lambda name: 1.0)):
        objective = replace(distillation(), learning_rate_scale=share)
        before = snapshot(objective.trainable)
        train(
            objective,
            training.pieces,
            training.held_out,
            training.library,
            training.journal,
            replace(OPTIONS, epochs=1),
            5,
            LoopCallbacks(),
        )
        rates.append(any(not torch.equal(before[name], objective.trainable[name]) for name in before))
    assert rates == [False, True]


def test_a_loss_looks_at_what_was_said_and_all_that_is_not_text() -> None:
    ids = scored_token_ids(TOKENIZER, [[3, 200], [TOKENIZER.eot]])
    assert (np.diff(ids) > 0).all()
    assert {3, 200, *range(TOKENIZER.eot, TOKENIZER.n_vocab)} <= set(ids.tolist())


def test_what_no_loss_looked_at_may_be_foretold_all_the_same() -> None:
    example = make_example(np.random.default_rng(0), text=(7, 100, 7))
    objective = distillation(looks_at=20)
    weights = objective.weights
    with torch.inference_mode():
        row = example.sequences[0]
        states = run_decoder(
            weights,
            objective.dims,
            torch.tensor(row.tokens[None, :-1]),
            torch.tensor(example.audio_features).float(),
        )
        best = (states[0, row.text_start - 1 :] @ weights[TOKEN_EMBEDDING].T).argmax(-1)
    assert objective.evaluate(example).correct == int((best.numpy() == row.tokens[row.text_start :]).sum())


@pytest.mark.parametrize(
    ("right", "passes"),
    [("", 0), ("1", 1), ("0", 1), ("1111", 1), ("11111", 1), ("111111", 2), ("00000", 5), ("1101110", 2)],
)
def test_forwards_are_those_of_a_draft_of_four(right: str, passes: int) -> None:
    flags = np.array([char == "1" for char in right], bool)
    assert count_forward_passes(flags) == passes
    assert count_acceptance(flags, 1.0) + Acceptance(1, 1, 1, 1.0) == Acceptance(
        len(right) + 1, int(flags.sum()) + 1, passes + 1, 2.0
    )


def test_the_rate_rises_and_falls() -> None:
    options = DistillOptions(epochs=10, batch_size=5, learning_rate=1.0, warmup_ratio=0.1)
    steps = count_steps(options, 48)
    rates = [learning_rate_at(step, steps, options) for step in range(steps)]
    assert steps == 100
    assert max(rates) == pytest.approx(1.0)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.06


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="is there, and is no training"):
        RunDirectory(tmp_path / "training").create_or_resume({"task": "distill"})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_training_is_refused_by_what_differs(tmp_path: Path) -> None:
    journal = RunDirectory(tmp_path / "out" / "training")
    journal.create_or_resume({"task": "distill", "rate": 0.1})
    journal.create_or_resume({"task": "distill", "rate": 0.1})
    with pytest.raises(OutputError, match=r"holds a training with rate=0\.1, not 0\.2"):
        journal.create_or_resume({"task": "distill", "rate": 0.2})


def test_lines_of_the_curve_tell_what_follows_from_them(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.run(stop_after=4)
    line = json.loads((tmp_path / "training" / "acceptance.jsonl").read_text().splitlines()[-1])
    assert line["acceptance"] == round(line["held_out"]["correct"] / line["held_out"]["positions"], 4)
    assert line["tokens_per_forward"] == round(
        line["held_out"]["positions"] / line["held_out"]["forward_passes"], 3
    )
