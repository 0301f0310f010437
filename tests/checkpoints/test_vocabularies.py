"""Vocabularies with tokens of their own, or that lost some, and conversions: all keep the ids that their files say."""

import json
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import checkpoint_files as files
import harken
from checkpoint_files import write_peft
from harken.audio import mel_filters
from harken.checkpoints import Checkpoint, open_checkpoint, with_adapters
from harken.checkpoints.convert import TARGETS, convert
from harken.checkpoints.weight_names import EMBEDDING
from harken.errors import CheckpointError, OptionError, OutputError
from harken.text import Tokenizer
from harken.text.vocabulary import builtin_tokens, bytes_to_unicode, merges_of
from tiny_models import DIMS, TOKENIZER

TEXT = [bytes_to_unicode(bytes([byte])) for byte in range(256)]
FIRST = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"]
LAST = ["<|startoflm|>", "<|startofprev|>", "<|nocaptions|>", "<|notimestamps|>"]
WITHOUT_TIMESTAMPS = TEXT + FIRST + LAST
TIMESTAMPS = [f"<|{i / 50:.2f}|>" for i in range(1501)]
WITH_ADDED = [*WITHOUT_TIMESTAMPS, *TIMESTAMPS, "[UH]", "<|gsw|>", "äh"]
PADDING = 3


def open_with(tmp_path, vocabulary, rows=PADDING, file="tokenizer.json"):
    """Write a model with this vocabulary and further rows, whose embeddings begin with their ids, and open it."""
    dims = replace(files.TINY, n_vocab=len(vocabulary) + rows)
    weights = {**files.random_weights(dims)}
    weights[EMBEDDING] = weights[EMBEDDING].astype(np.float32)
    weights[EMBEDDING][:, 0] = np.arange(dims.n_vocab)
    folder = files.write_huggingface(tmp_path / file, dims, weights)
    base = {token: i for i, token in enumerate(vocabulary[:256])}
    added = {token: i for i, token in enumerate(vocabulary) if i >= 256}
    entries = [{"id": i, "content": token} for token, i in added.items()]
    contents = {
        "tokenizer.json": {"model": {"vocab": base}, "added_tokens": entries},
        "vocab.json": base,
        "vocabulary.json": vocabulary,
    }
    (folder / file).write_text(json.dumps(contents[file]))
    if file == "vocab.json":
        (folder / "added_tokens.json").write_text(json.dumps(added))
    return open_checkpoint(folder)


def declare(checkpoint, **entries):
    """Write a generation_config.json beside a model and open it again."""
    folder = checkpoint.path.parent
    (folder / "generation_config.json").write_text(json.dumps(entries))
    return open_checkpoint(folder)


def tokenizer_of(checkpoint):
    return checkpoint.vocabulary.tokenizer(checkpoint.dims.n_vocab)


@pytest.fixture(scope="module")
def converted_openai(tmp_path_factory):
    """A function from a number of tokens to the folder of a small model with those of OpenAI, converted once."""

    @cache
    def convert_once(n_vocab):
        folder = tmp_path_factory.mktemp("openai")
        dims = replace(DIMS, n_mels=80, n_vocab=n_vocab)
        source = files.write_openai(folder / "m.pt", dims, files.random_weights(dims))
        return converted(source, folder / "to").path.parent

    return convert_once


@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.json", "vocabulary.json"])
def test_added_tokens_are_text_and_languages_and_padding_is_left_out(tmp_path, file):
    checkpoint = open_with(tmp_path, WITH_ADDED, file=file)
    tokenizer = tokenizer_of(checkpoint)
    assert checkpoint.dims.n_vocab == tokenizer.n_vocab == len(WITH_ADDED)
    ids = checkpoint.weights[EMBEDDING][:, 0].astype(int)
    np.testing.assert_array_equal(ids, tokenizer.model_ids)
    read_as = [WITH_ADDED[i] for i in ids]
    for token, name in (
        (tokenizer.eot, "<|endoftext|>"),
        (tokenizer.no_speech, "<|nocaptions|>"),
        (tokenizer.timestamp_begin + 7, "<|0.14|>"),
        (tokenizer.language_tokens["de"], "<|de|>"),
        (tokenizer.sot_sequence("<|gsw|>")[1], "<|gsw|>"),
    ):
        assert read_as[token] == name
    assert tokenizer.decode([104, read_as.index("[UH]"), read_as.index("äh")]) == "h[UH]äh"
    with pytest.raises(OptionError, match="one of en, de, gsw"):
        tokenizer.sot_sequence("<|als|>")


