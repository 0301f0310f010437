"""``harken decode``: the table and the JSON of tokens, sentences and rejected attempts."""

import json
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, WindowText, timestamp_token, window_text
from harken.cli.decode import TokenEvent, trace_table
from tiny_models import TOKENIZER

START = f"       0 {TOKENIZER.sot:>6}  sot        <|startoftranscript|>"
FIRST_WINDOW = ("--clip-timestamps", "0,0.48")


@pytest.fixture
def decode(cli):
    """Return a function that decodes two windows with known texts, and returns what is printed."""
    talk = AUDIO_FORMATS["wav s16"].write(Path("talk"), 2 * WINDOW_S)

    def decode(text, *arguments):
        cli.use_texts(*(text if isinstance(text, list) else [text]))
        outcome = cli.run("decode", talk, "--language", "en", *arguments)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.out

    return decode


@pytest.fixture
def trace(decode):
    """Return a function that decodes so, and returns the events."""
    return lambda *given: [json.loads(line) for line in decode(*given, "--trace", "--json").splitlines()]


def named(name, events):
    return [event for event in events if event["event"] == name]


class TestTable:
    def test_table_has_a_row_for_every_token(self, decode):
        table = decode(window_text(0, "Hi.", WINDOW_POSITIONS), "--trace", *FIRST_WINDOW)
        first, head, *rows, sentence, end, verdict, blank = table.splitlines()
        assert first.startswith("window 1 at 00:00.000, prepared in ")
        assert head.split() == ["index", "id", "kind", "text", "probability", "ms"]
        assert [row[: head.index("probability")].rstrip() for row in rows] == [
            START,
            f"       1 {TOKENIZER.language_tokens['en']:>6}  language   <|en|>",
            f"       2 {TOKENIZER.transcribe:>6}  task       <|transcribe|>",
            "attempt 1: greedy",
            f"       3 {timestamp_token(0):>6}  timestamp  <|0.00|>",
            f'       4 {ord("H"):>6}  text       "H"',
            f'       5 {ord("i"):>6}  text       "i"',
            f'       6 {ord("."):>6}  text       "."',
            f"       7 {timestamp_token(24):>6}  timestamp  <|0.48|>",
        ]
        assert sentence == f"{'':17}[00:00.000 --> 00:00.480] Hi."
        assert end.startswith(f"       8 {TOKENIZER.eot:>6}  eot        <|endoftext|>")
        assert verdict.startswith("kept: temperature 0, average log-probability 0.00, compression ratio 0.")
        assert blank == ""
        for row in [*rows[4:], end]:
            probability, ms = row[head.index("probability") :].split()
            assert probability == "1.0000"
            assert float(ms) >= 0
            assert len(row) == len(head)

    def test_wide_characters_keep_columns_aligned(self):
        def width(text):
            numbers = {"index": 5, "row": None, "token": 7, "probability": 0.5, "ms": 1.0}
            return trace_table(TokenEvent(kind="text", text=text, bytes="", **numbers)).index("0.5000")

        assert width("ab") == width("語") + 1 == width("ab́") - 1

    def test_parallel_samples_are_numbered(self, decode):
        sampling = ("--temperatures", "0.5", "--best-of", "2")
        table = decode(window_text(0, "x", WINDOW_POSITIONS), "--trace", *FIRST_WINDOW, *sampling)
        assert "attempt 1: sampling at temperature 0.5, best of 2\n     0:3 " in table
        assert "\n     1:3 " in table
        assert f"\n{'':17}1: [00:00.000 --> 00:00.480] x\n" in table


