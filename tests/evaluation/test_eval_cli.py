"""``harken eval`` over a model of known texts: its output, its files, failures and interruptions."""

import re
import signal
from pathlib import Path

import pytest

from cli_runner import signal_at
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from fakes.measured import read_report, without_times, write_talks
from harken.api import Recognizer
from harken.errors import ManifestError
from harken.evaluation import evaluate
from tiny_models import TOKENIZER

REFERENCES = ("One dog and a cat.", "A big house", "", "我很好")
HYPOTHESES = ("One dog and the cat.", "A house", "you", "我好")
LANGUAGES = ("en", "en", "none", "zh")


@pytest.fixture(autouse=True)
def talks(cli):
    """A folder of four recordings of one window, and a manifest of their texts, which a model returns."""
    use_texts(cli)
    return write_talks(Path("talks"), REFERENCES, LANGUAGES)


def use_texts(cli, *texts):
    """Load a model that returns the hypotheses, one for each recording."""
    return cli.use_texts(*(window_text(0, text, WINDOW_POSITIONS) for text in texts or HYPOTHESES))


# The tokenizer of the model has bytes only, and suppresses the space as a symbol.
SPACED = ("--temperatures", "0", "--suppress-tokens", "")
RESULT = """\
 20.00 %    1 of    5 words  talks/0.wav
 33.33 %    1 of    3 words  talks/1.wav
 silent     1 of    0 words  talks/2.wav
 33.33 %    1 of    3 characters  talks/3.wav

4 recordings: 1.9 s of audio in 0.0 s, 0.0 times real time
            error %  95 % interval   substituted  deleted  inserted  of
WER         25.00    20.00 to 33.33  1            1        0         8 words
CER         25.81    17.65 to 36.36  1            5        2         31 characters
WER or CER  27.27    20.00 to 33.33  1            2        0         11 words or characters
WER en      25.00    20.00 to 33.33  1            1        0         8 words
CER zh      33.33    -               0            1        0         3 characters
The intervals resample recordings.
No speech in 1 recording: 1 word transcribed in 1 of them.

talks/0.wav: 1 error, 20.00 %
  one dog and [-a-]{+the+} cat

talks/1.wav: 1 error, 33.33 %
  a [-big-] house"""


def test_report_has_scores_totals_and_differences_and_json_all_results(cli):
    outcome = cli.run("eval", "talks", "--worst", "2", "--json", "out.json", *SPACED)
    assert (outcome.code, outcome.err) == (0, "")
    assert without_times(outcome.out) == RESULT
    assert len(cli.loaded) == 1
    report = read_report()
    by = report["by"]
    assert (report["complete"], by["model"], by["temperatures"]) == (True, "tiny.en", [0.0])
    assert "threads" not in report["by"]
    assert (report["wer"]["errors"], report["wer"]["reference_length"]) == (2, 8)
    assert report["hallucinations"] == {"recordings": 1, "seconds": WINDOW_S, "affected": 1, "words": 1}
    assert [recording["hypothesis"] for recording in report["recordings"]] == list(HYPOTHESES)
    assert report["recordings"][3]["words"] is None


def test_limit_is_spread_over_the_manifest_whose_language_the_option_overrides(cli):
    backend = use_texts(cli)
    outcome = cli.run("eval", "talks", "--limit", "2", "--language", "German", *SPACED)
    assert re.findall(r"talks/\d.wav", outcome.out)[:2] == ["talks/0.wav", "talks/2.wav"]
    assert backend.prompts[0][1] == TOKENIZER.language_tokens["de"]


def test_stored_hypotheses_are_reused(cli):
    first = cli.run("eval", "talks", "--hypotheses", "hypotheses.jsonl", *SPACED)
    assert "  我[-很-]好\n" in first.out  # without spaces
    second = cli.run("eval", "talks", "--hypotheses", "hypotheses.jsonl", *SPACED)
    assert first.out == second.out
    assert len(cli.loaded) == 1
    refused = cli.run("eval", "talks", "--hypotheses", "hypotheses.jsonl", "--model", "base")
    reason = 'was made with model "tiny.en", not "base"; name another file'
    assert (refused.code, refused.err) == (3, f"harken: hypotheses.jsonl:1: {reason}\n")


def test_recordings_without_a_hypothesis_are_told_of_before_they_are_transcribed(cli):
    lines = (f'{{"audio": "{name}", "text": ""}}\n' for name in ("talks/2.wav", "1.wav", "0.wav"))
    Path("other.jsonl").write_text("".join(lines))
    outcome = cli.run("eval", "talks", "--hypotheses", "other.jsonl", *SPACED)
    lacking = "lacks 3 of 4 recordings, the first is talks/0.wav; it names 2 not among them, the first is 1.wav"
    assert (outcome.code, outcome.err) == (0, f"harken: other.jsonl: {lacking}; what it lacks is transcribed\n")
    assert cli.run("eval", "talks", "--hypotheses", "other.jsonl", *SPACED).err == ""


