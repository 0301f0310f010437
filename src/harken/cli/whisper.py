"""``harken whisper``, also ``harken-whisper``: the command lines of openai's whisper and of whisper-ctranslate2.

A table says what each of their options is here. Where they have an option its default is theirs; all else is as in
`harken transcribe`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from harken import __version__
from harken.cli.files_job import FilesJob
from harken.cli.inputs import expand_patterns
from harken.cli.options import (
    Command,
    FilePath,
    NoEffect,
    Option,
    checked_number,
    is_given,
    number_parser,
    parse_text,
)
from harken.cli.terminal import Screen, TimestampedLines, Unshown, write_stderr
from harken.errors import OptionError
from harken.formats import Layout
from harken.option_types import options_from
from harken.results import Segment
from harken.text import LANGUAGES, from_language_tag
from harken.transcribe import TranscribeOptions

FORMATS = ("txt", "vtt", "srt", "tsv", "json")
FILE_NAMES = {"large": "large-v3", "turbo": "large-v3-turbo"}
"""The files of whisper whose names are not those of the models."""
PRECISIONS = {
    "cpu": {
        **dict.fromkeys(("int8", "int8_float16", "int8_bfloat16", "int8_float32"), "int8"),
        "int16": "int16",
        "float32": "fp32",
    },
    "torch": {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"},
}
"""harken's names of compute types, by the kind of device; for all others it chooses."""
COMPUTE_TYPES = ("auto", "default", *dict.fromkeys(name for names in PRECISIONS.values() for name in names))


def _items(convert: Callable[[str], Any], name: str) -> Callable[[str], tuple[Any, ...]]:
    """Return the parser of a list of numbers that are separated by commas."""

    def parse(text: str) -> tuple[Any, ...]:
        try:
            return tuple(checked_number(convert(item), item) for item in text.split(",") if item.strip())
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a list of numbers") from None

    parse.__name__ = name
    return parse


def _boolean(text: str | bool) -> bool:
    """Return a switch of whisper."""
    try:
        return click.BOOL.convert(text, None, None)
    except click.BadParameter:
        raise click.BadParameter(f"{text!r} is neither True nor False.") from None


def _hotwords(text: str) -> tuple[str, ...]:
    """Return the words of a text, which commas separate if there are some."""
    return tuple(text.split("," if "," in text else None))


_hotwords.__name__ = "text"


@dataclass(frozen=True, slots=True)
class Row:
    """An option of whisper or whisper-ctranslate2."""

    flags: str  # as it is typed
    type: Any
    default: Any = None
    help: str = ""  # by default the help of the field
    # What it is here: a field of `TranscribeOptions` or `Layout`, or a parameter that `_harken_params` reads. By
    # default the flag.
    name: str = ""


