"""``harken bench`` and ``transcribe --verbose``: tables, JSON, and what they say of drafts."""

import re
from unittest.mock import Mock

import pytest

from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from fakes.measured import OPTIONS, TEXTS, read_report, table_rows
from harken import Recognizer
from harken.backends.numpy import NumpyBackend
from harken.decoding import Assistant, SpeculativeDecoder
from harken.errors import BackendUnavailable
from tiny_models import DIMS, TOKENIZER, make_weights

pytestmark = pytest.mark.usefixtures("talks")


def use_texts(cli):
    """Load a model that returns the texts: once to warm up, then for each recording."""
    cli.use_texts(*(window_text(0, text, WINDOW_POSITIONS) for text in (TEXTS[0], *TEXTS)))


def speculative_recognizer():
    """Return a random model with an assistant of the same weights, which shares its encoder."""
    backend = NumpyBackend(DIMS.without_encoder(), make_weights())
    assistant = Assistant(backend=backend, shares_encoder=True)
    # With a clock that stands still speculative_recognizer costs nothing.
    speculative = SpeculativeDecoder(float, assistant=assistant)
    return Recognizer(NumpyBackend(DIMS, make_weights()), TOKENIZER, "random", speculative)


def run(cli, *arguments, make=speculative_recognizer):
    """Run a command with a model; return also the arguments of its loads."""
    loaded = []

    def load(**given):
        loaded.append(given)
        return make()

    cli.loaders["load"] = load
    return cli.run(*arguments, *OPTIONS), loaded


def test_table_lists_times_and_counts(cli):
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


def test_recordings_without_text_have_no_error_rates_and_a_limit_reduces_them(cli):
    use_texts(cli)
    outcome = cli.run("bench", "talks/*.wav", "--repeat", "2", *OPTIONS)
    assert "WER" not in outcome.out
    assert "2 recordings: 1.0 s of audio, median of 2 passes\n" in outcome.out
    assert "1 recording: 0.5 s" in cli.run("bench", "talks", "--limit", "1", *OPTIONS).out


def test_missing_extra_is_reported_with_its_install_command(cli):
    error = BackendUnavailable("jiwer is not installed: pip install '.[eval]'")
    cli.monkeypatch.setattr("harken.cli.bench.normalizer", Mock(side_effect=error))
    use_texts(cli)
    outcome = cli.run("bench", "talks", "--repeat", "1", *OPTIONS)
    assert (outcome.code, outcome.err) == (0, f"harken: errors are not counted: {error}\n")
    assert "WER" not in outcome.out


def test_assistant_without_speculative_is_measured(cli):
    outcome, loaded = run(cli, "bench", "talks/0.wav", "--assistant", "small.en", "--language", "en")
    assert loaded[0]["assistant"] == "small.en"
    assert "acceptance, %" in outcome.out
    assert "plain" not in outcome.out


def test_speculative_decoding_is_compared_with_plain(cli):
    arguments = ("--speculative", "--language", "de", "--threads", 1, "--json", "out.json")
    outcome, loaded = run(cli, "bench", "talks/0.wav", "talks/1.wav", *arguments)
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
    report = read_report()
    by = report["by"]
    assert (by["assistant"], by["threads"], by["temperatures"]) == ("auto", 1, [0.0])
    values = (report["complete"], report["repeats"], report["divergences"], report["failed"])
    assert values == (True, 3, [], [])
    one, other = report["plain"], report["speculative"]
    assert one.keys() == other.keys()
    assert (one["drafted"], other["acceptance_rate"]) == (0, 1.0)
    assert report["ratios"]["forwards"] == one["forwards"] / other["forwards"]
    recording, _ = report["recordings"]
    assert recording["plain"] == recording["speculative"]
    assert (recording["audio"], recording["seconds"]) == ("talks/0.wav", WINDOW_S)


def test_beam_search_reports_that_it_uses_no_drafts(cli):
    arguments = ("talks/0.wav", "--speculative", "--repeat", "1", "--beam-size", "2")
    outcome, _ = run(cli, "bench", *arguments)
    assert table_rows(outcome.out)["drafted tokens"] == ["-", "0"]
    assert "Beam search does not use drafts, since its hypotheses diverge at every step" in outcome.out
    assert outcome.out.endswith(": 1 window decoded plainly.\n")


def test_differing_tokens_are_shown(cli):
    # Both engines take one text after another: to warm up, then plain, then with drafts.
    lines = (window_text(0, text, WINDOW_POSITIONS) for text in ("a", "a", "one cat", "one dog"))
    given = TranscriptBackend(*lines), TOKENIZER, "recital"

    def unused_drafts():
        recognizer = Recognizer(*given, SpeculativeDecoder(float, ngram=True))
        cli.monkeypatch.setattr(recognizer, "transcribe_many", Recognizer(*given).transcribe_many)
        return recognizer

    arguments = ("talks/0.wav", "--speculative", "--repeat", "1", "--json", "out.json")
    outcome, _ = run(cli, "bench", *arguments, make=unused_drafts)
    assert "drafts: n-grams of the text so far and the prompt\n" in outcome.out
    assert outcome.out.endswith(
        "The tokens differ in 1 of 1 recording, the text in 1; the first difference of each:\n"
        '  talks/0.wav: window at 00:00.000, token 5: "c", with drafts "d"\n'
    )
    (divergence,) = read_report()["divergences"]
    plain, speculative = TOKENIZER.encode("cd")
    assert divergence == {
        **{"audio": "talks/0.wav", "start_s": 0.0, "index": 5, "same_text": False},
        **{"plain": plain, "speculative": speculative},
    }


def test_speculative_needs_drafts(cli):
    def make_plain():
        return Recognizer(TranscriptBackend(window_text(0)), TOKENIZER, "recital")

    outcome, _ = run(cli, "bench", "talks/0.wav", "--speculative", make=make_plain)
    assert outcome.code == 2
    line = "--speculative: recital has no assistant on this machine that pays; --assistant names one"
    assert line in outcome.err


def test_verbose_transcription_tells_of_drafts(cli):
    all_taken = (
        r"drafted tokens accepted: ([1-9]\d*) of \1, [\d.]+ tokens per forward pass, steps without a draft: "
    )
    none_used = "windows without drafts, as beam search does not use them: "
    for option, value, line in (("--language", "en", all_taken), ("--beam-size", 2, none_used)):
        outcome, _ = run(cli, "transcribe", "talks/0.wav", "--assistant", "auto", "--verbose", option, value)
        assert re.fullmatch(rf"talks/0.wav: {line}\d+", outcome.err.splitlines()[-1])