def test_interruption_keeps_the_results_so_far(cli):
    signal_at(cli.monkeypatch, use_texts(cli), "encode", 3, signal.SIGINT)
    options = ("--hypotheses", "hypotheses.jsonl", "--json", "out.json", *SPACED)
    outcome = cli.run("eval", "talks", *options)
    line = "harken: interrupted after 2 of 4 recordings; what was done is in hypotheses.jsonl\n"
    assert (outcome.code, outcome.err) == (130, line)
    assert "\n2 recordings: " in outcome.out
    assert (read_report()["complete"], len(read_report()["recordings"])) == (False, 2)
    use_texts(cli, *HYPOTHESES[2:])
    assert without_times(cli.run("eval", "talks", "--worst", "2", *options).out) == RESULT
    assert read_report()["complete"]


COMPARED = """\
 20.00 %   0.00 %  20.00 %    1   0   1 of    5 words  talks/0.wav
 33.33 %  33.33 %  33.33 %    1   1   1 of    3 words  talks/1.wav

2 recordings: 1.0 s of audio in 0.0 s, 0.0 times real time
--beam-size 2: 0.0 s, 0.0 times real time
                 error %  95 % interval     difference  95 % interval       substituted  deleted  inserted  of
WER              25.00    20.00 to 33.33                                    1            1        0         8 words
  --beam-size 2  12.50    0.00 to 33.33     -12.50      -20.00 to +0.00     0            1        0
  other.jsonl    25.00    20.00 to 33.33    +0.00       +0.00 to +0.00      1            1        0
"""
REMARK = "other.jsonl: Detected speech without text: 3.0 s dropped as hallucinations, 0.0 s unwritten.\n"


def test_settings_and_other_engines_are_compared_on_the_same_recordings(cli):
    first, second = ("One dog and the cat.", "A house"), (REFERENCES[0], "A house")
    use_texts(cli, *(text for pair in zip(first, second, strict=True) for text in pair))
    lines = Path("talks/manifest.jsonl").read_text(encoding="utf-8").splitlines()
    Path("talks/manifest.jsonl").write_text("\n".join(lines[:2]))
    line = '{{"audio": "talks/{}.wav", "text": "{}", "dropped_s": 1.5, "language": "de", "by": {{}}}}\n'
    others = ("One dog and <b>cat</b>", "A pig house")
    Path("other.jsonl").write_text("".join(line.format(*each) for each in enumerate(others)))
    outcome = cli.run(
        *("eval", "talks", "--compare", "--beam-size 2", "--compare", "other.jsonl"),
        *("--json", "out.json", "--html", "page.html", *SPACED),
    )
    assert (outcome.code, outcome.err) == (0, "")
    timeless = re.sub(r"[\d.]+ s, [\d.]+ times", "0.0 s, 0.0 times", outcome.out)
    assert timeless.startswith(COMPARED)
    assert REMARK in timeless
    assert len(cli.loaded) == 1
    report, page = read_report(), Path("page.html").read_text(encoding="utf-8")
    beams = report["compared"]["--beam-size 2"]
    assert beams["by"]["beam_size"] == 2
    assert beams["differences"]["wer"] == {"rate": -0.125, "low": pytest.approx(-0.2), "high": 0.0}
    language = report["compared"]["other.jsonl"]["classes"]["language"]
    assert (language["errors"], language["reference_length"]) == (2, 2)
    assert '<audio controls preload="none" src="talks/0.wav"></audio>' in page
    assert "one dog and <del>a</del> <ins>the</ins> cat" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_script_that_the_manifest_asks_for_is_written(cli, talks):
    use_texts(cli, "发展")
    (talks / "manifest.jsonl").write_text('{"audio": "0.wav", "text": "發展", "language": "zh-TW"}')
    outcome = cli.run("eval", "talks", *SPACED)
    assert (outcome.code, outcome.err) == (0, "")
    assert "  0.00 %    0 of    2 characters  talks/0.wav" in outcome.out


def test_an_evaluation_of_no_recordings_is_refused():
    for manifests, limit in (((), None), ("talks", 0)):
        with pytest.raises(ManifestError, match="no recordings are given: allowed is a manifest, or a folder"):
            evaluate(Recognizer(TranscriptBackend(), TOKENIZER, "recital"), manifests, limit=limit)
