"""The options that choose the models, of speech and of speakers, and the loading of what they choose."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from harken.api import Recognizer, load, load_diarizer
from harken.backend_factory import ATTENTIONS, AUTO, BACKENDS, LSH_BUCKET_SIZE, LSH_ROUNDS, PRECISIONS
from harken.cli.options import (
    Decorator,
    FilePath,
    add_options,
    parse_nonempty_text,
    single_option,
    without_flag,
)
from harken.cli.signals import keeping_stop
from harken.cli.terminal import Screen
from harken.errors import OptionError
from harken.speakers.diarizer import Diarizer
from harken.speakers.live import DEFAULT_DELAY_S, MAX_DELAY_S
from harken.speakers.voices import read_voices, write_voices

_MODEL_FILE_PATTERNS = (
    *("model*.bin", "*.safetensors*", "pytorch_model*.bin*", "adapter_model.bin"),
    *("*.gguf", "*.npz", "*.onnx*", "openvino_*"),
    *("*config.json", "tokenizer.json", "vocab.json", "vocabulary.json", "vocabulary.txt"),
)
"""Names of the files of a model in its folder."""

model_option = partial(single_option, section="Model")
adapter_option = model_option(
    "--adapter",
    type=FilePath(),
    metavar="PATH|none",
    multiple=True,
    callback=lambda context, option, paths: paths[0] if len(paths) == 1 else paths or None,
    help="Adapter of the model, from 'harken adapt' or peft (LoRA); may be given repeatedly; none gives the stock "
    "weights.",
)
revision_option = partial(
    single_option,
    "--revision",
    type=parse_nonempty_text,
    help="Branch, tag or commit of a Hugging Face repository.",
)
download_option = partial(
    single_option,
    "--download/--no-download",
    default=True,
    help="Download a model that is not on this machine.",
)
# By the arguments of `harken.load` that they give.
_MODEL_OPTIONS: dict[str, Decorator] = {
    "model": model_option(
        *("-m", "--model"),
        default="tiny.en",
        type=FilePath(),
        metavar="TEXT",
        help="Name (see 'harken models'), path, or owner/name on Hugging Face.",
    ),
    "assistant": model_option(
        "--assistant",
        default=AUTO,
        type=FilePath(),
        metavar="MODEL|ngram|none",
        help="Draft model for speculative decoding: the same text in less time. By default that which pays, for small "
        "tiny, if it is on this machine.",
    ),
    "adapter": adapter_option,
    "precision": model_option(
        "--precision",
        default="auto",
        type=click.Choice((*PRECISIONS[AUTO], "fp16")),
        help="Number format to compute in; auto is int8, int16 has an encoder in 16 bits where int8 has not, bf16 "
        "needs the extra onnx; with torch fp16 on a GPU and fp32 on the CPU.",
    ),
    "threads": model_option(
        "--threads", type=int, help="CPU threads; by default the processors that harken may use."
    ),
    "backend": model_option(
        "--backend",
        default="auto",
        type=click.Choice(BACKENDS),
        help="Compiled CPU engine or the one on OpenVINO and ONNX Runtime, PyTorch for a GPU, or the slow numpy "
        "reference; auto is torch where --device names a GPU, native where it was built and fits, else onnx.",
    ),
    "device": model_option(
        "--device",
        default="auto",
        type=parse_nonempty_text,
        help="cuda, cuda:1 or mps: a GPU, on which torch computes; cpu; or auto, with torch the first that is "
        "available.",
    ),
    "attention": model_option(
        "--attention",
        default="full",
        type=click.Choice(ATTENTIONS),
        help="Attention of torch's encoder: full, or lsh, an approximation by hashing.",
    ),
    "lsh_rounds": model_option(
        "--lsh-rounds", default=LSH_ROUNDS, type=int, help="Hashes of --attention lsh, 0 to 64."
    ),
    "lsh_bucket_size": model_option(
        "--lsh-bucket-size",
        default=LSH_BUCKET_SIZE,
        type=int,
        help="Bucket size of --attention lsh, 1 to 1500.",
    ),
    "revision": revision_option(section="Model"),
    "download": download_option(section="Model"),
}
model_options = add_options(_MODEL_OPTIONS.values())
"""The options that choose the model and its engine: the arguments of `harken.load`."""
engine_options = add_options(
    _MODEL_OPTIONS[name] for name in _MODEL_OPTIONS if name not in ("model", "assistant", "adapter", "revision")
)
"""Those that choose the engine of models that are named by another option."""


def load_model(params: Mapping[str, Any]) -> Recognizer:
    """Load the model that `model_options` chose."""
    with keeping_stop():
        return load(**model_params(params))


def load_model_with_status(screen: Screen, params: Mapping[str, Any]) -> Recognizer:
    """Load the model that `model_options` chose, with a status line if the screen shows progress."""
    if not screen.show_progress:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with screen.status("loading the model ..."):
        return load_model(params)


def model_files(*models: str | Sequence[str] | None) -> Iterator[Path]:
    """Yield the files of the models that are given by their paths, to protect them from being overwritten."""
    given = [path for model in models for path in ([model] if isinstance(model, str) else model or ())]
    for path in (Path(model) for model in given if os.path.exists(model)):
        folder = path if path.is_dir() else path.parent
        yield from [path] if path.is_file() else []
        yield from (file for pattern in _MODEL_FILE_PATTERNS for file in folder.glob(pattern))


def chosen_files(params: Mapping[str, Any]) -> Iterator[str | Path]:
    """Yield the files that options name to be read: those of models, of known voices and of a draft."""
    yield from model_files(*(params.get(name) for name in ("model", "assistant", "adapter")))
    yield from filter(None, (params.get(name) for name in ("voices", "draft")))


def model_params(params: Mapping[str, Any], *, exclude: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of `model_options`, except those excluded, and those of options that the command lacks."""
    return {name: params[name] for name in _MODEL_OPTIONS if name in params and name not in exclude}


