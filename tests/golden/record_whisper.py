"""Record what openai-whisper computes: log-mel, tokens, logit filters and beams, windows, transcripts.

Run from the root of the repository, with openai-whisper installed, the shared recordings (see `real_models.SHARED`),
and a directory of models in HARKEN_MODELS::

    PYTHONPATH=tests HARKEN_MODELS=path/to/models python tests/golden/record_whisper.py [NAME ...]

It writes the goldens of `RECORDERS`, or only the named ones. Inputs come from the tests, and from
`transcript_inputs.py`; only the output of the reference is stored. harken reads the weights, because the reference
reads only its own format; tests/checkpoints/test_checkpoints_real.py tests that it reads them unchanged. Log-mel is
the reference's own.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import torch
import whisper
from goldens import sha256, write_arrays, write_json
from test_decoding_golden import BEAM_LIMIT, BEAM_SEEDS, BEAMS, FILTERS, beam_logits, filter_logits
from test_windows_golden import CASES as WINDOWS
from test_windows_golden import LANGUAGE_CASES, RANDOM, first_window, make_weights
from test_windows_golden import Case as WindowCase
from transcript_inputs import CASES, Case, digest, samples
from whisper.audio import N_SAMPLES, log_mel_spectrogram
from whisper.decoding import (
    ApplyTimestampRules,
    BeamSearchDecoder,
    DecodingOptions,
    MaximumLikelihoodRanker,
    SuppressBlank,
    SuppressTokens,
)
from whisper.model import ModelDimensions, Whisper
from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE, Tokenizer, get_tokenizer

from fakes.backends import EOT
from harken.checkpoints import open_checkpoint
from harken.text import Tokenizer as HarkenTokenizer
from harken.text.vocabulary import END_OF_TEXT, bytes_to_unicode
from harken.types import Dims
from real_models import EXAMPLE, ROOT, model_path
from tiny_models import TOKENIZER

NAME = f"openai-whisper {whisper.__version__}"


def main(named: list[str]) -> None:
    torch.set_num_threads(1)
    for name in named or RECORDERS:
        torch.manual_seed(0)
        RECORDERS[name]()


def provenance(name: str, reference: str) -> dict[str, Any]:
    """Return the head of a recorded file."""
    return {
        "reference": f"{NAME}, {reference}",
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        "command": f"PYTHONPATH=tests HARKEN_MODELS=path/to/models python tests/golden/record_whisper.py {name}",
        "date": datetime.now(UTC).date().isoformat(),
    }


def reference_model(dims: Dims, weights: Mapping[str, Any]) -> Whisper:
    """Return openai-whisper's model in float32."""
    model = Whisper(ModelDimensions(**asdict(dims))).eval()
    model.load_state_dict({name: torch.tensor(np.float32(weights[name])) for name in weights})
    return model


@cache
def loaded_model(name: str) -> Whisper:
    """Return openai-whisper's model with weights that harken reads and its own alignment heads, or with random ones."""
    if name in RANDOM:
        return reference_model(RANDOM[name], make_weights(name))
    checkpoint = open_checkpoint(model_path(name))
    model = reference_model(checkpoint.dims, checkpoint.weights)
    model.set_alignment_heads(whisper._ALIGNMENT_HEADS[name])
    return model


# --- log-mel -----------------------------------------------------------------------------------------------

FRAMES = np.unique(np.r_[:12, 0:1088:10, 1088:1104])  # both ends, the first padded frames, every tenth between


def record_mel() -> None:
    """Record the log-mel of the example recording."""
    with av.open(EXAMPLE) as container:
        pcm = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert pcm.dtype == np.int16
    samples = pcm.astype(np.float32) / 32768.0
    recorded = {"frames": FRAMES}
    for n_mels in (80, 128):
        padded = log_mel_spectrogram(samples, n_mels, padding=N_SAMPLES).numpy()
        plain = log_mel_spectrogram(samples, n_mels).numpy()
        recorded[f"padded_{n_mels}"] = padded[:, FRAMES]
        recorded[f"padded_means_{n_mels}"] = padded.mean(axis=1)
        recorded[f"padded_max_{n_mels}"] = padded.max()
        recorded[f"plain_end_{n_mels}"] = plain[:, -4:]
    write_arrays(
        "mel_jfk",
        recorded,
        f"{NAME} audio.log_mel_spectrogram, torch {torch.__version__}",
        "PYTHONPATH=tests python tests/golden/record_whisper.py mel",
        f"sha256 of examples/jfk.flac {sha256([EXAMPLE])}",
    )


