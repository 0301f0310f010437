"""What the command line refuses: the command, its exit code, and the line, before any model is loaded.

Limits of single options are in tests/transcribe/test_options.py; here is one of each kind.
"""

import os
import shlex

import pytest

FORMATS = "txt, srt, vtt, ass, lrc, tsv, words.tsv, json, html, rttm"
NO_FOLDER = "cannot be written: there is no folder none"
DELAYS = "minimal, low, medium, high, or whole milliseconds from 1 to 60000"

REFUSED = [
    # transcribe
    ("transcribe none.mp3", 3, "none.mp3: no such file"),
    ("transcribe .", 3, ".: is a directory"),
    ("transcribe talk.wav --condition_on_previous_text False", 2, "False: no such file; a switch takes no"),
    ("transcribe --watch none", 2, "--watch takes folders and patterns, and none is neither"),
    ("transcribe --watch . -o -", 2, "no --watch"),
    ("transcribe talk.wav -f doc", 2, f"'doc' is not one of {FORMATS}, all"),
    ("transcribe talk.wav -f srt,vtt -o -", 2, "--output-dir - takes one FILE and at most one --format"),
    ("transcribe talk.wav -o talk.wav/out", 5, "cannot be made a folder"),
    ("transcribe talk.wav other/talk.wav -f srt -o out", 2, "other/talk.wav would both be written to"),
    ("transcribe talk.wav -f vtt --karaoke --no-word-timestamps", 2, "--no-word-timestamps excludes"),
    ("transcribe talk.wav --skip-existing", 2, "--skip-existing and --resume are for files"),
    ("transcribe talk.wav -f rttm", 2, "--format rttm has turns of speakers: give --speakers or"),
    ("transcribe talk.wav --beam-size 0", 2, "--beam-size 0: allowed is an integer from 1 to 64"),
    ("transcribe talk.wav --beam-size five", 2, "'five' is not an integer"),
    ("transcribe talk.wav --temperatures 0,warm", 2, "'--temperatures': 'warm' is not a number"),
    ("transcribe talk.wav --suppress-regex '(a+)+$'", 2, "'(a+)+$': allowed is a regular expression"),
    ("transcribe talk.wav --precision fp8", 2, "'fp8' is not one of 'auto', 'fp32', 'bf16', 'int16',"),
    ("transcribe talk.wav --patience nan", 2, "'--patience': 'nan' is not a number"),
    ("transcribe talk.wav --model ''", 2, "it is empty, and names no file"),
    ("transcribe talk.wav --vad-threshold 0.3 --no-vad", 2, "--vad-threshold has no effect with --no-vad"),
    ("transcribe talk.wav --beam-size 1 --patience 2", 2, "--patience has no effect with --beam-size 1"),
    ("transcribe talk.wav --best-of 3 --temperatures 0", 2, "no effect with --temperatures 0 alone"),
    ("transcribe talk.wav --beam-size 5 --temperatures 1", 2, "no effect with --temperatures that"),
    ("transcribe talk.wav --languages de --language en", 2, "--languages has no effect with --language"),
    ("transcribe talk.wav --multilingual --language de", 2, "--language has no effect with --multilingual"),
    (
        "transcribe talk.wav --language zh-Latn",
        2,
        "'zh-Latn': allowed is zh-Hans or zh-Hant, or zh as it comes",
    ),
    ("transcribe talk.wav --beam-size 5 --draft talk.txt", 2, "--draft has no effect in beam search"),
    ("transcribe talk.wav --language de --draft talk.txt", 2, "--draft has no effect in beam search"),
    ("transcribe talk.wav --carry-initial-prompt", 2, "has no effect without --initial-prompt"),
    ("transcribe talk.wav --backend numpy --precision int8", 2, "has no effect with --backend numpy"),
    ("transcribe talk.wav --backend numpy --threads 2", 2, "--threads has no effect with --backend numpy"),
    ("transcribe talk.wav --revision main -m .", 2, "--revision has no effect with a model given by its path"),
    ("transcribe talk.wav --multilingual --language-threshold 1", 2, "with --language or --multilingual"),
    ("transcribe talk.wav --no-timestamps --max-initial-timestamp-s 2", 2, "no effect with --no-timestamps"),
    ("transcribe talk.wav -f txt --max-line-width 9", 2, "has no effect without a --format of srt"),
    ("transcribe talk.wav -f srt --karaoke", 2, "--karaoke has no effect without a --format of"),
    ("transcribe talk.wav -f json --embed-audio", 2, "--embed-audio has no effect without a --format of html"),
    ("transcribe talk.wav --max-speakers 2", 2, "--max-speakers has no effect without --speakers"),
    ("transcribe talk.wav --speakers --speaker-sample Ann", 2, "Ann: allowed is NAME=FILE, each name once"),
    ("transcribe talk.wav --speakers --voices none.json", 4, "none.json: "),
    ("transcribe talk.wav -q -v", 2, "--verbose has no effect with --quiet"),
    ("transcribe talk.wav -f srt --min-cue-s 8", 2, "--min-cue-s 8.0: allowed is at most --max-cue-s, 7"),
    ("transcribe talk.wav -f srt --max-cue-s 0.5", 2, "--max-cue-s 0.5: allowed is at least --min-cue-s, 0.83"),
    ("transcribe talk.wav --channels apart -f txt --resume", 2, "--resume and --channels apart exclude"),
    ("transcribe talk.wav --channels apart --draft talk.txt", 2, "--draft and --channels apart exclude"),
    ("transcribe talk.wav --replace none.txt", 2, "'--replace': 'none.txt': No such file or directory"),
    ("transcribe talk.wav --replace talk.wav", 2, "'talk.wav': it is not UTF-8 text"),
    ("check talk.wav", 3, "talk.wav: is not UTF-8 text"),
    # listen
    ("listen none.mp3", 3, "none.mp3: no such file"),
    ("listen talk.wav --pcm", 2, "--pcm is for standard input: harken listen - --pcm < talk.wav; see"),
    ("listen talk.wav --microphone usb", 2, "--microphone and FILE exclude each other"),
    ("listen ''", 2, "FILE '': allowed is a recording, or - for standard input; see 'harken listen --help'"),
    ("listen --microphone usb --pcm", 2, "--microphone and --pcm exclude each other"),
    ("listen --microphone usb --pace real", 2, "--pace is for a recording; a microphone is in real time"),
    ("listen - --pcm-rate 8000", 2, "--pcm-rate has no effect without --pcm"),
    ("listen talk.wav --quiet --verbose", 2, "--quiet and --verbose exclude each other"),
    ("listen talk.wav --json --times", 2, "--times is for lines of text; --json has the times"),
    ("listen talk.wav --record ''", 2, "'--record': it is empty, and names no file"),
    ("listen talk.wav --record -", 2, "'--record': '-': allowed is a file, since standard output"),
    ("listen talk.wav --record new.MP3", 2, "--record new.MP3: the format is WAV; allowed is a name that ends"),
    ("listen talk.wav -o talk.doc", 2, "'-o' / '--output': 'talk.doc': allowed endings"),
    ("listen talk.wav -o talk.rttm", 2, "--output talk.rttm has turns of speakers: give --speakers, too"),
    ("listen talk.wav -o talk.srt --record none/a.wav", 5, f"none/a.wav: {NO_FOLDER}"),
    ("listen talk.wav -o none/a.srt --record a.wav", 5, f"none/a.srt: {NO_FOLDER}"),
    ("listen talk.wav --record ./talk.wav", 2, "./talk.wav, which is talk.wav, would be overwritten"),
    ("listen talk.wav --delay never --record a.wav", 2, f"--delay 'never': allowed is {DELAYS}"),
    ("listen talk.wav --batch-size 1", 2, "No such option '--batch-size'"),
    # decode
    ("decode talk.wav --batch-size 2", 2, "--batch-size 2: allowed is 1, as windows are shown"),
    # eval
    ("eval . --json -", 2, "'--json': '-': allowed is a file, since standard output shows the text"),
    ("eval . --html -", 2, "'--html': '-': allowed is a file, since standard output shows the text"),
    ("eval . --hypotheses -", 2, "'--hypotheses': '-': allowed is a file, since standard output shows"),
    # models
    ("models show none.bin", 4, "none.bin: no such model; allowed is "),
    # serve
    ("serve --api-key '' --port 99999", 2, "--api-key '': allowed is a key that is not empty"),
    # mcp
    ("mcp", 2, "Missing option '--root'"),
    ("mcp --root none", 2, "Invalid value for '--root': Directory 'none' does not exist"),
    ("mcp --root . --port 1", 2, "--port has no effect without --http"),
    # plot
    ("plot talk.wav -o out.gif", 2, "'out.gif' does not end in .html or .png"),
    ("plot talk.wav --clip-timestamps 1,2", 2, "choose the excerpt with --start and --duration"),
    ("plot talk.wav --start 20", 2, "--start 20.0: allowed is a time before the end of the recording"),
    ("plot talk.wav --start nan", 2, "'--start': 'nan' is not a number of the range x>=0"),
    ("plot none.flac", 3, "none.flac: no such file"),
    ("plot talk.wav -o none/out.html", 5, "there is no folder none"),
    # all
    ("transcribe", 2, "Missing argument 'FILE...'; see 'harken transcribe --help'"),
    ("transcripe talk.wav", 2, "No such command 'transcripe'"),
    ("transcribe talk.wav --colour", 2, "No such option '--colour'"),
]
TEXTS = ("--hotwords", "--initial-prompt", "--language", "--revision")
"""Options of each kind that takes a text: of a list, of a field, and of the model."""

