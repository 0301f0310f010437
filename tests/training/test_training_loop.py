"""Tests of training: the loop and resuming it, objectives, the student, stitching, the folder of a run, and exports."""

import json
import math
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from small_training import SmallTraining, all_equal, make_example, make_examples, snapshot, torch

from checkpoint_files import random_weights
from harken.api import Recognizer
from harken.backends.numpy import NumpyBackend
from harken.backends.onnx import OnnxBackend
from harken.checkpoints import encoder_digest, open_checkpoint
from harken.checkpoints.huggingface import COPIED_FILES, export
from harken.errors import CheckpointError, OptionError, OutputError
from harken.training.distill import (
    check_stitchable,
    copy_decoder_layers,
    evenly_spaced_layers,
    fit_stitching_map,
    stitch_decoder,
    stitched_dims,
    student_dims,
    trainable_weights,
)
from harken.training.examples import make_prompted_texts, window_log_mel
from harken.training.finetune import manifest_labeller
from harken.training.network import TOKEN_EMBEDDING, as_tensors, run_decoder, run_encoder
from harken.training.objective import (
    Acceptance,
    Distillation,
    count_forward_passes,
    mask_time,
    scored_token_ids,
)
from harken.training.options import DistillOptions
from harken.training.run import count_steps, learning_rate_at
from harken.training.run_directory import RunDirectory
from harken.training.windows import SpeechSpan, TrainingWindow
from harken.transcribe.language_id import language_probabilities
from real_models import EXAMPLE
from tiny_models import DIMS, TOKENIZER, make_backend, make_mel, make_weights
from training_data import write_model

TOKENS = [1, 5, 9, 200, 4]
OPTIONS = DistillOptions(
    epochs=6, batch_size=3, learning_rate=5e-3, eval_steps=4, dropout=0.1, mask_time_fraction=0.2
)

NOTHING_RANDOM = DistillOptions(dropout=0.0, mask_time_fraction=0.0)


def make_distillation(layers=(1,), options=OPTIONS, n_scored=DIMS.n_vocab):
    weights = copy_decoder_layers(make_weights(), layers)
    return Distillation(
        dims=student_dims(DIMS, len(layers)),
        weights=weights,
        trainable=trainable_weights(weights),
        scored_ids=np.arange(n_scored),
        teacher_embedding=weights[TOKEN_EMBEDDING],
        dtype=torch.float32,
        options=options,
    )