# --- tokens -------------------------------------------------------------------------------------------------

TEXTS = [
    "",
    " ",
    " And so my fellow Americans, ask not what your country can do for you.",
    "It's we'll DON'T I'M they're you'd I've 'em rock'n'roll's",
    "  two  spaces\n\nand\tlines \r\n end   ",
    "1984, 3.14159 and 1,000,000; ½ Ⅷ ٣٤ 一二三",
    "<|en|><|endoftext|> is only text here",
    "(laughs) [MUSIC] {x} -- >> ♪ la la ♪♪♪ ♫♭ 「はい」",
    " Größe, naïve café, señor, ça va, œuvre, Łódź, İstanbul",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم",
    "日本語のテキストです。",
    "我们今天去公园，好吗？",
    "안녕하세요 세계",
    "สวัสดีชาวโลก",
    "नमस्ते दुनिया",
    "မင်္ဂလာပါ ສະບາຍດີ",
    "🙂 👨‍👩‍👧 🇩🇪 e\u0301 \u200b \u00a0 \u3000 \u2028 \x85 \x1c \ufffd",
    "a" * 300,
    "日本語" * 50,
    "\U00013000\U0001f9ff\U000e0041 rare ꙮ 𝔘𝔫𝔦",
]
ATTRIBUTES = [
    *("eot", "sot", "translate", "transcribe", "sot_lm", "sot_prev", "no_speech", "no_timestamps"),
    *("timestamp_begin", "non_speech_tokens"),
]
VOCABULARIES = {"51864": (False, 99), "51865": (True, 99), "51866": (True, 100)}


def describe(reference: Tokenizer) -> dict[str, object]:
    text_tokens = [reference.encoding.decode_single_token_bytes(i) for i in range(reference.eot)]
    specials = range(reference.eot, reference.encoding.n_vocab)
    return {
        **{name: getattr(reference, name) for name in ATTRIBUTES},
        "text_tokens_sha256": hashlib.sha256(b"".join(bytes([len(t)]) + t for t in text_tokens)).hexdigest(),
        "specials_sha256": hashlib.sha256(
            "".join(reference.encoding.decode([i]) for i in specials).encode()
        ).hexdigest(),
        "cases": [describe_text(reference, text) for text in TEXTS],
    }


def describe_text(reference: Tokenizer, text: str) -> dict[str, object]:
    tokens = reference.encoding.encode_ordinary(text)
    ended = [*tokens, reference.eot]
    return {
        "text": text,
        "tokens": tokens,
        "words_on_spaces": reference.split_tokens_on_spaces(ended)[1],
        "words_on_unicode": reference.split_tokens_on_unicode(ended)[1],
    }


def pack(reference: Tokenizer, path: Path) -> None:
    tokens = [bytes_to_unicode(reference.encoding.decode_single_token_bytes(i)) for i in range(reference.eot)]
    lines = "".join(f"{token}\n" for token in [*tokens, END_OF_TEXT])
    text_filter = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}
    path.write_bytes(lzma.compress(lines.encode(), filters=[text_filter]))


def record_tokenizer() -> None:
    """Record results of the tokenizer, and pack its two vocabularies into the package."""
    references = {
        n_vocab: get_tokenizer(multilingual, num_languages=n_languages)
        for n_vocab, (multilingual, n_languages) in VOCABULARIES.items()
    }
    golden = {
        "provenance": f"{NAME}, tests/golden/record_whisper.py",
        "languages": list(LANGUAGES.items()),
        "codes": TO_LANGUAGE_CODE,
        "vocabularies": {n_vocab: describe(reference) for n_vocab, reference in references.items()},
    }
    write_json("tokenizer", json.dumps(golden, separators=(",", ":")))
    data = ROOT / "src/harken/text/data"
    pack(references["51864"], data / "english.txt.xz")
    pack(references["51865"], data / "multilingual.txt.xz")


# --- filters and beams --------------------------------------------------------------------------------------


