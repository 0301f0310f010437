"""Transcribe the recordings of a manifest one after another, and nothing else.

A program of its own: python _one_process.py MANIFEST MODEL THREADS.
"""

import json
import sys
from pathlib import Path

import harken

manifest, model, threads = sys.argv[1:]
recognizer = harken.load(model, threads=int(threads))
texts = [
    recognizer.transcribe(json.loads(line)["audio_filepath"], word_timestamps=True).result().text
    for line in Path(manifest).read_text(encoding="utf-8").splitlines()
]
print(sum(map(len, texts)))