ACCEPTED = [
    "transcribe none.wav --beam-size 5 --temperatures 0,0.5",
    "transcribe none.wav --best-of 5 --temperatures 0 --no-vad --vad-threshold 0.5",
    "transcribe none.wav --no-carry-initial-prompt --backend numpy --precision fp32",
    "transcribe none.wav --multilingual --languages de,en --revision main",
    "transcribe none.wav -f txt,srt -o out --max-line-width 9",
    "transcribe none.wav -f ass -o out --karaoke",
    "listen none.wav --multilingual --language-threshold 0.7",
    "plot none.wav --vad-threshold 0.3",
]
"""Command lines whose options have an effect, though one could think otherwise; the recording is missing."""


@pytest.mark.parametrize(("line", "code", "message"), REFUSED, ids=[line for line, _, _ in REFUSED])
def test_bad_command_line_is_one_line_before_a_model_is_loaded(cli, talk, line, code, message):
    outcome = cli.run(*shlex.split(line))
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (code, "", 1)
    assert outcome.err.startswith("harken: ")
    assert message in outcome.err.replace(os.sep, "/")
    assert cli.loaded == []
    assert os.listdir() == ["talk.wav"]


@pytest.mark.parametrize("option", TEXTS)
def test_bytes_that_are_no_text_are_refused(cli, talk, option):
    outcome = cli.run("transcribe", "talk.wav", option, "a\udcff")
    assert outcome.code == 2
    assert f"Invalid value for '{option}': 'a\\udcff' is not UTF-8 text" in outcome.err


@pytest.mark.parametrize("line", ACCEPTED)
def test_options_with_an_effect_are_accepted(cli, line):
    outcome = cli.run(*shlex.split(line))
    assert outcome.code in (1, 3)
    assert "none.wav: no such file" in outcome.err
