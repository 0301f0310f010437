"""``harken decode``: the table and the JSON of tokens, sentences and rejected attempts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from cli_runner import CliRunner
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, WindowText, timestamp_token, window_text
from harken.cli.decode import TokenEvent, trace_table
from tiny_models import TOKENIZER

START = f"       0 {TOKENIZER.sot:>6}  sot        <|startoftranscript|>"


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    AUDIO_FORMATS["wav s16"].write(Path("talk"), 2 * WINDOW_S)
    return CliRunner(capsys, monkeypatch)


def events(cli: CliRunner, *arguments: str) -> list[dict[str, object]]:
    outcome = cli.run("decode", "talk.wav", "--trace", "--json", "--language", "en", *arguments)
    assert outcome.code == 0
    return [json.loads(line) for line in outcome.out.splitlines()]


def events_named(name: str, trace: list[dict[str, object]]) -> list[dict[str, object]]:
    return [event for event in trace if event["event"] == name]


class TestTable:
    def test_table_has_a_row_for_every_token(self, cli):
        cli.use_texts(window_text(0, "Hi.", WINDOW_POSITIONS))
        outcome = cli.run("decode", "--trace", "talk.wav", "--language", "en", "--clip-timestamps", "0,0.48")
        assert (outcome.code, outcome.err) == (0, "")
        first, head, *rows, sentence, end, verdict, blank = outcome.out.splitlines()
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
            shown = trace_table(
                TokenEvent(
                    index=5, row=None, token=7, kind="text", text=text, bytes="", probability=0.5, ms=1.0
                )
            )
            return shown.index("0.5000")

        assert width("ab") == width("語") + 1 == width("ab́") - 1

    def test_parallel_samples_are_numbered(self, cli):
        cli.use_texts(window_text(0, "x", WINDOW_POSITIONS))
        outcome = cli.run(
            *("decode", "--trace", "talk.wav", "--language", "en", "--clip-timestamps", "0,0.48"),
            *("--temperatures", "0.5", "--best-of", "2"),
        )
        assert "attempt 1: sampling at temperature 0.5, best of 2\n     0:3 " in outcome.out
        assert "\n     1:3 " in outcome.out
        assert f"\n{'':17}1: [00:00.000 --> 00:00.480] x\n" in outcome.out


class TestEvents:
    def test_windows_have_their_start_and_prompt(self, cli):
        cli.use_texts(window_text(0, "one", WINDOW_POSITIONS), window_text(0, "two", WINDOW_POSITIONS))
        trace = events(cli, "--condition-on-previous-text")
        assert [event["start_s"] for event in events_named("window", trace)] == [0.0, WINDOW_S]
        assert [event["text"] for event in events_named("sentence", trace)] == ["one", "two"]
        assert [(event["start_s"], event["end_s"]) for event in events_named("sentence", trace)] == [
            (0.0, WINDOW_S), (WINDOW_S, 2 * WINDOW_S),
        ]  # fmt: skip
        second = trace[trace.index(events_named("window", trace)[1]) :]
        prompt = [event for event in events_named("token", second) if event["probability"] is None]
        assert [event["kind"] for event in prompt] == [
            "control", "timestamp", "text", "text", "text", "timestamp", "sot", "language", "task",
        ]  # fmt: skip
        assert [event["index"] for event in events_named("token", second)] == [
            *range(len(events_named("token", second)))
        ]

    def test_characters_of_several_tokens_appear_with_the_last_token(self, cli):
        cli.use_texts(window_text(0, "né語", WINDOW_POSITIONS))
        trace = events(cli, "--clip-timestamps", "0,0.48")
        text = [
            (event["text"], event["bytes"]) for event in events_named("token", trace) if event["kind"] == "text"
        ]
        assert text == [("n", ""), ("", "c3"), ("é", ""), ("", "e8"), ("", "aa"), ("語", "")]
        assert [event["text"] for event in events_named("sentence", trace)] == ["né語"]

    def test_rejected_attempts_have_reasons(self, cli):
        unsure = window_text(0, "hm", WINDOW_POSITIONS, gap=1.0)
        cli.use_texts([unsure, window_text(0, "yes", WINDOW_POSITIONS)])
        trace = events(cli, "--temperatures", "0,0.2", "--best-of", "1", "--clip-timestamps", "0,0.48")
        assert [(event["attempt"], event["strategy"]) for event in events_named("attempt", trace)] == [
            (1, "greedy"), (2, "sampling at temperature 0.2, best of 1"),
        ]  # fmt: skip
        (decided,) = events_named("decided", trace)
        rejected, kept = decided["attempts"]
        assert rejected["reason"].startswith("average log-probability -")
        assert kept["reason"] is None
        assert decided["text"] == "<|0.00|>yes<|0.48|>"
        assert decided["silent"] is False

    def test_silent_window_is_marked(self, cli):
        cli.use_texts(window_text(0, "psst", WINDOW_POSITIONS, gap=1.0, no_speech=0.9))
        (decided,) = events_named("decided", events(cli, "--clip-timestamps", "0,0.48"))
        assert decided["silent"] is True
        outcome = cli.run("decode", "talk.wav", "--language", "en", "--clip-timestamps", "0,0.48")
        assert "\nsilence: temperature 0, " in outcome.out

    def test_beam_search_emits_sentences_at_the_end(self, cli):
        cli.use_texts(window_text(0, "né", 9, 9, "o", WINDOW_POSITIONS))
        trace = events(cli, "--beam-size", "2", "--clip-timestamps", "0,0.48")
        names = [event["event"] for event in trace]
        assert names[-3:] == ["sentence", "sentence", "decided"]
        assert "sentence" not in names[:-3]
        assert [event["text"] for event in events_named("sentence", trace)] == ["né", "o"]
        assert events_named("attempt", trace)[0]["strategy"] == "beam search of width 2"

    def test_sentence_without_end_timestamp_has_no_end(self, cli):
        cli.use_texts(window_text(0, "and so"))
        (sentence,) = events_named("sentence", events(cli, "--clip-timestamps", "0,0.48"))
        assert (sentence["start_s"], sentence["end_s"]) == (0.0, None)

    def test_step_time_excludes_printing(self, cli, monkeypatch):
        clock = [0.0]
        monkeypatch.setattr("harken.cli.decode.perf_counter", lambda: clock[0])
        shown: list[str] = []

        def slow(text):
            clock[0] += 1.0
            shown.append(text)

        monkeypatch.setattr("harken.cli.decode.write_stdout", slow)
        cli.use_texts(window_text(0, "x", WINDOW_POSITIONS))
        events(cli)
        assert {json.loads(text)["ms"] for text in shown if '"ms"' in text} <= {0.0, None}


def test_without_trace_each_window_shows_its_tokens(cli):
    cli.use_texts(window_text(0, "Hi", WINDOW_POSITIONS))
    outcome = cli.run("decode", "talk.wav", "--language", "en", "--clip-timestamps", "0,0.48")
    where, verdict, tokens, text, blank = outcome.out.splitlines()
    assert where == "window 1 at 00:00.000"
    assert verdict.startswith("kept: ")
    assert tokens == f"{timestamp_token(0)} {ord('H')} {ord('i')} {timestamp_token(WINDOW_POSITIONS)}"
    assert text == "<|0.00|>Hi<|0.48|>"
    assert blank == ""


def test_json_without_trace_has_only_windows(cli):
    cli.use_texts(WindowText(tokens=(timestamp_token(0), ord("x"), timestamp_token(WINDOW_POSITIONS))))
    outcome = cli.run("decode", "talk.wav", "--json", "--language", "en")
    assert [json.loads(line)["event"] for line in outcome.out.splitlines()] == ["decided", "decided"]