def test_adapters_of_the_embedding_have_the_order_of_the_model(tmp_path):
    checkpoint = open_with(tmp_path, WITH_ADDED)
    stored = len(WITH_ADDED) + PADDING
    state = checkpoint.dims.n_text_state
    name = "base_model.model.model.decoder.embed_tokens"
    whole = np.arange(stored, dtype=np.float32)[:, None] + np.zeros(state, np.float32)
    factors = np.arange(stored, dtype=np.float32)[None], np.ones((state, 1), np.float32)
    for arrays in (
        {f"{name}.weight": whole},
        {f"{name}.lora_embedding_A": factors[0], f"{name}.lora_embedding_B": factors[1]},
    ):
        folder = write_peft(tmp_path / f"adapter{len(arrays)}", arrays, ensure_weight_tying=True, lora_alpha=1)
        changed = with_adapters(checkpoint, folder).weights[EMBEDDING]
        if len(arrays) == 2:
            changed = changed - checkpoint.weights[EMBEDDING]
        np.testing.assert_allclose(changed, whole[[*tokenizer_of(checkpoint).model_ids]], rtol=1e-5)


def zeros(dims):
    return {name: np.zeros(shape, np.float16) for name, shape in files.weight_shapes(dims).items()}


def test_vocabularies_are_recognised_by_their_files_where_the_size_is_that_of_another(
    tmp_path, converted_openai
):
    """An English model with one more token has as many as the multilingual ones, but the heads of the English one."""
    sizes = {"n_audio_layer": 4, "n_text_layer": 4, "n_audio_state": 384, "n_text_state": 384}  # of tiny.en
    dims = replace(DIMS, n_mels=80, n_vocab=51864, **sizes)
    source = files.write_openai(tmp_path / "m.pt", dims, zeros(dims))
    folder = shutil.copytree(converted_openai(51864), tmp_path / "to")
    path, wider = folder / "tokenizer.json", replace(dims, n_vocab=51865)
    content = json.loads(path.read_text())
    files.write_huggingface(folder, wider, zeros(wider))
    content["added_tokens"].append({"id": 51864, "content": "[UH]"})
    path.write_text(json.dumps(content))
    assert declare(open_checkpoint(folder)).kept_heads == open_checkpoint(source).kept_heads
    extended = tokenizer_of(open_checkpoint(folder))
    assert (extended.n_vocab, extended.multilingual) == (51865, False)
    assert extended.decode([extended.eot - 1]) == "[UH]"
    with pytest.raises(
        CheckpointError, match="the English vocabulary, which does not fit a model of n_vocab=51900"
    ):
        Tokenizer.from_file(path, 51900)


def test_the_tokenizer_of_another_published_model_is_refused(tmp_path, converted_openai):
    """Its special tokens have other ids, so the text would be wrong or empty."""
    for size, n_vocab in ((51865, 51866), (51864, 51865)):
        folder = shutil.copytree(converted_openai(size), tmp_path / f"{size}")
        wider = replace(DIMS, n_mels=80, n_vocab=n_vocab)
        files.write_huggingface(folder, wider, files.random_weights(wider))
        with pytest.raises(
            CheckpointError,
            match=f"json: a vocabulary of {size} tokens, which does not fit .* n_vocab={n_vocab}",
        ):
            open_checkpoint(folder)
    (folder / "generation_config.json").write_text(
        '{"no_timestamps_token_id": 50362}'
    )  # the last row is padding
    assert tokenizer_of(open_checkpoint(folder)).n_vocab == size


def test_special_tokens_with_other_ids_than_the_files_say_are_refused(tmp_path):
    wrong = declare(open_with(tmp_path, WITH_ADDED), no_timestamps_token_id=265, task_to_id={"transcribe": 260})
    with pytest.raises(
        CheckpointError, match=r"config\.json: the id of <\|transcribe\|> is 260, allowed is 261"
    ):
        tokenizer_of(wrong)
    right = declare(wrong, no_timestamps_token_id=265, task_to_id={"transcribe": 261, "translate": None})
    assert tokenizer_of(right).no_speech + 1 == tokenizer_of(right).no_timestamps
    (right.path.parent / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="does not fit a model of n_vocab=1773"):
        tokenizer_of(open_checkpoint(right.path.parent))
    dims = replace(files.TINY, n_vocab=51866)  # a multilingual model with one more token, taken for large-v3
    files.write_huggingface(tmp_path / "v3", dims, files.random_weights(dims))
    extended = declare(open_checkpoint(tmp_path / "v3"), no_timestamps_token_id=50363)
    with pytest.raises(CheckpointError, match="is 50363, allowed is 50364"):
        tokenizer_of(extended)
    cut = open_with(tmp_path / "cut", WITHOUT_TIMESTAMPS + TIMESTAMPS[:1500], 0, "vocabulary.json")
    with pytest.raises(
        CheckpointError, match=r"vocabulary\.json: the id of <\|notimestamps\|> is 265, allowed is 264"
    ):
        tokenizer_of(cut)