speaker_option = partial(single_option, section="Speakers")
dependent_option = partial(speaker_option, no_effect=without_flag("speakers"))

max_speakers_option = dependent_option("--max-speakers", type=click.INT, help="Most speakers.")
voices_option = partial(dependent_option, "--voices", type=FilePath(), metavar="FILE")
speaker_model_option = dependent_option(
    "--speaker-model",
    type=FilePath(),
    metavar="DIR",
    help="Folder with segmentation-3.0.onnx and campplus_cn_en_common.pt; by default they are downloaded once.",
)
voice_options = (
    dependent_option(
        "--speaker-sample",
        "speaker_samples",
        type=parse_nonempty_text,
        multiple=True,
        metavar="NAME=FILE",
        help="Some seconds of the speech of somebody who may be in the recording; may be given repeatedly.",
    ),
    voices_option(help="File of known voices, without sound; those of --speaker-sample are added to it."),
    speaker_model_option,
)
recording_speaker_options = (
    speaker_option(
        "--speakers",
        is_flag=True,
        help="Tell speakers apart, and write who said each word. Then the transcript comes at the end.",
    ),
    dependent_option("--num-speakers", type=click.INT, help="Number of speakers, if it is known."),
    dependent_option("--min-speakers", type=click.INT, help="Fewest speakers."),
    max_speakers_option,
)
speaker_options = add_options([*recording_speaker_options, *voice_options])
"""The options of diarization of whole recordings."""
batch_speaker_options = add_options(
    [
        *recording_speaker_options,
        voices_option(help="File of known voices, as `harken transcribe --voices` writes it."),
        speaker_model_option,
    ]
)
"""Those of many recordings."""
live_speaker_options = add_options(
    [
        speaker_option("--speakers", is_flag=True, help="Tell speakers apart, and show who speaks."),
        dependent_option(
            "--speaker-delay",
            type=click.FLOAT,
            default=DEFAULT_DELAY_S,
            metavar="SECONDS",
            help=f"Time after which the speakers of a word do not change any more, from 1 to {MAX_DELAY_S:.0f}.",
        ),
        max_speakers_option,
        *voice_options,
    ]
)
"""Those of live streams."""


def speaker_params(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of `harken.load_diarizer` that the options choose; None without --speakers."""
    if not params["speakers"]:
        return None
    return {
        "model": params["speaker_model"],
        "num_speakers": params.get("num_speakers"),
        "min_speakers": params.get("min_speakers"),
        "max_speakers": params["max_speakers"],
        "download": params["download"],
    }


def load_diarizer_with_status(screen: Screen, params: Mapping[str, Any]) -> Diarizer | None:
    """Load what tells speakers apart, with a status line if the screen shows progress; None without --speakers."""
    arguments = speaker_params(params)
    if arguments is None:
        return None
    samples, path = _samples(params["speaker_samples"]), params["voices"]
    known = read_voices(path) if path and (os.path.exists(path) or not samples) else ()
    with screen.status("loading the models of speakers ..."), keeping_stop():
        diarizer = load_diarizer(**arguments).with_voices(known)
        if samples:
            try:
                diarizer = diarizer.with_voices(samples)
            except OptionError as error:
                raise click.UsageError(f"--speaker-sample {error.value}: allowed is {error.allowed}") from error
            if path:
                write_voices(path, diarizer.voices)
        return diarizer


def _samples(given: Sequence[str]) -> dict[str, str]:
    """Return the files of samples by name; refuse one without a name or a file, and a name that is given twice."""
    samples: dict[str, str] = {}
    for text in given:
        name, _, file = text.partition("=")
        if not (name and file) or name in samples:
            raise click.UsageError(f"--speaker-sample {text}: allowed is NAME=FILE, each name once")
        samples[name] = file
    return samples