class Training(SmallTraining):
    """A distillation of seven random examples."""

    def __init__(self, folder):
        super().__init__(folder, OPTIONS)
        self.windows = make_examples(self.store, 7)
        self.held_out = make_examples(self.store, 2, held_out=True)

    def objective(self):
        return make_distillation()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training that ran to its end, and its last weights."""
    training = Training(tmp_path_factory.mktemp("whole"))
    completed, weights = training.run()
    assert completed
    return training, weights


def test_training_lowers_the_loss_and_reports_each_new_best(whole):
    training, _ = whole
    points = training.run_directory.load_learning_curve()
    assert [point.step for point in points] == [0, 4, 8, 12, 16, 18]
    losses = [point.loss for point in points if point.loss is not None]
    assert losses[-1] < 0.5 * losses[0]
    assert points[-1].held_out.mean_loss < 0.3 * points[0].held_out.mean_loss
    assert points[-1].held_out.acceptance_rate > 0.9
    keys = [point.held_out.ranking_key for point in points]
    assert training.best == [p.step for i, p in enumerate(points) if keys[i] == max(keys[: i + 1])]


def test_resumed_training_gives_bit_equal_weights(whole, tmp_path):
    training, expected = whole
    resumed = Training(tmp_path)
    for stop in (4, 14):  # where it is evaluated, and where not
        completed, _ = resumed.run(stop_after=stop)
        assert (completed, resumed.run_directory.load_state()["step"]) == (False, stop)
    completed, weights = resumed.run()
    assert completed
    assert all_equal(weights, expected)
    assert resumed.run_directory.load_learning_curve() == training.run_directory.load_learning_curve()


def logits_of(weights, dims, encoder_output, *texts):
    """Return the logits of the first text, by default `TOKENS`."""
    with torch.inference_mode():
        states = run_decoder(weights, dims, torch.tensor(texts or [TOKENS]), encoder_output)[0]
        return states @ weights[TOKEN_EMBEDDING].T


def test_network_computes_the_logprobs_of_the_reference_backend_also_of_padded_texts(tmp_path):
    weights = as_tensors(make_weights())
    mel = make_mel(1)
    encoder_output = run_encoder(weights, DIMS, torch.tensor(mel[0]))
    padded = logits_of(weights, DIMS, encoder_output, [*TOKENS, 0, 0], [9, 8, 7, 6, 5, 4, 3])
    all_logprobs = torch.log_softmax(padded[: len(TOKENS)], -1).numpy()
    reference = make_backend("numpy", tmp_path)
    session = reference.open_session(reference.encode(mel), [0], len(TOKENS))
    ids, logprobs = session.extend([TOKENS], len(TOKENS)).top(3)
    np.testing.assert_allclose(np.take_along_axis(all_logprobs, ids, 1), logprobs, atol=1e-4)


def states_behind_the_prompt(weights, dims, example):
    """Return the states of a decoder where it predicts the first text of an example."""
    sequence, audio = example.sequences[0], torch.tensor(example.audio_features).float()
    with torch.inference_mode():
        states = run_decoder(weights, dims, torch.tensor(sequence.tokens[None, :-1]), audio)
        return states[0, sequence.text_start - 1 :]


def test_student_with_all_layers_has_no_loss_but_cross_entropy():
    objective = make_distillation((0, 1), NOTHING_RANDOM)
    example = make_example(np.random.default_rng(3))
    cross_entropy = objective.evaluate(example).total_loss
    losses = [float(objective.loss(example, progress)[0].detach()) for progress in (0.0, 0.5, 1.0)]
    assert losses == sorted(losses, reverse=True), "the distance of states counts less and less"
    assert losses[0] > 1.01 * losses[2] > 1.01 * cross_entropy
    states = states_behind_the_prompt(objective.weights, DIMS, example).half().numpy()
    (sequence,) = example.sequences
    example = replace(example, sequences=(replace(sequence, teacher_states=states),))
    loss, positions = objective.loss(example)
    assert float(loss.detach()) == pytest.approx(cross_entropy, rel=1e-3)
    assert positions == len(sequence.tokens) - sequence.text_start


def test_a_window_is_learnt_with_the_prompts_that_it_asks_for_as_far_as_the_decoder_reaches():
    window = TrainingWindow(spans=(), group="g", language="en", held_out=False)
    all_asked = replace(window, without_timestamps=True, with_previous_text=True)
    text = [TOKENIZER.timestamp_begin, 7, TOKENIZER.timestamp_begin + 9, TOKENIZER.eot]
    given = make_prompted_texts(TOKENIZER, DIMS.n_text_ctx, all_asked, "en", text, [5, 6])
    (prompt, timed), (_, untimed), (continued_prompt, continued) = given
    assert (timed, untimed, continued) == (text, [7, TOKENIZER.eot], text)
    assert continued_prompt[-2 - len(prompt) :] == (5, 6, *prompt)
    ((prompt, long),) = make_prompted_texts(TOKENIZER, DIMS.n_text_ctx, window, "en", [7] * 99, [5])
    assert len(prompt) + len(long) == DIMS.n_text_ctx + 1  # the last one is only predicted


def test_a_language_that_the_manifest_does_not_name_is_detected():
    model = Recognizer(NumpyBackend(DIMS, make_weights()), TOKENIZER, "random")
    task = SimpleNamespace(
        tokenizer=TOKENIZER,
        checkpoint=SimpleNamespace(dims=DIMS),
        run_directory=SimpleNamespace(matmul_dtype=lambda: torch.float32),
    )
    span = SpeechSpan(path=str(EXAMPLE), start_s=0.0, end_s=0.4, text="frag nicht")
    found = {}
    for language in ("de", None):
        load_model = (lambda: pytest.fail("not needed")) if language else (lambda: model)
        window = TrainingWindow(spans=(span,), group="g", language=language, held_out=False)
        example = manifest_labeller(task, load_model, None)(window, ())
        found[language] = int(example.sequences[0].tokens[1])
    features = model.backend.encode(window_log_mel(window.samples(), DIMS)[None])
    (probabilities,) = language_probabilities(model.backend, features, TOKENIZER)
    assert found == {code: TOKENIZER.language_tokens[code or next(iter(probabilities))] for code in found}
    assert found[None] != TOKENIZER.language_tokens["en"], "what this model finds is not English"


def test_masked_fraction_is_as_asked():
    torch.manual_seed(0)
    encoder_output = torch.ones(1500, 4)
    masked = [(mask_time(encoder_output, 0.1) == 0).all(1).float().mean().item() for _ in range(50)]
    assert 0.05 < sum(masked) / len(masked) < 0.12
    assert torch.equal(mask_time(encoder_output, 0.0), encoder_output)


def test_layers_are_evenly_spaced_and_too_few_or_many_are_refused():
    of_twelve = {1: (11,), 2: (0, 11), 3: (0, 6, 11), 4: (0, 4, 7, 11)}
    assert {layers: evenly_spaced_layers(layers, 12) for layers in of_twelve} == of_twelve
    assert evenly_spaced_layers(4, 4) == (0, 1, 2, 3)
    for layers, n_layers in ((0, 12), (5, 12), (3, 2)):
        with pytest.raises(OptionError, match=f"layers={layers}: allowed is 1 to {min(4, n_layers)}"):
            evenly_spaced_layers(layers, n_layers)


NARROW = replace(DIMS, n_audio_state=32, n_text_state=32)


def test_decoder_stitched_by_an_exact_map_computes_the_same_states():
    weights = random_weights(NARROW, 3, np.float32)
    rng = np.random.default_rng(0)
    linear, offset = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 32), 32))
    main_outputs = [rng.standard_normal((24, 64)).astype(np.float32) for _ in range(9)]
    small_outputs = [output @ linear + offset for output in main_outputs]
    pairs = zip(main_outputs, small_outputs, strict=True)
    half_pairs = ((main.astype(np.float16), small.astype(np.float16)) for main, small in pairs)
    fitted = fit_stitching_map(half_pairs, 65, 32)
    np.testing.assert_allclose(fitted, np.vstack([linear, offset]), atol=0.05)
    dims = stitched_dims(NARROW, DIMS)
    assert (dims.n_audio_state, dims.n_text_state, dims.has_encoder) == (64, 32, False)
    stitched = stitch_decoder(weights, np.vstack([linear, offset]).astype(np.float64))
    expected = logits_of(as_tensors(weights), NARROW, torch.tensor(small_outputs[0]))
    logits = logits_of(stitched, dims, torch.tensor(main_outputs[0]))
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


def test_decoder_that_does_not_fit_is_refused():
    for change, reason in (
        ({"n_vocab": 999}, "n_vocab=1864, not 999"),
        ({"n_text_layer": 5}, "at most 4 layers"),
    ):
        small, main = (SimpleNamespace(dims=dims, path="other") for dims in (replace(DIMS, **change), DIMS))
        with pytest.raises(OptionError, match=f"init_from='other': allowed is .*{reason}"):
            check_stitchable(small, main)


def test_weights_of_a_learning_rate_of_zero_do_not_change(tmp_path):
    training = Training(tmp_path)
    before = snapshot(training.objective().trainable)
    _, after = training.run(stop_after=1, learning_rate_scale=lambda name: float("mlp" in name))
    assert all(torch.equal(before[name], after[name]) is ("mlp" not in name) for name in before)


def test_scored_ids_hold_tokens_of_the_texts_and_special_tokens():
    ids = scored_token_ids(TOKENIZER, [[3, 200], [TOKENIZER.eot]])
    assert (np.diff(ids) > 0).all()
    assert {3, 200, *range(TOKENIZER.eot, TOKENIZER.n_vocab)} <= set(ids.tolist())


def test_evaluation_scores_ids_that_the_loss_does_not():
    example = make_example(np.random.default_rng(0), text=(7, 100, 7))
    objective = make_distillation(options=NOTHING_RANDOM, n_scored=20)
    states = states_behind_the_prompt(objective.weights, objective.dims, example)
    logits = states @ objective.weights[TOKEN_EMBEDDING].T
    assert objective.evaluate(example).correct == int((logits.argmax(-1).numpy() == [7, 100, 7]).sum())
    (sequence,) = example.sequences
    example = replace(example, sequences=(replace(sequence, teacher_states=states.half().numpy()),))
    loss, _ = objective.loss(example)
    scored = torch.log_softmax(logits[:, :20], -1)[[0, 2], 7]
    assert float(loss.detach()) == pytest.approx(-float(scored.sum()), rel=1e-3)


@pytest.mark.parametrize(
    ("correct", "passes"),
    [("", 0), ("1", 1), ("0", 1), ("1111", 1), ("11111", 1), ("111111", 2), ("00000", 5), ("1101110", 2)],
)
def test_forward_passes_are_those_of_drafts_of_four(correct, passes):
    flags = np.array([flag == "1" for flag in correct], bool)
    assert count_forward_passes(flags) == passes


def test_learning_rate_rises_then_falls():
    options = DistillOptions(epochs=10, batch_size=5, learning_rate=1.0, warmup_ratio=0.1)
    steps = count_steps(options, 48)
    rates = [learning_rate_at(step, steps, options) for step in range(steps)]
    assert steps == 100
    assert max(rates) == pytest.approx(1.0)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.06


def test_loss_that_is_not_finite_ends_the_training_with_the_best_weights_kept(tmp_path):
    training, whole = Training(tmp_path), make_distillation()
    examples = count(1)

    def loss(example, progress):
        value, positions = whole.loss(example, progress)
        return (value * math.nan if next(examples) > 2 * OPTIONS.batch_size else value), positions

    training.objective = lambda: SimpleNamespace(trainable=whole.trainable, loss=loss, evaluate=whole.evaluate)
    reason = r"learning_rate=0\.005: allowed is a lower one, in another folder, .* is nan at step 3"
    with pytest.raises(OptionError, match=reason):
        training.run()
    assert training.best == [0]
    assert "NaN" not in (tmp_path / "training" / "acceptance.jsonl").read_text()
    assert training.run_directory.load_state()["step"] == 0


def test_model_without_a_finite_loss_is_refused(tmp_path):
    training = Training(tmp_path)
    training.objective = lambda: SimpleNamespace(
        trainable=make_distillation().trainable, evaluate=lambda example: Acceptance(1, 0, 1, math.nan)
    )
    with pytest.raises(CheckpointError, match="harken models check"):
        training.run()
    assert not (tmp_path / "training" / "acceptance.jsonl").exists()


@pytest.fixture
def run_directory(tmp_path):
    run_directory = RunDirectory(tmp_path / "training")
    run_directory.create_or_resume({"task": "test"})
    return run_directory


def test_file_that_something_else_has_changed_is_named(run_directory):
    reads = {
        "training.json": lambda: run_directory.create_or_resume({"task": "test"}),
        "windows.jsonl": run_directory.load_windows,
        "state.pt": run_directory.load_state,
        "acceptance.jsonl": run_directory.load_learning_curve,
    }
    for name, read in reads.items():
        (run_directory.folder / name).write_bytes(b"[1, 2")
        with pytest.raises(OutputError, match=f"{name}: cannot be read: "):
            read()
    store = run_directory.examples
    (window,) = make_examples(store, 1)
    store.path(window).write_bytes(store.path(window).read_bytes()[:-100])
    for read_example in (store.get, store.first_text):
        with pytest.raises(OutputError, match=rf"{window.key}\.npz: is damaged"):
            read_example(window)


def test_a_training_that_goes_on_removes_what_killed_processes_left_and_nothing_of_its_own(run_directory):
    run_directory.save_state({"step": 0})
    folder = run_directory.folder
    examples = run_directory.examples.folder, run_directory.small_model_examples.folder
    for each in (folder.parent, folder, *examples):
        (each / ".harken-0123456789abcdef.part").write_bytes(b"weights")
    run_directory.create_or_resume({"task": "test"})
    assert [*folder.parent.rglob(".*")] == []
    before = {*folder.rglob("*")}
    run_directory.discard()
    assert {*folder.rglob("*")} == before


def write_assistant(folder, digest="0" * 64):
    folder.mkdir()
    weights = copy_decoder_layers(make_weights(), (1,))
    arrays = {name: values.half().numpy() for name, values in weights.items()}
    entry = {"encoder_sha256": digest, "draft_vocabulary": [1, 3, 300]}
    export(folder, student_dims(DIMS, 1), arrays, TOKENIZER, harken_config=entry)
    return {name: torch.tensor(values).float() for name, values in arrays.items()}


def test_exported_assistant_computes_the_trained_logprobs_on_the_cpu_engine(tmp_path):
    model = write_model(tmp_path / "model")
    weights = write_assistant(tmp_path / "assistant", encoder_digest(model))
    checkpoint = open_checkpoint(tmp_path / "assistant", assistant=True)
    assert checkpoint.dims == student_dims(DIMS, 1)
    assert checkpoint.encoder_sha256 == encoder_digest(model)
    assert checkpoint.draft_vocabulary.tolist() == [1, 3, 300]

    def engine(source):
        weights, cache = source.weights, tmp_path / "cache"
        return OnnxBackend(source.dims, weights, precision="fp32", threads=1, cache=cache)

    mel = make_mel(1)
    main, assistant = engine(model), engine(checkpoint)
    session = assistant.open_session(assistant.reuse_encoder_output(main.encode(mel)), [0], len(TOKENS))
    ids, logprobs = session.extend([TOKENS], len(TOKENS)).top(5)
    encoder_output = run_encoder(as_tensors(model.weights), DIMS, torch.tensor(mel[0]))
    expected = torch.log_softmax(logits_of(weights, checkpoint.dims, encoder_output), -1).numpy()
    np.testing.assert_allclose(logprobs, np.take_along_axis(expected, ids, 1), atol=2e-4)
    assert (ids[:, 0] == expected.argmax(1)).all()


def test_transformers_loads_exported_assistant(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    weights = write_assistant(tmp_path / "assistant")
    model, report = transformers.WhisperForCausalLM.from_pretrained(
        tmp_path / "assistant", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    encoder_output = torch.randn(1, DIMS.n_audio_ctx, DIMS.n_audio_state)
    with torch.inference_mode():
        given = {"input_ids": torch.tensor([TOKENS]), "encoder_outputs": (encoder_output,)}
        logits = model.float().eval()(**given).logits[0]
    expected = logits_of(weights, student_dims(DIMS, 1), encoder_output[0])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_export_copies_tokenizer_files(tmp_path):
    write_model(tmp_path / "model")
    (tmp_path / "copy").mkdir()
    export(tmp_path / "copy", DIMS, make_weights(), TOKENIZER, source_folder=tmp_path / "model")
    assert {"vocab.json"} == {path.name for path in (tmp_path / "copy").iterdir()} & {*COPIED_FILES}
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert config["eos_token_id"] == TOKENIZER.eot
    assert "harken" not in config
