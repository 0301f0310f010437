"""``harken whisper``: command lines that scripts and Subtitle Edit write for whisper and whisper-ctranslate2."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, window_text
from harken.cli import whisper

FORMATS = ("json", "srt", "tsv", "txt", "vtt")
SUBTITLE_EDIT_LINE = re.compile(r"^\[\d\d:\d\d[.,]\d\d\d --> \d\d:\d\d[.,]\d\d\d\] ?\S")
OF_OPENAI = (
    "--model tiny --model_dir . --device cpu -o out -f srt --verbose False --task translate --language German "
    "--temperature 0 --best_of 5 --beam_size None --patience None --length_penalty None --suppress_tokens -1 "
    "--initial_prompt Ada --carry_initial_prompt True --condition_on_previous_text False --fp16 False "
    "--temperature_increment_on_fallback None --compression_ratio_threshold None --logprob_threshold -1 "
    "--no_speech_threshold 0.6 --word_timestamps True --prepend_punctuations ( --append_punctuations ) "
    "--highlight_words True --max_line_width 43 --max_line_count 2 --max_words_per_line None --threads 0 "
    "--clip_timestamps 0,0.48 --hallucination_silence_threshold 2"
)
OF_CTRANSLATE2 = (
    "--local_files_only True -p true --print_colors False --device_index 0 --compute_type float16 "
    "--prompt_reset_on_temperature 0.5 --prefix one --suppress_blank TRUE --repetition_penalty 1.1 "
    "--no_repeat_ngram_size 2 --hotwords 'Ada Babbage' --batched False --batch_size 4 --multilingual False "
    "--vad_filter False --vad_threshold 0.4 --vad_min_speech_duration_ms 250 --vad_max_speech_duration_s 9 "
    "--vad_min_silence_duration_ms 2000 --hf_token '' --speaker_name SPEAKER --speaker_num 2 --live_transcribe False "
    "--live_volume_threshold 0.2 --live_input_device 0 --live_input_device_sample_rate 16000"
)


@pytest.fixture
def cli(cli, monkeypatch, tmp_path):
    cli.use_texts(window_text(0, "one", WINDOW_POSITIONS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no cache"))
    return cli


@pytest.fixture
def talk(cli):
    Path("talks").mkdir()
    return AUDIO_FORMATS["wav s16"].write(Path("talks/talk"), 2 * WINDOW_S)


@pytest.fixture
def job_of(cli, monkeypatch):
    """Return a function from a command line to what would be done."""
    jobs = []
    monkeypatch.setattr(whisper.FilesJob, "run", lambda job, *_, **__: jobs.append(job))

    def job_of(line):
        assert cli.run("whisper", "talk.wav", *shlex.split(line)).code == 0
        return jobs.pop()

    return job_of


def test_without_options_all_formats_are_in_the_current_folder_and_the_lines_on_standard_output(cli, talk):
    outcome = cli.run("whisper", talk)
    assert (outcome.code, cli.loaded[0]["model"]) == (0, "turbo")
    language, *lines = outcome.out.splitlines()
    assert language.startswith("Detected language: ")
    assert len(lines) == 2
    assert all(map(SUBTITLE_EDIT_LINE.match, lines))
    assert sorted(name for name in os.listdir() if name != "talks") == [f"talk.{name}" for name in FORMATS]
    document = json.loads(Path("talk.json").read_text())
    assert (document["text"], len(document["segments"])) == ("oneone", 2)
    assert {"id", "start", "end", "text", "tokens"} <= document["segments"][0].keys()


def test_every_option_is_taken_and_those_without_a_meaning_are_named_on_one_line(cli, talk):
    outcome = cli.run("whisper", talk, *shlex.split(f"{OF_OPENAI} {OF_CTRANSLATE2}"))
    assert (outcome.code, outcome.out) == (0, "")
    said, _ = outcome.err.splitlines()
    assert said == (
        "harken: without a meaning here: --compute_type, --fp16, --print_colors, --pretty_json, --repetition_penalty, "
        "--no_repeat_ngram_size, --hallucination_silence_threshold, --vad_max_speech_duration_s, --speaker_name, "
        "--live_volume_threshold, --live_input_device, --live_input_device_sample_rate"
    )
    assert os.listdir("out") == ["talk.srt"]
    assert "<u>" in Path("out/talk.srt").read_text()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "",
            {
                **{"beam_size": 5, "best_of": 5, "temperatures": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), "vad": False},
                **{"condition_on_previous_text": True, "language": None, "batch_size": None},
            },
        ),
        ("--beam_size None --best_of None --patience None", {"beam_size": 1, "best_of": 1, "patience": 1.0}),
        ("--temperature 0.5 --temperature_increment_on_fallback 0.3", {"temperatures": (0.5, 0.8)}),
        ("--temperature_increment_on_fallback None", {"temperatures": (0.0,)}),
        ("--language French --task translate", {"language": "fr", "task": "translate"}),
        ("--lang fr --beam 2 --model_direc my/model", {"language": "fr", "beam_size": 2, "model": "my/model"}),
        ("--model small.en --language fr", {"language": "en"}),
        ("--hotwords 'Ada Babbage'", {"hotwords": ("Ada", "Babbage")}),
        ("--hotwords 'Ada Lovelace, Turing'", {"hotwords": ("Ada Lovelace", "Turing")}),
        ("--vad_filter true --vad_min_silence_duration_ms 500", {"vad": True, "vad_min_silence_s": 0.5}),
        ("--batched True", {"batch_size": 8, "vad": True, "condition_on_previous_text": False}),
        (
            "--suppress_tokens 1,-1 --clip_timestamps 1,2",
            {"suppress_tokens": (1, -1), "clip_timestamps": (1, 2)},
        ),
        ("--device cuda --fp16 False", {"backend": "torch", "device": "cuda", "precision": "fp32"}),
        ("--device cuda --device_index 1 --compute_type bfloat16", {"device": "cuda:1", "precision": "bf16"}),
        ("--device cpu --compute_type float32", {"backend": "auto", "precision": "fp32"}),
        ("--compute_type int8_float16 --threads 2", {"precision": "int8", "threads": 2}),
        ("--model_directory my/model --local_files_only True", {"model": "my/model", "download": False}),
        (f"--model tiny --model_dir {'a' * 300}", {"model": "tiny"}),  # which cannot be searched
        ("--hf_token secret --speaker_num 2", {"speakers": True, "num_speakers": 2, "word_timestamps": True}),
    ],
)
def test_options_mean_what_they_mean_there(job_of, line, expected):
    job = job_of(line)
    actual = {name: getattr(job.options, name, job.params.get(name)) for name in expected}
    assert actual == expected


def test_model_that_whisper_has_downloaded_is_used(job_of, tmp_path, monkeypatch):
    own = tmp_path / "cache" / "whisper" / "large-v3-turbo.pt"
    own.parent.mkdir(parents=True)
    own.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert job_of("").params["model"] == str(own)
    assert job_of("--model small").params["model"] == "small"


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("talks/talk.wav none.mp3", 1, "none.mp3: no such file"),
        ("none.mp3", 1, "none.mp3: no such file"),
        ("", 2, "Missing argument 'AUDIO...'"),
        ("a.wav --verbose perhaps", 2, "'--verbose': 'perhaps' is neither True nor False"),
        ("a.wav --output_format doc", 2, "'doc' is not one of"),
        ("a.wav --output out", 2, "No such option '--output'"),
        ("a.wav --highlight_words true", 2, "--highlight_words has no effect without --word_timestamps True"),
        ("a.wav --temperature 99", 2, "--temperature 99.0: allowed is 0, and numbers"),
        ("a.wav --temperature_increment_on_fallback 0", 2, "_fallback 0.0: allowed is a number from 0.01 on"),
        ("a.wav --language klingon", 2, "--language 'klingon': allowed is"),
        ("a.wav --live_transcribe True", 2, "live speech is transcribed by 'harken listen'"),
    ],
)
def test_bad_use_is_2_and_a_file_that_fails_1(cli, talk, line, code, message):
    outcome = cli.run("whisper", *line.split())
    assert outcome.code == code
    assert message in outcome.err
