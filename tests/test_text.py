"""Text from Python, files and the hub, and its tokens."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from neural_attention.tasks import text as text_module
from neural_attention.tasks import tokens as tokens_module
from neural_attention.tasks.text import TextSplits, load_text, overlaps
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


def test_a_name_that_is_no_utf_8_becomes_text_that_can_be_written(tmp_path):
    path = tmp_path / "bad\udcff.txt"
    try:
        path.write_text(LINES, encoding="utf-8")
    except (OSError, UnicodeError):
        pytest.skip("this file system takes UTF-8 names alone")
    for source in (path, tmp_path):
        load_text(str(source)).source.encode()
    assert r"bad\udcff.txt" in load_text(str(path)).source
    path.write_text("")
    with pytest.raises(ValueError, match="is empty") as refused:
        load_text(str(path))
    str(refused.value).encode()


def test_the_home_of_a_user_that_there_is_not_is_no_file():
    with pytest.raises(FileNotFoundError, match="no file or folder '~nobody-here/x/'"):
        load_text("~nobody-here/x/")


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


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="empty name"):
        load_text(name)
    with pytest.raises(ValueError, match="empty name"):
        tokenise(SMALL, tmp_path, tokenizer=name)


@pytest.mark.parametrize(
    ("encoding", "hint"), [("latin-1", "iconv -f LATIN1"), ("utf-16", "iconv -f UTF-16")]
)
def test_another_encoding_is_refused_with_the_place_and_how_to_convert_it(tmp_path, encoding, hint):
    path = tmp_path / "my text.txt"
    path.write_bytes("plain\nand caf\u00e9\n".encode(encoding))
    where = "position 13 \\(line 2\\)" if encoding == "latin-1" else "position 0 \\(line 1\\)"
    with pytest.raises(ValueError, match=f"my text.txt is not UTF-8.*{where}.*{hint} -t UTF-8 '"):
        load_text(str(path))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((LINES, LINES, "z" * 99), ["validation part is the same text as the training"]),
        ((LINES, "y" * 99, LINES[500:1500]), ["test part stands whole in the training"]),
        ((LINES[500:1500], "y" * 99, LINES), ["test part holds the whole of the training"]),
        ((LINES, "y" * 99, "y" * 99 + "\n"), ["test part is the same text as the validation"]),
        (
            (LINES, "y" * 99, "".join(reversed(LINES.splitlines(keepends=True)[:99]))),
            ["test part has 100% of its longer lines from the training"],
        ),
        ((LINES, "y" * 99, "z" * 99), []),
        ((LINES, "line", ""), []),
    ],
)
def test_parts_that_repeat_one_another_are_named(parts, says):
    told = overlaps(TextSplits("x", *parts))
    assert len(told) == len(says)
    for note, beginning in zip(told, says, strict=True):
        assert note.startswith(f"the {beginning} part: ")


def test_a_folder_with_the_same_file_twice_repeats_itself(tmp_path):
    write(tmp_path / "a.txt")
    write(tmp_path / "b.txt")
    assert any("test part" in note for note in overlaps(load_text(str(tmp_path))))


def test_the_built_in_text_does_not_repeat_itself():
    assert overlaps(load_text()) == []


def test_one_file_is_no_files(tmp_path):
    write(tmp_path / "a.txt")
    assert ", 1 file (" in load_text(str(tmp_path)).source


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.txt file"):
        load_text(str(tmp_path))


def test_a_hub_name_without_a_network_says_what_to_do():
    pytest.importorskip("datasets")
    with pytest.raises(ConnectionError, match="give files of your own"):
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


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": 3},
        {"counts": {"train": 1}},
        {"vocab_size": "300"},
        {"vocab_size": 1},
        {"start_token": 99_999},
        {"tokenizer": "another"},
        {"bytes": {}},
        {"sha256": 0},
        {"more": 1},
    ],
    ids=str,
)
def test_a_description_of_tokens_with_a_wrong_field_is_made_anew(tmp_path, changes):
    files = tokenise(SMALL, tmp_path, vocab_size=300)
    path = Path(files.folder) / "tokens.json"
    whole = path.read_text()
    path.write_text(json.dumps({**json.loads(whole), **changes}))
    said = []
    assert tokenise(SMALL, tmp_path, vocab_size=300, say=said.append) == files
    assert path.read_text() == whole
    assert ["are damaged: set aside as" in line for line in said] == [True]
    (aside,) = tmp_path.glob("*.unreadable")
    assert json.loads((aside / "tokens.json").read_text()) == {**json.loads(whole), **changes}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_trained_tokeniser_that_is_damaged_is_made_anew(tmp_path, name):
    files = tokenise(SMALL, tmp_path, vocab_size=300)
    path = Path(files.folder) / "tokenizer" / name
    whole = path.read_bytes()
    path.write_bytes(b"")
    assert tokenise(SMALL, tmp_path, vocab_size=300) == files
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY"])
def test_token_files_that_are_no_arrays_are_made_anew(tmp_path, content):
    files = tokenise(SMALL, tmp_path, vocab_size=300)
    path = Path(files.folder) / "test.npy"
    path.write_bytes(content)
    assert tokenise(SMALL, tmp_path, vocab_size=300) == files
    assert files.load("test").size == files.counts["test"]


def test_a_folder_with_another_tokeniser_gives_other_tokens(tmp_path):
    pytest.importorskip("transformers")
    folder = tmp_path / "tokenizer"
    counts = []
    for size in (300, 400):
        trained = tokenise(SMALL, tmp_path / str(size), vocab_size=size)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(Path(trained.folder) / "tokenizer", folder)
        (folder / "model.safetensors").write_bytes(bytes(size))  # a model's weights change nothing
        given = tokenise(SMALL, tmp_path / "given", tokenizer=str(folder))
        assert given.counts == trained.counts
        counts.append(given.counts["train"])
    assert counts[0] > counts[1]


def test_the_name_of_a_tokenisers_folder_does_not_matter(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    texts = {"first": "abc " * 500, "second": "xyz " * 500}
    for name, words in texts.items():
        trained = tokenise(TextSplits("words", words, words, words), tmp_path / "t", vocab_size=260)
        shutil.copytree(Path(trained.folder) / "tokenizer", tmp_path / name / "tokenizer")
    shutil.copytree(tmp_path / "first" / "tokenizer", tmp_path / "moved")
    given = {}
    for name in texts:
        monkeypatch.chdir(tmp_path / name)
        given[name] = tokenise(SMALL, tmp_path / "given", tokenizer="tokenizer")
    assert given["first"].folder != given["second"].folder
    assert tokenise(SMALL, tmp_path / "given", tokenizer=str(tmp_path / "moved")) == given["first"]


@pytest.mark.parametrize("given", [False, True], ids=["trained", "given"])
def test_a_special_token_in_a_text_is_text(tmp_path, given):
    pytest.importorskip("transformers")
    lines = f"a line with {END_OF_TEXT} in it\n" * 200
    text = TextSplits("special", lines, lines[:900], lines[:900])
    files = tokenise(text, tmp_path, vocab_size=300)
    if given:
        trained = tokenise(text, tmp_path, vocab_size=300)
        files = tokenise(text, tmp_path, tokenizer=f"{trained.folder}/tokenizer")
        for part in PARTS:
            np.testing.assert_array_equal(files.load(part), trained.load(part))
    assert not (files.load("train") == files.start_token).any()


@pytest.mark.parametrize("content", ["abcdefgh" * 40_000, " \n" * 160_000, "word " * 64_000])
def test_pieces_of_a_text_without_lines_or_words_are_bounded_and_lose_nothing(content, monkeypatch):
    monkeypatch.setattr(tokens_module, "_CHUNK", 1 << 12)
    pieces = list(tokens_module._pieces(content))
    assert "".join(pieces) == content
    assert max(map(len, pieces)) <= 1 << 13
    short = list(tokens_module._short_words(content))
    assert "".join(short) == content
    assert max(len(word) for piece in short for word in re.findall(r"\S+|\s+", piece)) <= 2_000


def test_a_text_of_one_endless_word_gets_a_tokeniser_in_bounded_time(tmp_path):
    # Unbounded, training on this takes minutes to hours, and faulthandler ends the test.
    word = "".join(map(chr, np.random.default_rng(0).integers(97, 123, 300_000)))
    files = tokenise(TextSplits("word", word, word[:9_000], word[:9_000]), tmp_path, vocab_size=400)
    assert files.vocab_size == 400


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
