"""``harken models``: its reports on intact and damaged models."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
from harken.checkpoints import SHORT_NAMES
from harken.cli import models
from harken.cli.terminal import format_table, human_size
from harken.errors import CheckpointError, CheckpointNotFound
from harken.text import Tokenizer
from tiny_models import DIMS

BYTES = tuple(bytes([byte]) for byte in range(256))


@pytest.fixture
def tiny(cli):
    """A ggml file of the tiny model, with its vocabulary."""
    return files.write_ggml(Path("tiny.bin"), DIMS, files.random_weights(DIMS), tokens=BYTES)


def test_list_shows_where_models_are(cli):
    def resolve(name, *, download):
        assert not download
        match name:
            case "base":
                return Path("hub/base")
            case "small":
                raise CheckpointError("small: half of it is missing")
            case _:
                raise CheckpointNotFound(f"{name}: not on this machine")

    cli.monkeypatch.setattr(models, "resolve_model", resolve)
    head, *rows = cli.run("models").out.splitlines()
    assert head.split() == ["NAME", "REPOSITORY", "ON", "THIS", "MACHINE"]
    locations = {row.split()[0]: row.split(maxsplit=2)[2] for row in rows}
    assert [*locations] == list(SHORT_NAMES)
    assert locations["base"] == str(Path("hub/base"))
    assert locations["small"] == "damaged: small: half of it is missing"
    assert locations["tiny.en"] == "no"


def test_show_lists_the_contents(cli, tiny):
    outcome = cli.run("models", "show", tiny)
    facts = {line[:10].strip(): line[10:].strip() for line in outcome.out.splitlines()}
    shapes = files.weight_shapes(DIMS).values()
    expected = {
        "path": "tiny.bin",
        "format": "ggml",
        "precision": "float16",
        "parameters": f"{sum(map(np.prod, shapes)) / 1e6:.1f} million in {len(shapes)} weights",
        "encoder": "2 layers, 64 wide, 2 heads",
        "context": f"{DIMS.n_audio_ctx} frames of audio, {DIMS.n_text_ctx} tokens of text",
        "vocabulary": f"{DIMS.n_vocab} tokens, English only, from the weights file",
        "alignment": "heads not known",
    }
    assert {name: facts[name] for name in expected} == expected
    assert len(facts["digest"]) == 64


def test_check_passes_an_intact_model_and_fails_for_a_nan_weight_or_a_wrong_vocabulary(cli, tiny):
    outcome = cli.run("models", "check", tiny)
    assert (outcome.code, outcome.err) == (0, "")
    weights = files.random_weights(DIMS)
    assert outcome.out.startswith(f"tiny.bin is intact: {len(weights)} weights, all finite; ")
    files.write_ggml(Path("odd.bin"), DIMS, weights, tokens=BYTES[:-1])
    assert cli.run("models", "check", "odd.bin").code == 4
    weights["decoder.ln.bias"][3] = np.nan
    files.write_ggml(Path("bad.bin"), DIMS, weights, tokens=BYTES)
    outcome = cli.run("models", "check", "bad.bin")
    message = "decoder.ln.bias holds values that are not finite; download the file again"
    assert (outcome.code, outcome.out, outcome.err) == (4, "", f"harken: bad.bin: {message}\n")


def test_check_says_what_a_model_needs_and_which_it_resembles(cli):
    heads = replace(DIMS, n_audio_head=1, n_text_head=32)  # of sizes that the kernels do not compute
    wide = replace(DIMS, n_text_state=384, n_audio_state=384, n_text_head=6, n_audio_head=6, n_vocab=51865)
    for dims, tokens, needs, differs in (
        (heads, BYTES, "the extra onnx", "32 heads instead of 6"),
        (
            wide,
            Tokenizer.builtin(51865).text_bytes(),
            "nothing else",
            "from tiny: 2 encoder layers instead of 4",
        ),
    ):
        weights = {name: np.zeros(shape, np.float32) for name, shape in files.weight_shapes(dims).items()}
        files.write_ggml(Path("m.bin"), dims, weights, tokens=tuple(tokens))
        out = cli.run("models", "check", "m.bin").out
        assert f"needs    {needs}\n" in out
        assert differs in out


def test_sizes_have_decimal_units_and_columns_fit_their_widest_cell():
    sizes = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 75_537_500: "75.5 MB", 2_900_000_000_000: "2900.0 GB"}
    assert {size: human_size(size) for size in sizes} == sizes
    assert format_table([("a", "long one", "x"), ("bcd", "e", "")]) == "a    long one  x\nbcd  e\n"


def test_convert_says_what_it_wrote_and_overwrites_no_model(cli, tiny):
    Path("to").mkdir()
    Path("to/talk.wav").write_bytes(bytes(3_000_000))
    outcome = cli.run("convert", tiny, "to")
    assert (outcome.code, outcome.err) == (0, "")
    assert (
        outcome.out == f"to: huggingface, float16, {human_size(Path('to/model.safetensors').stat().st_size)}\n"
    )
    outcome = cli.run("models", "--check", "to")
    assert outcome.out.startswith("to is intact: ")
    assert [line.split()[0] for line in outcome.out.splitlines()[1:]] == ["is", "needs", "differs"]
    assert cli.run("convert", "to", "to").code == 2
    assert cli.run("convert", tiny, "to", "--to", "ggml").code == 0  # beside it
    Path("pytorch").mkdir()
    Path("pytorch/config.json").write_text("{}")
    for folder, target, held in (
        ("to", "huggingface", "model.safetensors"),
        ("to", "ctranslate2", "model.safetensors"),
        ("to", "ggml", "ggml-model.bin"),
        ("pytorch", "huggingface", "config.json"),
    ):
        outcome = cli.run("convert", tiny, folder, "--to", target)
        assert outcome.code == 5
        assert outcome.err == f"harken: {folder}: holds {held} of a model; allowed is a folder without one\n"
    assert cli.run("models", "--check", "to").code == 0
