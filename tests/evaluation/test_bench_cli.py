"""``harken bench``: the table, the JSON object, and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_runner import CliRunner
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from fakes.measured import TEXTS, write_talks
from harken import Recognizer
from harken.backends.numpy import NumpyBackend
from harken.decoding import Assistant, SpeculativeDecoder
from harken.errors import BackendUnavailable
from tiny_models import DIMS, TOKENIZER, make_weights

OPTIONS = ("--no-vad", "--temperatures", "0", "--suppress-tokens", "", "--hallucination-threshold", "none")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return CliRunner(capsys, monkeypatch)


@pytest.fixture(autouse=True)
def talks(cli: CliRunner) -> Path:
    """A folder of two recordings of one window, and a manifest of their texts."""
    return write_talks(Path("talks"))


def use_texts(cli: CliRunner) -> TranscriptBackend:
    """Load a model that returns the texts: once to warm up, then for each recording."""
    return cli.use_texts(*(window_text(0, text, WINDOW_POSITIONS) for text in (TEXTS[0], *TEXTS)))


def replace_model(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Recognizer]) -> list[dict[str, Any]]:
    """Replace every model; return the list of the arguments that it is loaded with."""
    loaded: list[dict[str, Any]] = []

    def load(**given: Any) -> Recognizer:
        loaded.append(given)
        return make()

    monkeypatch.setattr("harken.cli.model_options.load", load)
    return loaded


def speculative_recognizer(seed: int = 0) -> Recognizer:
    """Return a random model with an assistant that shares its encoder; with seed 0 both have equal weights."""
    main, draft = make_weights(), make_weights(seed)
    assistant = Assistant(
        backend=NumpyBackend(DIMS.without_encoder(), draft, shares_encoder=True), shares_encoder=True
    )
    # With a clock that stands still speculative_recognizer costs nothing.
    return Recognizer(
        NumpyBackend(DIMS, main), TOKENIZER, "random", SpeculativeDecoder(float, assistant=assistant)
    )


def table_rows(text: str) -> dict[str, list[str]]:
    """Return the rows of a table by their labels."""
    rows = (re.split(r"  +", line) for line in text.splitlines())
    return {label: cells for label, *cells in rows if cells}


class TestOneModel:
    def test_table_lists_times_and_counts(self, cli: CliRunner) -> None:
        pytest.importorskip("jiwer")
        use_texts(cli)
        outcome = cli.run("bench", "talks", "--repeat", "1", *OPTIONS)
        assert (outcome.code, outcome.err) == (0, "")
        head, totals, *_ = outcome.out.splitlines()
        assert (head, totals) == ("tiny.en, fixed logits", "2 recordings: 1.0 s of audio")
        rows = table_rows(outcome.out)
        assert [*rows] == [
            *("decoding, s", "encoding, s", "end to end, s", "times real time"),
            *("forward passes", "tokens per forward pass", "WER, %", "CER, %"),
        ]
        assert rows["WER, %"] == ["0.00"]
        tokens = sum(len(window_text(0, text, WINDOW_POSITIONS).tokens) + 1 for text in TEXTS)
        assert rows["forward passes"] == [str(tokens)]

    def test_recordings_without_text_have_no_error_rates(self, cli: CliRunner) -> None:
        use_texts(cli)
        outcome = cli.run("bench", "talks/*.wav", "--repeat", "2", *OPTIONS)
        assert "WER" not in outcome.out
        assert "2 recordings: 1.0 s of audio, median of 2 passes\n" in outcome.out

    def test_limit_reduces_the_recordings(self, cli: CliRunner) -> None:
        use_texts(cli)
        assert "1 recording: 0.5 s" in cli.run("bench", "talks", "--limit", "1", *OPTIONS).out

    def test_missing_extra_is_reported_with_its_install_command(
        self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing(language: str | None) -> None:
            raise BackendUnavailable(
                "jiwer is not installed, which evaluation needs: pip install '.[eval]' in a clone of harken"
            )

        monkeypatch.setattr("harken.cli.bench.normalizer", missing)
        use_texts(cli)
        outcome = cli.run("bench", "talks", "--repeat", "1", *OPTIONS)
        assert outcome.code == 0
        assert outcome.err == (
            "harken: errors are not counted: jiwer is not installed, which evaluation needs: "
            "pip install '.[eval]' in a clone of harken\n"
        )
        assert "WER" not in outcome.out

    def test_assistant_without_speculative_is_measured(
        self, monkeypatch: pytest.MonkeyPatch, cli: CliRunner
    ) -> None:
        loaded = replace_model(monkeypatch, speculative_recognizer)
        outcome = cli.run("bench", "talks/0.wav", "--assistant", "small.en", *OPTIONS)
        assert loaded[0]["assistant"] == "small.en"
        assert "acceptance, %" in outcome.out
        assert "plain" not in outcome.out


class TestSpeculative:
    def test_table_lists_times_and_counts(self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = replace_model(monkeypatch, speculative_recognizer)
        outcome = cli.run("bench", "talks/0.wav", "talks/1.wav", "--speculative", *OPTIONS)
        assert (outcome.code, outcome.err) == (0, "")
        assert [arguments["assistant"] for arguments in loaded] == ["auto"]  # one model for both
        assert "drafts: a decoder of 2 layers, 64 wide, with the model's encoder\n" in outcome.out
        assert re.search(r"\n +plain +speculative +ratio\n", outcome.out)
        rows = table_rows(outcome.out)
        assert rows["acceptance, %"] == ["-", "100.0"]
        plain, speculative, ratio = (float(cell) for cell in rows["forward passes"])
        assert ratio == pytest.approx(plain / speculative, abs=0.01)
        assert ratio > 2
        assert rows["drafted tokens"][1] == rows["accepted tokens"][1] != "0"
        assert outcome.out.endswith("The tokens are the same in 2 recordings.\n")

    def test_beam_search_reports_that_it_uses_no_drafts(
        self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replace_model(monkeypatch, speculative_recognizer)
        arguments = ("talks/0.wav", "--speculative", "--repeat", "1", "--beam-size", "2")
        outcome = cli.run("bench", *arguments, *OPTIONS)
        assert table_rows(outcome.out)["drafted tokens"] == ["-", "0"]
        assert "Beam search does not use drafts, since its hypotheses diverge at every step" in outcome.out
        assert outcome.out.endswith(": 1 window decoded plainly.\n")

    def test_differing_tokens_are_shown(self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        # Both engines take one text after another: to warm up, then plain, then with drafts.
        lines = (window_text(0, text, WINDOW_POSITIONS) for text in ("a", "a", "one cat", "one dog"))
        backend = TranscriptBackend(*lines)

        class UnusedDrafts(Recognizer):
            """A recognizer that has a speculative decoder and does not use it."""

            def transcribe_many(self, *arguments, **keywords):
                return Recognizer(self.backend, self.tokenizer, self.model).transcribe_many(
                    *arguments, **keywords
                )

        replace_model(
            monkeypatch,
            lambda: UnusedDrafts(backend, TOKENIZER, "recital", SpeculativeDecoder(float, ngram=True)),
        )
        arguments = ("talks/0.wav", "--speculative", "--repeat", "1", "--json", "out.json")
        outcome = cli.run("bench", *arguments, *OPTIONS)
        assert "drafts: n-grams of the text so far and the prompt\n" in outcome.out
        assert outcome.out.endswith(
            "The tokens differ in 1 of 1 recording, the text in 1; the first difference of each:\n"
            '  talks/0.wav: window at 00:00.000, token 5: "c", with drafts "d"\n'
        )
        (divergence,) = json.loads(Path("out.json").read_text())["divergences"]
        assert divergence == {
            **{"audio": "talks/0.wav", "start_s": 0.0, "index": 5, "same_text": False},
            **dict(zip(("plain", "speculative"), TOKENIZER.encode("cd"), strict=True)),
        }

    def test_json_holds_all_results(self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        replace_model(monkeypatch, speculative_recognizer)
        arguments = ("talks/0.wav", "--speculative", "--repeat", "1", "--json", "out.json", "--threads", "1")
        cli.run("bench", *arguments, *OPTIONS)
        report = json.loads(Path("out.json").read_text(encoding="utf-8"))
        assert report["by"]["assistant"] == "auto"
        assert (report["by"]["threads"], report["by"]["temperatures"]) == (1, [0.0])
        assert (report["complete"], report["repeats"], report["divergences"], report["failed"]) == (
            True,
            1,
            [],
            [],
        )
        plain, speculative = report["plain"], report["speculative"]
        assert plain.keys() == speculative.keys()
        assert (plain["drafted"], speculative["acceptance_rate"]) == (0, 1.0)
        assert report["ratios"]["forwards"] == plain["forwards"] / speculative["forwards"]
        (recording,) = report["recordings"]
        assert recording["plain"] == recording["speculative"]
        assert (recording["audio"], recording["seconds"]) == ("talks/0.wav", WINDOW_S)


class TestTranscribe:
    """The lines of ``harken transcribe --verbose`` about drafts."""

    def test_accepted_drafts_are_reported(self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        replace_model(monkeypatch, speculative_recognizer)
        arguments = ("talks/0.wav", "--assistant", "auto", "--verbose", "--language", "en")
        *_, last = cli.run("transcribe", *arguments, *OPTIONS).err.splitlines()
        line_start = r"talks/0.wav: drafted tokens accepted: (\d+) of (\d+), [\d.]+ tokens per forward pass, "
        found = re.fullmatch(line_start + r"steps without a draft: \d+", last)
        assert found
        assert found[1] == found[2] != "0"

    def test_windows_without_drafts_are_reported(self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        replace_model(monkeypatch, speculative_recognizer)
        arguments = ("talks/0.wav", "--assistant", "auto", "--verbose", "--beam-size", "2")
        *_, last = cli.run("transcribe", *arguments, *OPTIONS).err.splitlines()
        assert last == "talks/0.wav: windows without drafts, as beam search does not use them: 1"


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["none.mp3"], 3, "harken: none.mp3: no such file"),
            (["none.jsonl"], 3, "harken: none.jsonl: no such file; allowed is a manifest"),
            (["."], 3, "harken: manifest.jsonl: no such file; allowed is a manifest"),
            (["-"], 2, "harken: standard input can be read only once; allowed are files and manifests"),
            (["talks", "--json", "none/a.json"], 5, "harken: none/a.json: cannot be written"),
            (["talks", "--repeat", "0"], 2, "harken: Invalid value for '--repeat'"),
            ([], 2, "harken: Missing argument 'FILE|MANIFEST...'"),
        ],
    )
    def test_bad_arguments_fail_before_loading_a_model(
        self, cli: CliRunner, arguments: list[str], code: int, message: str
    ) -> None:
        use_texts(cli)
        outcome = cli.run("bench", *arguments)
        assert (outcome.code, outcome.out, cli.loaded) == (code, "", [])
        assert outcome.err.startswith(message.replace("/", str(Path("/"))) if code == 5 else message)

    def test_unreadable_file_is_reported_and_the_others_measured(self, cli: CliRunner, talks: Path) -> None:
        cli.use_texts(*(window_text(0, TEXTS[0], WINDOW_POSITIONS) for _ in range(2)))
        Path("notes.mp3").write_text("Dear diary")
        arguments = ("nosuch.wav", "notes.mp3", "talks/0.wav", "--repeat", "1", "--json", "out.json")
        outcome = cli.run("bench", *arguments, *OPTIONS)
        assert outcome.code == 1
        missing, damaged = outcome.err.splitlines()
        assert missing.startswith("harken: nosuch.wav: ")
        assert damaged.startswith("harken: notes.mp3: ")
        assert "1 recording: 0.5 s of audio\n" in outcome.out
        failed = json.loads(Path("out.json").read_text(encoding="utf-8"))["failed"]
        assert [failure["audio"] for failure in failed] == ["nosuch.wav", "notes.mp3"]

    def test_nothing_readable_is_an_error_before_the_model_is_loaded(self, cli: CliRunner) -> None:
        use_texts(cli)
        outcome = cli.run("bench", "nosuch.wav", "y" * 5000 + ".jsonl")
        assert (outcome.code, outcome.out, outcome.err.count("\n"), cli.loaded) == (3, "", 1, [])


def test_options_of_streams_are_refused_without_streaming_and_are_finite_numbers(cli: CliRunner) -> None:
    use_texts(cli)
    for option, *value in (["--join", "1"], ["--block-s", "0.1"], ["--one-core"], ["--delay", "high"]):
        outcome = cli.run("bench", "talks/0.wav", option, *value)
        assert (outcome.code, outcome.err) == (2, f"harken: {option} has no effect without --streaming\n")
    for option in ("--join", "--block-s"):
        for value in ("nan", "inf", "-inf", "1e999"):
            outcome = cli.run("bench", "talks/0.wav", "--streaming", option, value)
            assert (outcome.code, outcome.err.count("\n")) == (2, 1)
            assert f"Invalid value for '{option}'" in outcome.err
