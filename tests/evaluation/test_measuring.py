"""What all commands that measure do: refuse, report, keep results at a signal, and replace no file that is read."""

import os
from pathlib import Path

import pytest

pytest.importorskip("jiwer")
pytest.importorskip("scipy")

from cli_runner import signal_at
from fakes.backends import window_text
from fakes.measured import OPTIONS, TEXTS, FixedDiarizer, known_text_recognizer, read_report, write_talks
from harken.api import Recognizer
from harken.cli import measuring as reports
from harken.errors import OptionError
from harken.evaluation import scoring, speakers
from harken.results import SpeakerTurn

COMMANDS = {
    "eval": ("eval", "talks"),
    "eval --speakers": ("eval", "talks", "--speakers", "--no-words"),
    "bench": ("bench", "talks", "--repeat", "1"),
    "bench --streaming": ("bench", "talks", "--repeat", "1", "--streaming"),
}
BEGINNING = {
    "eval": ("transcribe", 2),
    "eval --speakers": ("diarize", 2),
    "bench": ("transcribe_many", 3),  # the first is to warm up
    "bench --streaming": ("align", 2),
}
"""The call with which the second recording begins: a method of the engine, and which of its calls."""
SCORING = {"eval": (scoring, "align_words", 2), "eval --speakers": (speakers, "jaccard_errors", 2)}
"""The call that scores the second recording, of those commands that score one after the other."""


class Measuring:
    """A command that measures two recordings of known texts."""

    def __init__(self, name, cli):
        self.name, self.patch, self._cli = name, cli.monkeypatch, cli
        texts = (TEXTS[0], *TEXTS) if name == "bench" else TEXTS
        self.engine = known_text_recognizer(texts)
        if name == "eval --speakers":
            self.engine = FixedDiarizer((SpeakerTurn(start_s=0.0, end_s=0.5, speaker="A"),))

    def run(self, *arguments):
        self._cli.loaders["load"] = self._cli.loaders["load_diarizer"] = lambda *model, **given: self.engine
        return self._cli.run(*COMMANDS[self.name], *OPTIONS, "--json", "out.json", *arguments)


@pytest.fixture(params=COMMANDS)
def measuring(request, cli, talks):
    return Measuring(request.param, cli)


def test_a_failed_recording_is_reported_and_the_others_are_measured(measuring):
    Path("talks/1.wav").write_text("Dear diary")
    if measuring.name == "eval --speakers":
        pytest.skip("its engine reads no recording")
    outcome = measuring.run()
    assert outcome.code == 1
    assert outcome.err.replace("\\", "/").startswith(
        "harken: talks/1.wav: is not a recording that FFmpeg can read"
    )
    assert outcome.err.count("\n") == 1
    assert "1 recording: 0.5 s" in outcome.out
    assert [failed["audio"] for failed in read_report()["failed"]] == ["talks/1.wav"]


def test_a_language_that_the_model_does_not_know_names_the_recording_before_the_first_is_transcribed(measuring):
    def resolve_options(self, options, *, language=None):
        if language == "de":
            raise OptionError("language", "de", "en, the only language of the model")
        return options

    if measuring.name == "eval --speakers":
        pytest.skip("its engine reads no recording")
    measuring.patch.setattr(Recognizer, "resolve_options", resolve_options)
    write_talks(Path("more"), languages=("en", "de"))
    outcome = measuring.run("more")
    line = "harken: more/1.wav: language='de': allowed is en, the only language of the model\n"
    assert (outcome.code, outcome.err, measuring.engine.backend.mels) == (3, line, [])


@pytest.mark.parametrize("scored", [False, True], ids=["as it begins", "as it is scored"])
def test_a_signal_in_a_recording_keeps_the_results_before_it(measuring, scored):
    if scored and measuring.name not in SCORING:
        pytest.skip("it scores at the end")
    place, *call = SCORING[measuring.name] if scored else (measuring.engine, *BEGINNING[measuring.name])
    signal_at(measuring.patch, place, *call)
    outcome = measuring.run()
    assert (outcome.code, outcome.err) == (143, "harken: terminated after 1 of 2 recordings\n")
    assert "1 recording: 0.5 s" in outcome.out
    assert read_report()["complete"] is False
    assert not [*Path().glob(".*")]


def test_a_signal_while_the_report_is_made_waits_for_it(measuring):
    signal_at(measuring.patch, reports, "dump_json", 1)
    outcome = measuring.run()
    assert (outcome.code, outcome.err) == (143, "harken: terminated\n")
    assert "2 recordings" in outcome.out
    assert read_report()["complete"] is True


def assert_nothing_is_replaced(run, named):
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    outcome = run()
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith(f"harken: {named}")
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("target", ["link.json", "talks/manifest.jsonl", "./talks/../talks/1.wav"])
def test_a_result_does_not_replace_what_is_read(measuring, target):
    Path("link.json").hardlink_to("talks/0.wav")

    def run():
        return measuring.run("--json", target, "--limit", "1")

    assert_nothing_is_replaced(run, target)
    assert "would be overwritten, and it is read" in run().err