_BOOL, _TEXT, _PATH = _boolean, parse_text, FilePath()
_NUMBER, _INTEGER = number_parser(float, optional=True), number_parser(int, optional=True)
_OWN = TranscribeOptions()
ROWS: Mapping[str, Sequence[Row]] = {
    "Model": (
        Row("--model", _PATH, "turbo", "Name, as 'harken models' lists them, path, or owner/name of the hub."),
        Row("--model_dir", _PATH, None, "Folder with whisper's own .pt files, such as small.pt."),
        Row("--model_directory", _PATH, None, "Path of the model, instead of --model."),
        Row("--local_files_only", _BOOL, False, "Download nothing."),
        Row("--device", _TEXT, "auto", "cpu; or cuda, cuda:1 or mps, where PyTorch computes."),
        Row("--device_index", int, 0, "Number of the GPU."),
        Row("--compute_type", click.Choice(COMPUTE_TYPES), "auto", "Number format to compute in."),
        Row("--fp16", _BOOL, True, "False for float32 on a GPU."),
        Row("--threads", _INTEGER, 0, "CPU threads; 0 for all."),
    ),
    "Output": (
        Row("-o --output_dir", _PATH, ".", "Folder of the files."),
        Row("-f --output_format", click.Choice((*FORMATS, "all")), "all", "Format of the files."),
        Row("--verbose", _BOOL, True, "Print the text with its times."),
        Row("--live_transcribe", _BOOL, False, "See 'harken listen'."),
        Row("--highlight_words", _BOOL, False),
        Row("--max_line_width", _INTEGER),
        Row("--max_line_count", _INTEGER),
        Row("--max_words_per_line", _INTEGER),
    ),
    "Language": (
        Row("--task", _TEXT, "transcribe"),
        Row("--language", _TEXT),
        Row("--multilingual", _BOOL, False),
    ),
    "Decoding": (
        Row("--temperature", float, 0.0, "Temperature of the first attempt.", "temperatures"),
        Row("--temperature_increment_on_fallback", _NUMBER, 0.2, "Step to that of the next one.", "increment"),
        Row("--best_of", _INTEGER, 5),
        Row("--beam_size", _INTEGER, 5),
        Row("--patience", _NUMBER, 1.0),
        Row("--length_penalty", _NUMBER),
        Row("--suppress_tokens", _items(int, "integer,..."), "-1"),
        Row("--suppress_blank", _BOOL, True),
        Row("--compression_ratio_threshold", _NUMBER, 2.4),
        Row("--logprob_threshold", _NUMBER, -1.0),
        Row("--no_speech_threshold", _NUMBER, 0.6),
        Row("--clip_timestamps", _items(float, "float,..."), ""),
        Row("--batched", _BOOL, False, "Decode windows of detected speech together."),
        Row("--batch_size", _INTEGER, 8, "How many with --batched True."),
    ),
    "Prompting": (
        Row("--initial_prompt", _TEXT),
        Row("--carry_initial_prompt", _BOOL, False),
        Row("--condition_on_previous_text", _BOOL, True),
        Row("--prompt_reset_on_temperature", float, 0.5, name="prompt_reset_temperature"),
        Row("--prefix", _TEXT),
        Row("--hotwords", _hotwords, ""),
    ),
    "Words": (
        Row("--word_timestamps", _BOOL, False),
        Row("--prepend_punctuations", _TEXT, _OWN.prepend_punctuations),
        Row("--append_punctuations", _TEXT, _OWN.append_punctuations),
    ),
    "Speech": (
        Row("--vad_filter", _BOOL, False, name="vad"),
        Row("--vad_threshold --vad_onset", float, _OWN.vad_threshold, name="vad_threshold"),
        Row("--vad_min_speech_duration_ms", float, 100.0, "Shorter speech is ignored.", "vad_min_speech_s"),
        Row(
            "--vad_min_silence_duration_ms", float, 1000.0, "Shorter silence is no pause.", "vad_min_silence_s"
        ),
        Row("--hf_token", _TEXT, None, "Tell speakers apart; the token is not used."),
        Row("--speaker_num", int, None, "Number of speakers.", "num_speakers"),
    ),
}
IGNORED = (
    *("--print_colors", "-p --pretty_json", "--repetition_penalty", "--no_repeat_ngram_size"),
    *("--hallucination_silence_threshold", "--vad_max_speech_duration_s", "--speaker_name"),
    *("--live_volume_threshold", "--live_input_device", "--live_input_device_sample_rate"),
)
"""Options that have no meaning here, whatever their value."""
_NAMES = [
    flag.removeprefix("--").replace("_", "-")
    for flags in (*(row.flags for rows in ROWS.values() for row in rows), *IGNORED)
    for flag in flags.split()
]
_LAYOUT = {field.name for field in fields(Layout)}
_HELP = {field.name: field.metadata["help"] for kind in (TranscribeOptions, Layout) for field in fields(kind)}
_NEEDS_WORDS = NoEffect("without --word_timestamps True", lambda given: not given["word_timestamps"])
_ACCEPTED = NoEffect("", lambda given: False)  # whisper refuses no others


def _option(row: Row, section: str) -> Option:
    """Return the option of a row."""
    name = row.name or row.flags.split()[-1].removeprefix("--")
    return Option(
        [*row.flags.split(), name],
        section=section,
        no_effect=_NEEDS_WORDS if name in _LAYOUT else _ACCEPTED,
        type=row.type,
        default=row.default,
        show_default=row.default not in (None, ""),
        help=row.help or _HELP[name],
        metavar="True|False" if row.type is _BOOL else None,
    )


def _full_name(name: str) -> str:
    """Return the name of the only option that begins so, as whisper does; any other name as it is."""
    name = name.replace("_", "-")
    matches = [known for known in _NAMES if known.startswith(name)] if len(name) > 1 else []
    return matches[0] if len(matches) == 1 else name


class WhisperLines(TimestampedLines):
    """The lines of whisper on standard output: the language, if it is detected, and the text with its times."""

    def __init__(self, *, detects: bool) -> None:
        super().__init__()
        self._detects = detects

    def segment(self, segment: Segment) -> str:
        """Return the line of a segment, and before the first one the language."""
        code, self._detects = segment.language if self._detects else None, False
        language = f"Detected language: {LANGUAGES[code].title()}\n" if code else ""
        return language + super().segment(segment)