def record_decoding() -> None:
    """Record what the logit filters and the beam search compute."""
    recorded = {
        "reference": NAME,
        "command": "PYTHONPATH=tests python tests/golden/record_whisper.py decoding",
        "filters": [walk(seed) for seed in range(len(FILTERS) * 6)],
        "beams": [search(width, patience, seed) for width, patience in BEAMS for seed in range(BEAM_SEEDS)],
    }
    write_json("decoding", json.dumps(recorded, separators=(",", ":")).replace("},{", "},\n{"))


def walk(seed: int) -> dict[str, object]:
    """Sample a legal sequence, and note at each step which ids the filters leave, as half-open ranges."""
    filters = make_filters(**FILTERS[seed % len(FILTERS)])
    rng = np.random.default_rng(seed)
    prefix: list[int] = []
    allowed = []
    for step in range(9):
        logits = torch.tensor(filter_logits(seed, step))[None]
        for logit_filter in filters:
            logit_filter.apply(logits, torch.tensor([prefix], dtype=torch.long))
        left = np.flatnonzero(np.isfinite(logits[0].numpy()))
        allowed.append(ranges(left))
        # Text, a timestamp and the end each get their turn, if they are legal.
        kinds = [left[left < TOKENIZER.eot], left[left >= TOKENIZER.timestamp_begin][:80]]
        prefix.append(int(rng.choice([kind for kind in kinds if len(kind)][rng.integers(2) - 1])))
    return {"seed": seed, "tokens": prefix, "allowed": allowed}


def make_filters(*, suppress_blank: bool, timestamps: bool, last_initial: int | None) -> list[object]:
    """Make the filters of the reference's `DecodingTask`, over the vocabulary of the tiny model."""
    tokenizer = SimpleNamespace(
        encode=TOKENIZER.encode,
        eot=TOKENIZER.eot,
        no_timestamps=TOKENIZER.no_timestamps,
        timestamp_begin=TOKENIZER.timestamp_begin,
    )
    names = ("transcribe", "translate", "sot", "sot_prev", "sot_lm", "no_speech")
    never = [*TOKENIZER.non_speech_tokens, *(getattr(TOKENIZER, name) for name in names)]
    filters: list[object] = [SuppressBlank(tokenizer, 0)] if suppress_blank else []
    filters.append(SuppressTokens(never))
    if timestamps:
        filters.append(ApplyTimestampRules(tokenizer, 0, last_initial))
    return filters


def ranges(ids: np.ndarray) -> list[list[int]]:
    """Return ascending ids as half-open ranges."""
    cuts = np.flatnonzero(np.diff(ids) > 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(ids, cuts) if len(run)]


def search(width: int, patience: float, seed: int) -> dict[str, object]:
    """Run the reference's beam search over the scripted model."""
    inference = SimpleNamespace(rearrange_kv_cache=lambda sources: None)
    decoder = BeamSearchDecoder(width, EOT, inference, patience)
    decoder.reset()
    # The reference needs a token to start from; it is not part of the prefix.
    tokens, sums = torch.zeros((width, 1), dtype=torch.long), torch.zeros(width)
    for _ in range(BEAM_LIMIT):
        logits = torch.tensor(np.array([beam_logits(seed, tuple(row[1:])) for row in tokens.tolist()]))
        tokens, completed = decoder.update(tokens, logits, sums)
        if completed:
            break
    (sequences,), (totals,) = decoder.finalize(tokens[None], sums[None])
    texts = [sequence.tolist()[1:] for sequence in sequences]
    texts = [text[: text.index(EOT)] for text in texts]
    best = {
        str(penalty): int(MaximumLikelihoodRanker(penalty).rank([texts], [totals])[0])
        for penalty in (None, 0.6)
    }
    return {
        "width": width,
        "patience": patience,
        "seed": seed,
        "texts": texts,
        "totals": [round(total, 5) for total in totals],
        "best": best,
    }


# --- windows ------------------------------------------------------------------------------------------------


@torch.no_grad()
def record_windows() -> None:
    """Record features, logits, languages and tokens of single windows."""
    recorded = {
        **provenance("windows", "decode"),
        "computed": {model: compute(model) for model in RANDOM},
        "languages": [[model, recording, detect(model, recording)] for model, recording in LANGUAGE_CASES],
        "decoded": {name: decode(case) for name, case in WINDOWS.items()},
    }
    text = json.dumps(recorded, separators=(",", ":"), ensure_ascii=False)
    write_json("windows", text.replace('},"', '},\n"').replace("],[", "],\n["))


