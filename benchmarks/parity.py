"""Token for token: harken in float32 against openai-whisper in float32, greedy and beam search with 5.

Both get the same samples, and every window is compared: the tokens that were chosen, timestamps included and
the end of text left out. Where a recording differs, the first difference is explained by two numbers that
harken's own model gives in float32, under the rules of decoding: how far apart the two tokens are there, in
log-probability (margin), and how far apart the averages of the two whole hypotheses are, by which a beam search
chooses (lead). Both are positive where harken's choice is the better one.

    python benchmarks/parity.py --openai-model tiny.en.pt
    python benchmarks/parity.py --model path/to/small --set german --task translate --patience 2

Without a file in openai-whisper's own format, the reference gets the weights as harken has read them.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import (
    DEFAULT_SET,
    limit_threads,
    machine,
    note,
    parser,
    positive,
    read_set,
    require,
    run,
    stop,
    table,
)

if TYPE_CHECKING:
    import harken
    from harken.contract import Floats

GREEDY, BEAM = 1, 5
LADDER = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
AS_REFERENCE = {
    "vad": False,
    "hallucination_threshold": None,
    "language_windows": 1,
    "condition_on_previous_text": True,
}
"""Options with which harken takes the windows that openai-whisper takes."""
COLUMNS = ("recording", "window, s", "at token", "harken", "openai-whisper", "margin", "lead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What both engines are asked to do."""

    beam_size: int
    patience: float
    length_penalty: float | None
    task: str
    language: str | None
    temperatures: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What one engine kept of one window; `tokens` without the end of text."""

    tokens: tuple[int, ...]
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where harken decoded a window, and after which prompt."""

    start_s: float
    prompt: tuple[int, ...]


def main() -> None:
    args = arguments()
    require("harken", "whisper", "torch")
    if args.openai_model and not args.openai_model.is_file():
        stop(f"{args.openai_model}: no such file")
    recordings = read_set(args.audio, args.set, args.limit, language=args.language)
    limit_threads(args.threads)
    print(machine())
    import harken
    from harken.audio import load_audio

    recognizer = harken.load(args.model, precision="fp32", threads=args.threads)
    reference = load_reference(args.openai_model, args.model, args.threads)
    for beam_size in args.beam:
        work = Work(
            beam_size=beam_size,
            patience=args.patience,
            length_penalty=args.length_penalty,
            task=args.task,
            language=args.language,
            temperatures=LADDER if args.ladder else LADDER[:1],
        )
        rows = []
        for number, recording in enumerate(recordings, start=1):
            samples = load_audio(recording.path)
            ours, places = transcribe(recognizer, samples, work)
            theirs = transcribe_reference(reference, samples, work)
            if ours != theirs:
                rows.append([recording.path.name, *difference(recognizer, samples, ours, theirs, places)])
            note(f"beam {beam_size}: {number} of {len(recordings)}, {len(rows)} differ")
        name = "greedy" if beam_size == GREEDY else f"beam {beam_size}"
        equal = f"{len(recordings) - len(rows)} of {len(recordings)} equal"
        print(f"\n### {args.model}, {args.set}, {args.task}, {name}: {equal}")
        if rows:
            print(f"\n{table(COLUMNS, rows)}", flush=True)


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--openai-model", type=Path, metavar="FILE", help="the same model as .pt")
    its.add_argument("--model", default="tiny.en", help="name or path of harken's model (tiny.en)")
    its.add_argument("--set", default=DEFAULT_SET, metavar="NAME", help=f"set to run ({DEFAULT_SET})")
    its.add_argument("--limit", type=positive, metavar="N", help="only the first N recordings")
    its.add_argument(
        "--beam",
        type=positive,
        nargs="+",
        default=[GREEDY, BEAM],
        metavar="N",
        help="widths; 1 is greedy (1 5)",
    )
    its.add_argument("--patience", type=float, default=1.0, metavar="X", help="of the beam search (1)")
    its.add_argument("--length-penalty", type=float, metavar="ALPHA", help="of the beam search")
    its.add_argument("--task", choices=["transcribe", "translate"], default="transcribe")
    its.add_argument(
        "--language",
        metavar="CODE",
        help="only recordings in it; all, and detected by both engines, if not given",
    )
    its.add_argument(
        "--ladder", action="store_true",
        help="with the ladder of temperatures; samples cannot be equal, as random numbers differ",
    )  # fmt: skip
    return its.parse_args()