def test_a_result_does_not_replace_hypotheses_or_a_model(cli, talks):
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    for named, *arguments in (
        ("talks/manifest.jsonl", "--hypotheses", "talks/manifest.jsonl"),
        ("h.jsonl, which is ./h.jsonl", "--hypotheses", "h.jsonl", "--json", "./h.jsonl"),
        ("h.jsonl", "--compare", "h.jsonl", "--html", "h.jsonl"),
        ("h.jsonl", "--compare", "--hypotheses h.jsonl", "--html", "h.jsonl"),
        ("model/config.json", "--model", "model", "--json", "model/config.json"),
    ):
        assert_nothing_is_replaced(lambda arguments=arguments: cli.run("eval", "talks", *arguments), named)


NO_EFFECT = "has no effect without --streaming"
REFUSED = [
    ("bench none.mp3", 3, "none.mp3: no such file"),
    ("bench none.jsonl", 3, "none.jsonl: no such file; allowed is a manifest"),
    ("bench .", 3, "manifest.jsonl: no such file; allowed is a manifest"),
    (f"bench nosuch.wav {'y' * 5000}.jsonl", 3, ""),
    ("bench -", 2, "standard input can be read only once; allowed are files and manifests"),
    ("bench talks --repeat 0", 2, "Invalid value for '--repeat'"),
    ("bench", 2, "Missing argument 'FILE|MANIFEST...'"),
    ("bench talks --join 1", 2, f"--join {NO_EFFECT}"),
    ("bench talks --block-s 0.1", 2, f"--block-s {NO_EFFECT}"),
    ("bench talks --one-core", 2, f"--one-core {NO_EFFECT}"),
    ("bench talks --delay high", 2, f"--delay {NO_EFFECT}"),
    ("bench talks --streaming --speculative", 2, "--speculative and --streaming exclude each other"),
    (
        "bench talks --streaming --delay low,soon",
        2,
        "--delay 'soon': allowed is minimal, low, medium, high, or",
    ),
    ("bench talks --streaming --join -1", 2, "Invalid value for '--join'"),
    ("eval none", 3, "none: no such file; allowed is a manifest, or a folder with manifest.jsonl\n"),
    ("eval talks --detect --language en", 2, "--detect and --language exclude each other"),
    ("eval talks --html none/a.html", 5, "none/a.html: cannot be written: there is no folder"),
    ("eval talks --compare none", 3, "none: no such file; allowed is a file of hypotheses"),
    ("eval talks --compare talks/other.jsonl", 3, "talks/other.jsonl: lacks 1 of 2 recordings, the first is"),
    ("eval talks --compare=--worst=3", 2, "--compare '--worst=3': allowed are options of the model and"),
    ("eval talks --compare=--beams", 2, "--compare '--beams': No such option '--beams'"),
    ("eval talks --compare=--hotwords", 2, "--compare '--hotwords': Option '--hotwords' requires an argument"),
    ("eval talks --beam-size 1 --compare=--patience=2", 2, "--patience has no effect with --beam-size 1"),
    ("eval talks --compare=--detect --language en", 2, "--detect and --language exclude each other"),
    ("eval talks --speakers --compare a.jsonl", 2, "--compare has no effect with --speakers"),
    ("eval talks --json none/a.json", 5, "none/a.json: cannot be written: there is no folder"),
    ("eval talks --hypotheses none/a", 5, "none/a: cannot be written: there is no folder none\n"),
    ("eval talks --worst -1", 2, "Invalid value for '--worst'"),
    ("eval", 2, "Missing argument 'MANIFEST...'"),
    ("eval talks --turns found", 2, "--turns has no effect without --speakers"),
    ("eval talks --no-words", 2, "--no-words has no effect without --speakers"),
    ("eval talks --speakers --hypotheses a.jsonl", 2, "--hypotheses has no effect with --speakers"),
    ("eval talks --speakers --worst 9", 2, "--worst has no effect with --speakers"),
]
"""Command lines, their exit codes, and the beginnings of their only line."""


def test_bad_arguments_fail_in_one_line_before_loading_a_model(cli, talks):
    cli.use_texts(window_text(0))
    Path("talks/other.jsonl").write_text('{"audio": "talks/0.wav", "text": ""}\n')
    for line, code, message in REFUSED:
        outcome = cli.run(*line.split())
        assert (outcome.code, outcome.out, outcome.err.count("\n"), cli.loaded) == (code, "", 1, []), line
        message = message.replace("/", str(Path("/"))) if code == 5 else message
        assert outcome.err.startswith(f"harken: {message}"), line


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="this system has no paths of pipes")
def test_a_pipe_which_cannot_be_read_for_every_pass_is_refused(cli):
    read, write = os.pipe()
    os.close(write)
    outcome = cli.run("bench", f"/dev/fd/{read}")
    os.close(read)
    assert outcome.code == 2
    assert outcome.err.startswith(
        f"harken: /dev/fd/{read} can be read only once; allowed are files and manifests"
    )
