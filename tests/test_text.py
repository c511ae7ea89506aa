"""Text from Python, files and the hub, and its tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from neural_attention.tasks import text as text_module
from neural_attention.tasks.text import TextSplits, load_text
from neural_attention.tasks.tokens import END_OF_TEXT, PARTS, tokenise

LINES = "".join(
    f"line {number} of a small text, with ünïcödé and 'quotes'\n" for number in range(400)
)


def write(path, content=LINES):
    path.write_text(content, encoding="utf-8")
    return str(path)


def test_the_built_in_text_needs_no_file_and_is_english_of_some_size():
    text = load_text()
    assert len(text.train) > 250_000
    assert 0.04 < len(text.test) / len(text.train + text.validation + text.test) < 0.06
    assert " the " in text.test
    assert text.sha256 == load_text("built-in").sha256


def test_no_paragraph_of_the_built_in_test_part_stands_in_the_training_part():
    text = load_text()
    paragraphs = [" ".join(part.split()) for part in text.test.split("\n\n")[1:-1]]
    train = " ".join(text.train.split())
    long = [paragraph for paragraph in paragraphs if len(paragraph) > 120]
    assert long
    assert [paragraph for paragraph in long if paragraph in train] == []


def test_a_file_is_split_by_position_at_line_ends(tmp_path):
    text = load_text(write(tmp_path / "book.txt"))
    assert text.train + text.validation + text.test == LINES
    assert text.train.endswith("\n")
    assert text.validation.endswith("\n")
    assert 0.03 < len(text.validation) / len(LINES) < 0.07


def test_a_text_of_one_line_is_split_all_the_same(tmp_path):
    text = load_text(write(tmp_path / "line.txt", "word " * 1000))
    assert len(text.train) == 4500
    assert len(text.validation) == 250


def test_a_folder_with_named_parts_uses_them(tmp_path):
    for name in ("train", "valid", "test"):
        write(tmp_path / f"{name}.txt", f"{name} text\n")
    write(tmp_path / "other.txt")
    text = load_text(str(tmp_path))
    assert (text.train, text.validation, text.test) == (
        "train text\n",
        "valid text\n",
        "test text\n",
    )


def test_a_missing_validation_part_comes_from_the_end_of_the_training_part(tmp_path):
    write(tmp_path / "train.txt")
    write(tmp_path / "test.txt", "the test\n")
    text = load_text(str(tmp_path))
    assert text.train + text.validation == LINES
    assert text.test == "the test\n"
    assert "validation from the end" in text.source


def test_other_files_of_a_folder_are_one_text_in_the_order_of_their_names(tmp_path):
    write(tmp_path / "b.txt", "second " * 100)
    write(tmp_path / "a.txt", "first " * 100)
    text = load_text(str(tmp_path))
    assert text.train.startswith("first first")
    assert text.test.endswith("second ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n\n ", "is empty"),
        (b"\x89PNG\r\n", "byte 0x89 at position 0"),
        (b"abc\0def", "zero byte at position 3"),
    ],
)
def test_files_that_hold_no_text_are_refused(tmp_path, content, message):
    path = tmp_path / "data.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_text(str(path))


@pytest.mark.parametrize("name", ["absent.txt", "a/b/c", "./no-such-folder", "folder/absent.txt"])
def test_what_is_not_there_is_said_to_be_missing(name):
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        load_text(name)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.txt file"):
        load_text(str(tmp_path))


def test_a_hub_name_without_a_network_says_what_to_do():
    pytest.importorskip("datasets")
    with pytest.raises(ConnectionError, match="give a text file"):
        load_text("nobody-here/no-such-set:raw")


def hub_set(monkeypatch, **splits):
    datasets = pytest.importorskip("datasets")
    sets = {name: datasets.Dataset.from_dict(columns) for name, columns in splits.items()}
    monkeypatch.setattr(text_module, "_require_hub", lambda name, source: None)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, configuration: sets)


def test_a_hub_set_keeps_its_own_splits_and_line_ends(monkeypatch):
    rows = ["", " = Title = \n", "a line\n"]
    hub_set(
        monkeypatch,
        train={"text": rows * 3},
        validation={"text": rows},
        test={"text": ["one", "two"]},
    )
    text = load_text("someone/set:raw")
    assert text.train == " = Title = \na line\n" * 3
    assert text.validation == " = Title = \na line\n"
    assert text.test == "one\ntwo"


def test_the_only_column_of_strings_of_a_hub_set_is_its_text(monkeypatch):
    hub_set(monkeypatch, train={"document": ["word " * 200], "number": [1]})
    assert load_text("someone/set").train.startswith("word word")


def test_a_hub_set_of_several_columns_is_refused_by_listing_them(monkeypatch):
    hub_set(monkeypatch, train={"question": ["a"], "answer": ["b"]})
    with pytest.raises(ValueError, match="question, answer"):
        load_text("someone/set")


SMALL = TextSplits("small", LINES, LINES[:3000], LINES[-3000:])


def test_a_trained_tokeniser_reads_back_what_it_wrote(tmp_path):
    from tokenizers import Tokenizer

    files = tokenise(SMALL, tmp_path, vocab_size=300)
    encoder = Tokenizer.from_file(f"{files.folder}/tokenizer/tokenizer.json")
    assert encoder.decode(files.load("validation").tolist()) == SMALL.validation
    assert files.vocab_size == encoder.get_vocab_size() <= 300
    assert files.start_token == encoder.token_to_id(END_OF_TEXT)
    assert files.bytes["test"] == len(SMALL.test.encode())


def test_a_tokeniser_is_trained_on_the_training_part_alone(tmp_path):
    other = TextSplits("small", LINES, "zq" * 2000, "zqzq" * 1000)
    first = tokenise(SMALL, tmp_path / "a", vocab_size=320)
    second = tokenise(other, tmp_path / "b", vocab_size=320)
    vocabularies = [
        json.loads((Path(files.folder) / "tokenizer" / "tokenizer.json").read_text("utf-8"))
        for files in (first, second)
    ]
    assert vocabularies[0] == vocabularies[1]


def test_a_trained_tokeniser_loads_with_auto_tokenizer_and_can_be_given_again(tmp_path):
    pytest.importorskip("transformers")
    trained = tokenise(SMALL, tmp_path / "a", vocab_size=300)
    given = tokenise(SMALL, tmp_path / "b", tokenizer=f"{trained.folder}/tokenizer")
    assert given.vocab_size == trained.vocab_size
    assert given.start_token == trained.start_token
    for part in PARTS:
        np.testing.assert_array_equal(given.load(part), trained.load(part))


def test_tokens_are_read_again_and_made_anew_when_damaged(tmp_path):
    files = tokenise(SMALL, tmp_path, vocab_size=300)
    path = tmp_path / files.folder / "train.npy"
    written = path.stat().st_mtime_ns
    assert tokenise(SMALL, tmp_path, vocab_size=300) == files
    assert path.stat().st_mtime_ns == written
    path.write_bytes(path.read_bytes()[:-100])
    assert tokenise(SMALL, tmp_path, vocab_size=300) == files
    assert files.load("train").size == files.counts["train"]


def test_a_tokeniser_that_is_not_there_is_refused(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="cannot be loaded"):
        tokenise(SMALL, tmp_path, tokenizer=str(tmp_path / "absent"))


def test_a_tokeniser_of_the_hub_is_asked_for_once_without_a_network(tmp_path, monkeypatch):
    import huggingface_hub
    import transformers

    asked = []

    def no_answer(self, name, **_):
        asked.append(name)
        raise OSError("no route to host")

    def load(name, *, local_files_only, **_):
        asked.append(local_files_only)
        raise OSError("not among the cached files")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", no_answer)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    with pytest.raises(ValueError, match="'someone/something' cannot be loaded"):
        tokenise(SMALL, tmp_path, tokenizer="someone/something")
    assert asked == ["someone/something", True]