def mel_of(model: str, recording: str) -> torch.Tensor:
    return log_mel_spectrogram(first_window(recording), loaded_model(model).dims.n_mels)


def compute(model: str) -> dict[str, Any]:
    """Compute features, and logits behind the start sequence and some text; return some numbers and the best ids."""
    tokenizer = HarkenTokenizer.builtin(RANDOM[model].n_vocab)
    text = [tokenizer.timestamp_begin, *tokenizer.encode(" Bonjour tout le monde.")]
    tokens = [*tokenizer.sot_sequence("fr"), *text]
    features = loaded_model(model).encoder(mel_of(model, "jfk")[None])
    logits = loaded_model(model).decoder(torch.tensor([tokens]), features)
    return {
        "tokens": tokens,
        "features": features[0, ::50, ::3].double().numpy().round(5).tolist(),
        "logits": logits[0, :, ::1999].double().numpy().round(4).tolist(),
        "best": logits[0].argmax(-1).tolist(),
    }


def detect(model: str, recording: str) -> dict[str, float]:
    """Detect languages of a probability of 0.0001 or more."""
    _, probabilities = loaded_model(model).detect_language(mel_of(model, recording))
    return {code: round(p, 5) for code, p in probabilities.items() if p >= 1e-4}


def decode(case: WindowCase) -> dict[str, Any]:
    """Decode a window."""
    beam = {"beam_size": case.beam.width, "patience": case.beam.patience} if case.beam else {}
    options = DecodingOptions(
        task=case.task,
        language=case.language,
        without_timestamps=not case.timestamps,
        prompt=case.previous or None,
        prefix=case.prefix or None,
        length_penalty=case.beam.length_penalty if case.beam else None,
        fp16=False,
        **beam,
    )
    result = whisper.decode(loaded_model(case.model), mel_of(case.model, "jfk"), options)
    return {
        "tokens": result.tokens,
        "avg_logprob": round(result.avg_logprob, 5),
        "no_speech_prob": float(f"{result.no_speech_prob:.6g}"),
    }


# --- transcripts --------------------------------------------------------------------------------------------


def record_transcripts() -> None:
    """Record transcripts, in float32 at temperature 0."""
    names = {case.model for case in CASES.values()}
    recordings = {case.recording for case in CASES.values()}
    recorded = {
        **provenance("transcripts", "transcribe"),
        "digests_of_weights": {
            name: open_checkpoint(model_path(name)).weights.digest for name in sorted(names)
        },
        "sha256_of_files": {recording: digest(recording) for recording in sorted(recordings)},
        "transcripts": {name: transcribe(case) for name, case in CASES.items()},
    }
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    write_json("transcripts", text.replace("\n      ", " ").replace("\n     }", " }"))


def transcribe(case: Case) -> dict[str, Any]:
    """Return the language and all segments with tokens; the reference also lists segments that it emptied."""
    print(case, flush=True)
    options = dict(case.options)
    options["without_timestamps"] = not options.pop("timestamps", True)
    options["clip_timestamps"] = list(options.get("clip_timestamps", []))
    result = loaded_model(case.model).transcribe(
        samples(case.recording), temperature=0.0, fp16=False, **options
    )
    return {
        "language": result["language"],
        "segments": [
            {
                "start": round(segment["start"], 2),
                "end": round(segment["end"], 2),
                "seek": segment["seek"],
                "text": segment["text"],
                "avg_logprob": round(segment["avg_logprob"], 5),
                "no_speech_prob": round(segment["no_speech_prob"], 5),
                "tokens": segment["tokens"],
                **timed_words(segment),
            }
            for segment in result["segments"]
            if segment["tokens"]
        ],
    }


def timed_words(segment: dict[str, Any]) -> dict[str, Any]:
    """Return words as start, end, text and probability, if they were requested."""
    if "words" not in segment:
        return {}
    return {
        "words": [
            [round(word["start"], 2), round(word["end"], 2), word["word"], round(float(word["probability"]), 4)]
            for word in segment["words"]
        ]
    }


RECORDERS: dict[str, Callable[[], None]] = {
    "mel": record_mel,
    "tokenizer": record_tokenizer,
    "decoding": record_decoding,
    "windows": record_windows,
    "transcripts": record_transcripts,
}

if __name__ == "__main__":
    main(sys.argv[1:])
