"""``harken models``: its reports on intact and damaged models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
from cli_runner import CliRunner
from harken.checkpoints import SHORT_NAMES
from harken.cli import models
from harken.cli.terminal import format_table, human_size
from harken.errors import CheckpointError, CheckpointNotFound
from tiny_models import DIMS

BYTES = tuple(bytes([byte]) for byte in range(256))


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return CliRunner(capsys, monkeypatch)


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
    outcome = cli.run("models")
    head, *rows = outcome.out.splitlines()
    assert head.split() == ["NAME", "REPOSITORY", "ON", "THIS", "MACHINE"]
    assert [row.split()[0] for row in rows] == list(SHORT_NAMES)
    locations = {row.split()[0]: row.split(maxsplit=2)[2] for row in rows}
    assert locations["base"] == str(Path("hub/base"))
    assert locations["small"] == "damaged: small: half of it is missing"
    assert locations["tiny.en"] == "no"


class TestShow:
    def test_show_lists_the_contents(self, cli, tiny):
        outcome = cli.run("models", "show", tiny)
        facts = {line[:10].strip(): line[10:].strip() for line in outcome.out.splitlines()}
        parameters = sum(np.prod(shape) for shape in files.weight_shapes(DIMS).values())
        weights = len(files.weight_shapes(DIMS))
        assert facts["path"] == "tiny.bin"
        assert facts["format"] == "ggml"
        assert facts["precision"] == "float16"
        assert facts["parameters"] == f"{parameters / 1e6:.1f} million in {weights} weights"
        assert facts["encoder"] == "2 layers, 64 wide, 2 heads"
        assert facts["context"] == f"{DIMS.n_audio_ctx} frames of audio, {DIMS.n_text_ctx} tokens of text"
        assert facts["vocabulary"] == f"{DIMS.n_vocab} tokens, English only, from the weights file"
        assert facts["alignment"] == "heads not known"
        assert len(facts["digest"]) == 64

    def test_missing_model_is_an_error(self, cli):
        outcome = cli.run("models", "show", "none.bin")
        assert outcome.code == 4
        assert outcome.err.startswith("harken: none.bin: no such model; allowed is ")


class TestCheck:
    def test_intact_model_passes(self, cli, tiny):
        outcome = cli.run("models", "check", tiny)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.startswith(
            f"tiny.bin is intact: {len(files.weight_shapes(DIMS))} weights, all finite; "
        )

    def test_nan_weight_fails(self, cli):
        weights = files.random_weights(DIMS)
        weights["decoder.ln.bias"][3] = np.nan
        files.write_ggml(Path("bad.bin"), DIMS, weights, tokens=BYTES)
        outcome = cli.run("models", "check", "bad.bin")
        assert (outcome.code, outcome.out) == (4, "")
        assert outcome.err == (
            "harken: bad.bin: decoder.ln.bias holds values that are not finite; download the file again\n"
        )

    def test_wrong_vocabulary_size_fails(self, cli):
        files.write_ggml(Path("odd.bin"), DIMS, files.random_weights(DIMS), tokens=BYTES[:-1])
        outcome = cli.run("models", "check", "odd.bin")
        assert outcome.code == 4


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (75_537_500, "75.5 MB"), (2_900_000_000_000, "2900.0 GB")],
)
def test_sizes_have_decimal_units(size, shown):
    assert human_size(size) == shown


def test_columns_are_as_wide_as_their_widest_cell():
    assert format_table([("a", "long one", "x"), ("bcd", "e", "")]) == "a    long one  x\nbcd  e\n"