@pytest.mark.parametrize("token", ["<|um|>", "<|pad|>", "<|30.02|>"])
def test_added_tokens_that_look_like_languages_or_timestamps_are_text(tmp_path, token):
    tokenizer = tokenizer_of(open_with(tmp_path, [*WITH_ADDED, token]))
    assert [*tokenizer.language_tokens] == ["en", "de", "gsw"]
    assert tokenizer.decode([tokenizer.eot - 1]) == token


def test_languages_that_the_model_declares_are_those_and_those_of_whisper(tmp_path):
    checkpoint = declare(
        open_with(tmp_path, [*WITH_ADDED, "<|um|>"]), lang_to_id={"<|en|>": 258, "<|um|>": 1770}
    )
    tokenizer = tokenizer_of(checkpoint)
    assert [*tokenizer.language_tokens] == ["en", "de", "um"]
    assert tokenizer.decode([tokenizer.eot - 2]) == "<|gsw|>"


def test_a_multilingual_model_of_one_language_has_its_token_in_the_prompt(tmp_path):
    one = [token for token in WITHOUT_TIMESTAMPS + TIMESTAMPS if token != "<|de|>"]
    small = open_with(tmp_path, one, file="vocabulary.json")
    assert tokenizer_of(declare(small, is_multilingual=True)).sot_sequence("en") == (257, 258, 260)
    assert tokenizer_of(declare(small, is_multilingual=False)).sot_sequence("en") == (257,)
    pruned = open_with(tmp_path / "pruned", builtin_tokens(True) + one[256:], file="vocabulary.json")
    assert tokenizer_of(pruned).sot_sequence("en") == (50258, 50259, 50261)


@pytest.mark.parametrize("rows", [0, PADDING])
def test_languages_are_those_of_the_file_with_rows_of_padding_and_without(tmp_path, rows):
    tokenizer = tokenizer_of(open_with(tmp_path, WITHOUT_TIMESTAMPS + TIMESTAMPS, rows, "vocabulary.json"))
    assert tokenizer.language_tokens == {"en": 258, "de": 259}
    assert tokenizer.sot_sequence("de") == (257, 259, 261)


@pytest.mark.parametrize(
    ("vocabulary", "options", "found"),
    [
        (WITH_ADDED, {"language": "<|gsw|>"}, "gsw"),
        (WITH_ADDED, {"languages": ["<|gsw|>"]}, "gsw"),
        (WITHOUT_TIMESTAMPS, {"language": "de"}, "de"),
    ],
)
def test_models_transcribe_in_added_languages_and_without_timestamps(tmp_path, vocabulary, options, found):
    recognizer = harken.load(open_with(tmp_path, vocabulary).path.parent, backend="numpy")
    assert recognizer.resolve_options().timestamps == (vocabulary is WITH_ADDED)
    silence = np.zeros(1600, np.float32)
    transcription = recognizer.transcribe(silence, vad=False, fill_gaps=False, **options)
    assert transcription.result().language == found


def test_timestamps_that_only_the_weights_have_are_known(tmp_path):
    """Tokenizers of transformers before 2023 do not list them."""
    checkpoint = open_with(tmp_path, WITHOUT_TIMESTAMPS, 1501 + PADDING)
    assert checkpoint.dims.n_vocab == 266 + 1501 == tokenizer_of(checkpoint).timestamp_begin + 1501


# --- conversion --------------------------------------------------------------------------------------------