def transcribe(recognizer: harken.Recognizer, samples: Floats, work: Work) -> tuple[list[Heard], list[Place]]:
    """Windows as harken hears them, and where they are."""
    heard: list[Heard] = []
    places: list[Place] = []
    transcription = recognizer.transcribe(
        samples,
        **asdict(work),
        **AS_REFERENCE,
        on_window_start=lambda start_s, prompt: places.append(Place(start_s=start_s, prompt=prompt)),
        on_window_end=lambda start_s, decoded, attempts: heard.append(
            Heard(tokens=decoded.hypothesis.tokens, temperature=decoded.temperature)
        ),
    )
    transcription.result()
    return heard, places


def load_reference(path: Path | None, name: str, threads: int) -> Any:
    """The model in openai-whisper; its attribute `decoded` collects what each of its decodes gives."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    whisper: Any = importlib.import_module("whisper")
    model = whisper.load_model(str(path), device="cpu") if path else read_reference(torch, whisper, name)
    decode, decoded = model.decode, []

    def noted(mel: Any, options: Any) -> Any:
        result = decode(mel, options)
        decoded.append(Heard(tokens=tuple(result.tokens), temperature=result.temperature))
        return result

    model.decode, model.decoded = noted, decoded
    return model


def read_reference(torch: Any, whisper: Any, name: str) -> Any:
    """openai-whisper's model with the weights that harken reads, in float32."""
    import numpy as np

    from harken.checkpoints import open_checkpoint, resolve_model

    checkpoint = open_checkpoint(resolve_model(name))
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(checkpoint.dims))).eval()
    weights = checkpoint.weights
    model.load_state_dict({name: torch.tensor(np.float32(weights[name])) for name in weights})
    return model


def transcribe_reference(model: Any, samples: Floats, work: Work) -> list[Heard]:
    """Windows as openai-whisper hears them."""
    model.decoded.clear()
    beam = {"beam_size": work.beam_size, "patience": work.patience} if work.beam_size > GREEDY else {}
    model.transcribe(
        samples,
        task=work.task,
        language=work.language,
        temperature=work.temperatures,
        length_penalty=work.length_penalty,
        best_of=5,
        fp16=False,
        **beam,
    )
    tried = model.decoded
    # A window's ladder begins at 0, and its last rung is kept.
    after = [heard.temperature for heard in tried[1:]] + [0.0]
    return [heard for heard, next_temperature in zip(tried, after, strict=True) if next_temperature == 0.0]


def difference(
    recognizer: harken.Recognizer,
    samples: Floats,
    ours: Sequence[Heard],
    theirs: Sequence[Heard],
    places: Sequence[Place],
) -> list[str]:
    """Where two transcripts first differ, in what, and by how little: the columns behind the recording."""
    window = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if window is None:
        return ["-", "-", f"{len(ours)} windows", f"{len(theirs)} windows", "-", "-"]
    place, eot = places[window], recognizer.tokenizer.eot
    a, b = (*ours[window].tokens, eot), (*theirs[window].tokens, eot)
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    where = [f"{place.start_s:.2f}", "-" if at is None else f"{at} of {len(b)}"]
    if at is None or ours[window].temperature or theirs[window].temperature:
        return [*where, *(f"at temperature {its[window].temperature}" for its in (ours, theirs)), "-", "-"]
    chances = [logprobs(recognizer, samples, place, tokens) for tokens in (a, b)]
    pieces = [f"`{recognizer.tokenizer.describe_token(tokens[at])}`" for tokens in (a, b)]
    margin = chances[0][at] - chances[1][at]
    lead = sum(chances[0]) / (len(a) - 1) - sum(chances[1]) / (len(b) - 1)
    return [*where, *pieces, f"{margin:.1e}", f"{lead:.1e}"]


def logprobs(
    recognizer: harken.Recognizer, samples: Floats, place: Place, tokens: Sequence[int]
) -> list[float]:
    """Log-probability of each token after those before it, under the rules, as harken's model sees it."""
    from harken.audio import stream_audio
    from harken.decoding import make_logit_rules
    from harken.transcribe.mel_windows import MelWindows
    from harken.types import FRAMES_PER_SECOND

    backend, dims = recognizer.backend, recognizer.dims
    windows = MelWindows(stream_audio(samples), dims.n_mels, 2 * dims.n_audio_ctx)
    mel, _ = windows.window(round(place.start_s * FRAMES_PER_SECOND), None)
    session = backend.open_session(backend.encode(mel), [0], dims.n_text_ctx)
    logits = session.extend([[*place.prompt, *tokens[:-1]]], last_n=len(tokens))
    make_logit_rules(recognizer.tokenizer, timestamps=True).apply(
        logits, [tokens[:i] for i in range(len(tokens))]
    )
    chances = [float(logits.select_positions([i]).probability(token)[0]) for i, token in enumerate(tokens)]
    return [math.log(chance) if chance else -math.inf for chance in chances]


if __name__ == "__main__":
    run(main)