class TestEvents:
    def test_windows_have_their_start_and_prompt(self, trace):
        texts = [window_text(0, word, WINDOW_POSITIONS) for word in ("one", "two")]
        events = trace(texts, "--condition-on-previous-text")
        assert [event["start_s"] for event in named("window", events)] == [0.0, WINDOW_S]
        assert [(event["text"], event["start_s"], event["end_s"]) for event in named("sentence", events)] == [
            ("one", 0.0, WINDOW_S), ("two", WINDOW_S, 2 * WINDOW_S),
        ]  # fmt: skip
        second = named("token", events[events.index(named("window", events)[1]) :])
        assert [event["kind"] for event in second if event["probability"] is None] == [
            "control", "timestamp", "text", "text", "text", "timestamp", "sot", "language", "task",
        ]  # fmt: skip
        assert [event["index"] for event in second] == [*range(len(second))]

    def test_characters_of_several_tokens_appear_with_the_last_token(self, trace):
        events = trace(window_text(0, "né語", WINDOW_POSITIONS), *FIRST_WINDOW)
        tokens = [event for event in named("token", events) if event["kind"] == "text"]
        assert [(token["text"], token["bytes"]) for token in tokens] == [
            ("n", ""), ("", "c3"), ("é", ""), ("", "e8"), ("", "aa"), ("語", ""),
        ]  # fmt: skip
        assert [event["text"] for event in named("sentence", events)] == ["né語"]

    def test_rejected_attempts_have_reasons(self, trace):
        unsure = window_text(0, "hm", WINDOW_POSITIONS, gap=1.0)
        texts = [[unsure, unsure, window_text(0, "yes", WINDOW_POSITIONS)]]
        events = trace(texts, "--temperatures", "0,0.2", "--best-of", "1", *FIRST_WINDOW)
        assert [(event["attempt"], event["strategy"]) for event in named("attempt", events)] == [
            (1, "greedy"), (2, "beam search of width 5"), (3, "sampling at temperature 0.2, best of 1"),
        ]  # fmt: skip
        (decided,) = named("decided", events)
        *rejected, kept = decided["attempts"]
        assert len(rejected) == 2
        assert all(each["reason"].startswith("average log-probability -") for each in rejected)
        assert kept["reason"] is None
        assert (decided["text"], decided["silent"]) == ("<|0.00|>yes<|0.48|>", False)

    def test_silent_window_is_marked(self, trace, decode):
        silent = window_text(0, "psst", WINDOW_POSITIONS, gap=1.0, no_speech=0.9)
        (decided,) = named("decided", trace(silent, *FIRST_WINDOW))
        assert decided["silent"] is True
        assert "\nsilence: temperature 0, " in decode(silent, *FIRST_WINDOW)

    def test_beam_search_emits_sentences_at_the_end(self, trace):
        events = trace(window_text(0, "né", 9, 9, "o", WINDOW_POSITIONS), "--beam-size", "2", *FIRST_WINDOW)
        names = [event["event"] for event in events]
        assert names[-3:] == ["sentence", "sentence", "decided"]
        assert "sentence" not in names[:-3]
        assert [event["text"] for event in named("sentence", events)] == ["né", "o"]
        assert named("attempt", events)[0]["strategy"] == "beam search of width 2"

    def test_sentence_without_end_timestamp_has_no_end(self, trace):
        (sentence,) = named("sentence", trace(window_text(0, "and so"), "--beam-size", "1", *FIRST_WINDOW))
        assert (sentence["start_s"], sentence["end_s"]) == (0.0, None)

    def test_step_time_excludes_printing(self, cli, trace):
        clock = [0.0]
        shown = []

        def slow(text):
            clock[0] += 1.0
            shown.append(text)

        cli.monkeypatch.setattr("harken.cli.decode.perf_counter", lambda: clock[0])
        cli.monkeypatch.setattr("harken.cli.decode.write_stdout", slow)
        trace(window_text(0, "x", WINDOW_POSITIONS))
        assert {json.loads(text)["ms"] for text in shown if '"ms"' in text} <= {0.0, None}


def test_without_trace_each_window_shows_its_tokens(decode):
    text = window_text(0, "Hi", WINDOW_POSITIONS)
    where, verdict, tokens, shown, blank = decode(text, *FIRST_WINDOW).splitlines()
    assert where == "window 1 at 00:00.000"
    assert verdict.startswith("kept: ")
    assert tokens == f"{timestamp_token(0)} {ord('H')} {ord('i')} {timestamp_token(WINDOW_POSITIONS)}"
    assert (shown, blank) == ("<|0.00|>Hi<|0.48|>", "")


def test_json_without_trace_has_only_windows(decode):
    text = WindowText(tokens=(timestamp_token(0), ord("x"), timestamp_token(WINDOW_POSITIONS)))
    assert [json.loads(line)["event"] for line in decode(text, "--json").splitlines()] == ["decided"] * 2