def converted(path, to, target="huggingface"):
    checkpoint = path if isinstance(path, Checkpoint) else open_checkpoint(path)
    return open_checkpoint(convert(checkpoint, to, target, mel_filters(80)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_converted_model_is_the_same(tmp_path, target):
    dims = replace(DIMS, n_mels=80)
    weights = files.random_weights(dims)
    source = files.write_ggml(tmp_path / "m.bin", dims, weights, tokens=tuple(TOKENIZER.text_bytes()))
    result = converted(source, tmp_path / "to", target)
    assert (result.format, result.dims) == (target, dims)
    for name, values in weights.items():
        np.testing.assert_array_equal(result.weights[name], values, err_msg=name)
    assert tokenizer_of(result).has_same_vocabulary(TOKENIZER)


@pytest.mark.parametrize(
    ("target", "name"), [("huggingface", "tokenizer.json"), ("ctranslate2", "vocabulary.json")]
)
def test_a_conversion_that_breaks_off_leaves_no_model_and_can_be_repeated(tmp_path, target, name):
    checkpoint, unwritable = open_with(tmp_path, WITH_ADDED), tmp_path / "to" / name
    unwritable.mkdir(parents=True)
    with pytest.raises(OutputError, match=name):
        converted(checkpoint, tmp_path / "to", target)
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path / "to")
    unwritable.rmdir()
    assert converted(checkpoint, tmp_path / "to", target).dims == checkpoint.dims


@pytest.mark.parametrize("target", ["huggingface", "ctranslate2"])
def test_tokens_keep_the_ids_that_the_model_has(tmp_path, target):
    checkpoint = open_with(tmp_path, WITH_ADDED)
    result = converted(checkpoint, tmp_path / "to", target)
    assert result.dims == checkpoint.dims
    assert result.vocabulary.arrangement == checkpoint.vocabulary.arrangement
    for name, values in checkpoint.weights.items():
        np.testing.assert_array_equal(result.weights[name], values.astype(np.float16), err_msg=name)
    (tmp_path / "to" / "tokenizer.json").unlink()  # CTranslate2 reads its own list
    if target == "ctranslate2":
        again = open_checkpoint(tmp_path / "to").vocabulary.arrangement
        assert again == checkpoint.vocabulary.arrangement
    others_first = open_with(tmp_path / "languages", WITHOUT_TIMESTAMPS + TIMESTAMPS)
    for other in (checkpoint, others_first):
        with pytest.raises(CheckpointError, match="tokens of its own, of which a ggml file does not say"):
            converted(other, tmp_path / "ggml", "ggml")


@pytest.mark.parametrize("n_vocab", [51864, 51865, 51866])
def test_tokens_of_openai_are_read_back(converted_openai, n_vocab):
    checkpoint = open_checkpoint(converted_openai(n_vocab))
    assert checkpoint.vocabulary.arrangement
    assert checkpoint.vocabulary.arrangement.is_standard
    tokenizer = tokenizer_of(checkpoint)
    assert tokenizer.has_same_vocabulary(Tokenizer.builtin(n_vocab))
    content = json.loads(checkpoint.path.with_name("tokenizer.json").read_text())
    added = {entry["content"]: entry["id"] for entry in content["added_tokens"]}
    assert added["<|de|>"] == tokenizer.language_tokens["de"]
    template = content["post_processor"]
    around = (tokenizer.sot, tokenizer.no_timestamps, tokenizer.eot)
    assert [entry["ids"] for entry in template["special_tokens"].values()] == [[token] for token in around]
    task = checkpoint.vocabulary.config.entries.get("task")  # without it transformers invents text
    assert task == ("transcribe" if tokenizer.multilingual else None)


def test_padding_is_no_token_of_its_own_nor_is_a_token_without_a_row(tmp_path):
    cut = open_with(tmp_path / "cut", WITH_ADDED, rows=-1)
    assert cut.dims.n_vocab == tokenizer_of(cut).n_vocab == len(WITH_ADDED) - 1
    vocabulary = WITHOUT_TIMESTAMPS + TIMESTAMPS
    vocabulary[258:260] = ["<|en|>", "<|zh|>"]  # the order of OpenAI
    assert converted(open_with(tmp_path, vocabulary), tmp_path / "to", "ggml").dims.n_vocab == len(vocabulary)


def test_merges_follow_from_the_vocabulary():
    tokens = builtin_tokens(multilingual=False)[:8000]  # of which each is made of tokens before it
    merges = merges_of(tokens)
    assert [left + right for left, right in merges] == tokens[256:]
    assert merges[:3] == [("Ġ", "t"), ("Ġ", "a"), ("h", "e")]


def test_values_that_do_not_fit_float16_are_refused(tmp_path):
    weights = files.random_weights(DIMS, dtype=np.float32)
    weights["decoder.ln.bias"][0] = 1e6
    source = files.write_ggml(tmp_path / "m.bin", DIMS, weights, tokens=tuple(TOKENIZER.text_bytes()))
    with pytest.raises(CheckpointError, match="values above 65504, which do not fit into float16"):
        converted(source, tmp_path / "to")
    assert not (tmp_path / "to" / "model.safetensors").exists()


def test_a_huge_file_beside_the_weights_is_not_copied(tmp_path):
    checkpoint = open_with(tmp_path, WITH_ADDED)
    with open(checkpoint.path.with_name("preprocessor_config.json"), "wb") as file:
        file.truncate(1 << 31)
    with files.raises_checkpoint_error("preprocessor_config.json: has 2147483648 bytes", 1 << 26):
        converted(checkpoint, tmp_path / "to")
