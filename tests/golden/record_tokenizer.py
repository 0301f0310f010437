"""Record results of openai-whisper's tokenizer, and pack its two vocabularies into the package.

Run from the root of the repository, with openai-whisper installed::

    python tests/golden/record_tokenizer.py

It writes tests/golden/tokenizer.json and src/harken/text/data/*.txt.xz.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from importlib.metadata import version
from pathlib import Path

from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE, Tokenizer, get_tokenizer

from harken.text.bpe import bytes_to_unicode
from harken.text.vocabulary import END_OF_TEXT

ROOT = Path(__file__).resolve().parents[2]

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


def record(reference: Tokenizer) -> dict[str, object]:
    text_tokens = [reference.encoding.decode_single_token_bytes(i) for i in range(reference.eot)]
    specials = range(reference.eot, reference.encoding.n_vocab)
    return {
        **{name: getattr(reference, name) for name in ATTRIBUTES},
        "text_tokens_sha256": hashlib.sha256(b"".join(bytes([len(t)]) + t for t in text_tokens)).hexdigest(),
        "specials_sha256": hashlib.sha256(
            "".join(reference.encoding.decode([i]) for i in specials).encode()
        ).hexdigest(),
        "cases": [record_case(reference, text) for text in TEXTS],
    }


def record_case(reference: Tokenizer, text: str) -> dict[str, object]:
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


def main() -> None:
    references = {
        n_vocab: get_tokenizer(multilingual, num_languages=n_languages)
        for n_vocab, (multilingual, n_languages) in VOCABULARIES.items()
    }
    golden = {
        "provenance": f"openai-whisper {version('openai-whisper')}, tests/golden/record_tokenizer.py",
        "languages": list(LANGUAGES.items()),
        "codes": TO_LANGUAGE_CODE,
        "vocabularies": {n_vocab: record(reference) for n_vocab, reference in references.items()},
    }
    text = json.dumps(golden, separators=(",", ":"))
    (ROOT / "tests/golden/tokenizer.json").write_text(text + "\n", encoding="utf-8")
    data = ROOT / "src/harken/text/data"
    pack(references["51864"], data / "english.txt.xz")
    pack(references["51865"], data / "multilingual.txt.xz")


if __name__ == "__main__":
    main()
