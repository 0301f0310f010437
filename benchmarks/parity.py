"""Token for token: harken in float32 against openai-whisper in float32, greedy and beam search.

Both get the same samples, and every window is compared: the tokens that were chosen, timestamps included and the end
of text left out. The first difference of a recording is printed with two numbers that harken's model gives in float32,
under the logit rules: the difference of the two tokens in log-probability (margin), and that of the averages of the two
whole hypotheses, by which a beam search chooses (lead). Both are positive where harken's choice is the better one.
Without a file in openai-whisper's format, the reference gets the weights as harken has read them.

    python benchmarks/parity.py --openai-model tiny.en.pt
    python benchmarks/parity.py --model path/to/small --set german --task translate --patience 2
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from arguments import DEFAULT_SET, limit_threads, note, parser, positive, require, run, stop
from recordings import read_set

if TYPE_CHECKING:
    import harken
    from harken.contract import Floats

GREEDY, BEAM = 1, 5
FALLBACK = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
AS_REFERENCE = {
    "vad": False,
    "hallucination_threshold": None,
    "language_windows": 1,
    "condition_on_previous_text": True,
}
"""Options with which harken takes the windows that openai-whisper takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Options of both engines."""

    beam_size: int
    patience: float
    length_penalty: float | None
    task: str
    language: str | None
    temperatures: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The result of one engine for one window; `tokens` without the end of text."""

    tokens: tuple[int, ...]
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStart:
    """Start of a window that harken decoded, and its prompt."""

    start_s: float
    prompt: tuple[int, ...]


def main() -> None:
    args = arguments()
    require("harken", "whisper", "torch")
    if args.openai_model and not args.openai_model.is_file():
        stop(f"{args.openai_model}: no such file")
    limit_threads(args.threads)
    import harken
    from harken.audio import load_audio

    settings = {"model": args.model, "precision": "fp32", "task": args.task}
    result = results.begin(args.save or "parity", settings, ("openai-whisper", "torch"))
    recognizer = harken.load(args.model, precision="fp32", threads=args.threads)
    reference = load_reference(args.openai_model, args.model, args.threads)
    for name in args.set:
        entries = read_set(args.audio, name, args.limit, model=args.model, language=args.language)
        for beam_size in args.beam:
            search = Search(
                beam_size=beam_size,
                patience=args.patience,
                length_penalty=args.length_penalty,
                task=args.task,
                language=args.language,
                temperatures=FALLBACK if args.fallback else FALLBACK[:1],
            )
            equal = 0
            for entry in entries:
                samples = load_audio(entry.path)
                ours, starts = transcribe(recognizer, samples, search)
                theirs = transcribe_reference(reference, samples, search)
                equal += ours == theirs
                if ours != theirs:
                    note(f"{entry.name}: {difference(recognizer, samples, ours, theirs, starts)}")
            search_name = "greedy" if beam_size == GREEDY else f"beam {beam_size}"
            result.add(search=search_name, set=name, recordings=len(entries), equal=equal)
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en", sets=(DEFAULT_SET,))
    options.add_argument("--openai-model", type=Path, metavar="FILE", help="the same model as .pt")
    options.add_argument(
        "--beam", type=positive, nargs="+", default=[GREEDY, BEAM], metavar="N", help="1 is greedy (1 5)"
    )
    options.add_argument("--patience", type=float, default=1.0, metavar="X", help="of the beam search (1)")
    options.add_argument("--length-penalty", type=float, metavar="ALPHA", help="of the beam search")
    options.add_argument("--task", choices=["transcribe", "translate"], default="transcribe")
    options.add_argument(
        "--language", metavar="CODE", help="only recordings in it; without it both engines detect the language"
    )
    options.add_argument(
        "--fallback", action="store_true",
        help="with the fallback schedule of temperatures; samples cannot be equal, as random numbers differ",
    )  # fmt: skip
    return options.parse_args()


def transcribe(
    recognizer: harken.Recognizer, samples: Floats, search: Search
) -> tuple[list[Decoded], list[WindowStart]]:
    """Return the windows as harken decodes them, and their starts."""
    windows: list[Decoded] = []
    starts: list[WindowStart] = []
    transcription = recognizer.transcribe(
        samples,
        **asdict(search),
        **AS_REFERENCE,
        on_window_start=lambda start_s, prompt: starts.append(WindowStart(start_s=start_s, prompt=prompt)),
        on_window_end=lambda start_s, decoded, attempts: windows.append(
            Decoded(tokens=decoded.hypothesis.tokens, temperature=decoded.temperature)
        ),
    )
    transcription.result()
    return windows, starts


