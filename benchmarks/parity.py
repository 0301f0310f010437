"""Token for token: harken in float32 against openai-whisper in float32, greedy and beam search.

Both get the same samples, and every window is compared: the tokens that were chosen, timestamps included and the end
of text left out. The first difference of a recording is printed. Without a file in openai-whisper's format, the
reference gets the weights as harken has read them.

    python benchmarks/parity.py --openai-model tiny.en.pt --save parity
    python benchmarks/parity.py --model path/to/small --set german --task translate
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from program import DEFAULT_SET, Args, Parser, Row, add, main, note
from recordings import read_set

if TYPE_CHECKING:
    import harken
    from harken.contract import Floats

AS_REFERENCE: dict[str, Any] = {
    "vad": False,
    "hallucination_threshold": None,
    "language_windows": 1,
    "condition_on_previous_text": True,
    "temperatures": (0.0,),
}
"""Options with which harken takes the windows that openai-whisper takes. Samples at higher temperatures differ."""

Window = tuple[int, ...]
"""Tokens that were decoded, without the end of text."""


def options(parser: Parser) -> None:
    add(parser, "--openai-model", None, "the same model as .pt")
    add(parser, "--beam", (1, 5), "beam widths; 1 is greedy")
    add(parser, "--task", "transcribe", "of both engines", choices=("transcribe", "translate"))
    add(parser, "--language", None, "only recordings in it; without it both detect it")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each set and search."""
    import harken
    from harken.audio import load_audio

    recognizer = harken.load(args.model, precision="fp32", threads=args.threads)
    reference = load_reference(args)
    for name in args.set:
        entries = read_set(args.audio, name, args.limit, model=args.model, language=args.language)
        for beam_size in args.beam:
            equal = 0
            for entry in entries:
                samples = load_audio(entry.path)
                ours = transcribe(recognizer, samples, beam_size, args)
                theirs = transcribe_reference(reference, samples, beam_size, args)
                equal += ours == theirs
                if ours != theirs:
                    note(f"{entry.name}: {first_difference(recognizer, ours, theirs)}")
            search = "greedy" if beam_size == 1 else f"beam {beam_size}"
            yield {"search": search, "set": name, "recordings": len(entries), "equal": equal}


def transcribe(recognizer: harken.Recognizer, samples: Floats, beam_size: int, args: Args) -> list[Window]:
    """Return the windows as harken decodes them."""
    windows: list[Window] = []
    recognizer.transcribe(
        samples,
        beam_size=beam_size,
        task=args.task,
        language=args.language,
        on_window_end=lambda start_s, decoded, attempts: windows.append(decoded.hypothesis.tokens),
        **AS_REFERENCE,
    ).result()
    return windows


def load_reference(args: Args) -> Any:
    """Load the model in openai-whisper; the attribute `decoded` collects the tokens of every window."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(args.threads)
    whisper: Any = importlib.import_module("whisper")
    if args.openai_model:
        model = whisper.load_model(args.openai_model, device="cpu")
    else:
        model = read_reference(torch, whisper, args.model)
    decode, model.decoded = model.decode, []

    def recorded(mel: Any, options: Any) -> Any:
        result = decode(mel, options)
        model.decoded.append(tuple(result.tokens))
        return result

    model.decode = recorded
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


def transcribe_reference(model: Any, samples: Floats, beam_size: int, args: Args) -> list[Window]:
    """Return the windows as openai-whisper decodes them."""
    model.decoded.clear()
    beam = {"beam_size": beam_size} if beam_size > 1 else {}
    model.transcribe(samples, task=args.task, language=args.language, temperature=0.0, fp16=False, **beam)
    return [*model.decoded]


def first_difference(recognizer: harken.Recognizer, ours: Sequence[Window], theirs: Sequence[Window]) -> str:
    """Describe the first difference of two transcripts."""
    if len(ours) != len(theirs):
        return f"{len(ours)} windows, {len(theirs)} in the reference"
    number, one, other = next((i, a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    at, tokens = next((i, pair) for i, pair in enumerate(zip_longest(one, other)) if pair[0] != pair[1])
    pieces = ["the end" if token is None else recognizer.tokenizer.describe_token(token) for token in tokens]
    return f"window {number + 1}, token {at}: {pieces[0]}, {pieces[1]} in the reference"


if __name__ == "__main__":
    main(
        rows, options, model="tiny.en", sets=(DEFAULT_SET,), needs=("harken", "whisper", "torch"),
        packages=("openai-whisper", "torch"), settings=("task",),
    )  # fmt: skip