def _run(audio: Sequence[str], **given: Any) -> int:
    """Transcribe AUDIO as the commands 'whisper' and 'whisper-ctranslate2' do, with harken's engine.

    Their options have their names, values and defaults: all formats in the current folder, five beams, no detection of
    speech, each window prompted with the text before. An option without a meaning here is named on standard error. A
    model that whisper has downloaded is used. A file that fails makes the exit code 1.

    'harken-whisper' is the same command, for programs that want one name: alias whisper=harken-whisper.
    """
    if given["live_transcribe"]:
        raise click.UsageError("--live_transcribe True: live speech is transcribed by 'harken listen'")
    params = given | _harken_params(given)
    if ignored := [*_ignored(params)]:
        write_stderr(f"harken: without a meaning here: {', '.join(ignored)}")
    with Screen(show_progress=True) as screen:
        job = FilesJob(
            screen=screen,
            params=params,
            options=options_from(TranscribeOptions, params),
            layout=options_from(Layout, params),
            format_names=FORMATS if given["output_format"] == "all" else (given["output_format"],),
            folder=Path(given["output_dir"]),
            stdout_writer=lambda source: (
                WhisperLines(detects=not params["language"]) if given["verbose"] else Unshown()
            ),
        )
        return job.run(expand_patterns(audio), is_single=False)


def _harken_params(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of harken that are not options of whisper with another name."""
    model = given["model_directory"] or _own_file(given["model"], given["model_dir"])
    batched, speakers = given["batched"], bool(given["hf_token"])
    silence_s = given["vad_min_silence_s"] / 1000
    return {
        **_engine(given),
        "model": model,
        "threads": given["threads"] or None,
        "download": not given["local_files_only"],
        "language": _language(given["language"], model),
        "temperatures": _temperatures(given["temperatures"], given["increment"]),
        **{name: _or_one(given[name]) for name in ("beam_size", "best_of", "patience")},
        "batch_size": _or_one(given["batch_size"]) if batched else None,
        "vad": given["vad"] or batched,
        "vad_min_speech_s": given["vad_min_speech_s"] / 1000,
        "vad_min_silence_s": silence_s,
        "vad_speech_pad_s": min(_OWN.vad_speech_pad_s, silence_s / 2),  # more is not allowed
        "condition_on_previous_text": given["condition_on_previous_text"] and not batched,
        "speakers": speakers,
        "word_timestamps": given["word_timestamps"] or speakers,
        **{"speaker_model": None, "max_speakers": None, "speaker_samples": (), "voices": None},
    }


def _engine(given: Mapping[str, Any]) -> dict[str, str]:
    """Return what computes, where, and in which number format."""
    device = given["device"]
    if device in ("auto", "cpu"):
        precision = PRECISIONS["cpu"].get(given["compute_type"], "auto")
        return {"backend": "auto", "device": "auto", "precision": precision}
    if device == "cuda" and given["device_index"]:
        device = f"cuda:{given['device_index']}"
    precision = PRECISIONS["torch"].get(given["compute_type"], "auto" if given["fp16"] else "fp32")
    return {"backend": "torch", "device": device, "precision": precision}


def _or_one(value: float | None) -> float:
    """Return a number of whisper, where None is 1."""
    return 1 if value is None else value


def _own_file(model: str, folder: str | None) -> str:
    """Return the path of a model that whisper itself has downloaded; its name if there is none."""
    caches = os.environ.get("XDG_CACHE_HOME", os.path.join(os.path.expanduser("~"), ".cache"))
    file = Path(folder or os.path.join(caches, "whisper"), f"{FILE_NAMES.get(model, model)}.pt")
    return str(file) if os.path.isfile(file) else model


def _language(language: str | None, model: str) -> str | None:
    """Return the code of the language; whisper takes English for a model that knows no other."""
    code = from_language_tag(language)
    if not Path(model).name.removesuffix(".pt").endswith(".en"):
        return code
    if code not in (None, "en"):
        write_stderr(f"harken: {model} is English-only, and {language} was given; English is used")
    return "en"


def _temperatures(first: float, step: float | None) -> tuple[float, ...]:
    """Return the temperatures from the first one to 1."""
    if step is None:
        return (first,)
    if not step >= 0.01:  # nan is none either
        raise OptionError("increment", step, "a number from 0.01 on, or none")
    return tuple(round(first + i * step, 6) for i in range(max(1, int((1 - first) / step + 1e-6) + 1)))


def _ignored(params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that were given, and have no meaning here."""
    without = {f"ignored_{number}" for number in range(len(IGNORED))}
    if params["backend"] == "auto":
        without |= {"fp16"} | ({"compute_type"} if params["precision"] == "auto" else set())
    for option in click.get_current_context().command.params:
        name = option.name or ""
        if name in without and is_given(name) and params[name] not in ("auto", "default"):
            yield max(option.opts, key=len)


command = Command(
    "whisper",
    callback=_run,
    params=[
        click.Argument(["audio"], metavar="AUDIO...", nargs=-1, required=True, type=FilePath()),
        *(_option(row, title) for title, rows in ROWS.items() for row in rows),
        *(
            Option([*flags.split(), f"ignored_{number}"], section="Without a meaning here", metavar="ANY")
            for number, flags in enumerate(IGNORED)
        ),
    ],
    help=_run.__doc__,
    context_settings={"token_normalize_func": _full_name},
)
click.version_option(__version__, message="harken %(version)s")(command)