def load_reference(path: Path | None, name: str, threads: int) -> Any:
    """Load the model in openai-whisper; the attribute `decoded` collects the result of every attempt."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    whisper: Any = importlib.import_module("whisper")
    model = whisper.load_model(str(path), device="cpu") if path else read_reference(torch, whisper, name)
    decode, decoded = model.decode, []

    def recorded(mel: Any, options: Any) -> Any:
        result = decode(mel, options)
        decoded.append(Decoded(tokens=tuple(result.tokens), temperature=result.temperature))
        return result

    model.decode, model.decoded = recorded, decoded
    return model


def read_reference(torch: Any, whisper: Any, name: str) -> Any:
    """Return openai-whisper's model with the weights that harken reads, in float32."""
    import numpy as np

    from harken.checkpoints import open_checkpoint, resolve_model

    checkpoint = open_checkpoint(resolve_model(name))
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(checkpoint.dims))).eval()
    weights = checkpoint.weights
    model.load_state_dict({name: torch.tensor(np.float32(weights[name])) for name in weights})
    return model


def transcribe_reference(model: Any, samples: Floats, search: Search) -> list[Decoded]:
    """Return the windows as openai-whisper decodes them."""
    model.decoded.clear()
    beam = {"beam_size": search.beam_size, "patience": search.patience} if search.beam_size > GREEDY else {}
    model.transcribe(
        samples,
        task=search.task,
        language=search.language,
        temperature=search.temperatures,
        length_penalty=search.length_penalty,
        best_of=5,
        fp16=False,
        **beam,
    )
    attempts = model.decoded
    # The first attempt at a window has temperature 0, and the last one is its result.
    following = [attempt.temperature for attempt in attempts[1:]] + [0.0]
    return [attempt for attempt, temperature in zip(attempts, following, strict=True) if temperature == 0.0]


def difference(
    recognizer: harken.Recognizer,
    samples: Floats,
    ours: Sequence[Decoded],
    theirs: Sequence[Decoded],
    starts: Sequence[WindowStart],
) -> str:
    """Describe the first difference of two transcripts."""
    window = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if window is None:
        return f"{len(ours)} windows, {len(theirs)} in the reference"
    start, eot = starts[window], recognizer.tokenizer.eot
    a, b = (*ours[window].tokens, eot), (*theirs[window].tokens, eot)
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    where = f"window at {start.start_s:.2f} s, token {at} of {len(b)}"
    if at is None or ours[window].temperature or theirs[window].temperature:
        return f"{where}: temperature {ours[window].temperature}, {theirs[window].temperature} in the reference"
    chances = [logprobs(recognizer, samples, start, tokens) for tokens in (a, b)]
    pieces = [f"{recognizer.tokenizer.describe_token(tokens[at])}" for tokens in (a, b)]
    margin = chances[0][at] - chances[1][at]
    lead = sum(chances[0]) / (len(a) - 1) - sum(chances[1]) / (len(b) - 1)
    return f"{where}: {pieces[0]}, {pieces[1]} in the reference; margin {margin:.1e}, lead {lead:.1e}"


def logprobs(
    recognizer: harken.Recognizer, samples: Floats, start: WindowStart, tokens: Sequence[int]
) -> list[float]:
    """Return the log-probability of each token after those before it, under the logit rules, in harken's model."""
    from harken.audio import stream_audio
    from harken.decoding import make_logit_rules
    from harken.transcribe.mel_windows import MelWindows
    from harken.types import FRAMES_PER_SECOND

    backend, dims = recognizer.backend, recognizer.dims
    windows = MelWindows(stream_audio(samples), dims.n_mels, 2 * dims.n_audio_ctx)
    mel, _ = windows.window(round(start.start_s * FRAMES_PER_SECOND), None)
    session = backend.open_session(backend.encode(mel), [0], dims.n_text_ctx)
    logits = session.extend([[*start.prompt, *tokens[:-1]]], last_n=len(tokens))
    make_logit_rules(recognizer.tokenizer, timestamps=True).apply(
        logits, [tokens[:i] for i in range(len(tokens))]
    )
    chances = [float(logits.select_positions([i]).probability(token)[0]) for i, token in enumerate(tokens)]
    return [math.log(chance) if chance else -math.inf for chance in chances]


if __name__ == "__main__":
    run(main)
