"""Parallel text: where it comes from, what is refused, and how it becomes numbers."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("transformers")
pytest.importorskip("num2words")
pytest.importorskip("sentencepiece")

from neural_attention.tasks import text as text_module
from neural_attention.tasks.number_words import LARGEST
from neural_attention.tasks.parallel_text import ParallelText, load_parallel, overlaps
from neural_attention.tasks.parallel_tokens import encode_pairs, load_pair_tokenizer

PAIRS = [(f"Satz Nummer {n} für den Bären", f"sentence number {n} for the bear") for n in range(60)]


def parallel(pairs=PAIRS, **parts):
    parts = {"train": pairs[:40], "validation": pairs[40:50], "test": pairs[50:], **parts}
    return ParallelText("pairs", ("de", "en"), parts)


def write_aligned(folder, source=PAIRS, parts=("train", "valid", "test"), endings=("de", "en")):
    folder.mkdir(exist_ok=True)
    for part in parts:
        for side, ending in enumerate(endings):
            text = "".join(f"{pair[side]}\n" for pair in source)
            (folder / f"{part}.{ending}").write_text(text, encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def built_in():
    return load_parallel()


def test_the_built_in_pairs_are_the_same_at_every_call(built_in):
    assert load_parallel("built-in").sha256 == built_in.sha256
    assert built_in.languages == ("de", "en")


def test_no_built_in_number_is_in_two_parts(built_in):
    seen = [pair for part in built_in.parts.values() for pair in part]
    assert len(set(seen)) == len(seen) == sum(map(len, built_in.parts.values()))
    assert not overlaps(built_in)


def test_built_in_numbers_are_short_and_long(built_in):
    lengths = [len(english.split()) for _, english in built_in.parts["test"]]
    assert min(lengths) <= 3
    assert max(lengths) >= 12
    assert LARGEST == 10**9


def test_aligned_files_give_their_lines(tmp_path):
    text = load_parallel(write_aligned(tmp_path / "data"))
    assert text.languages == ("de", "en")
    assert all(list(pairs) == PAIRS for pairs in text.parts.values())


def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path):
    odd = [("eins\u2028und\x0bzwei\x85", "one\u2028and two"), *PAIRS]
    assert load_parallel(write_aligned(tmp_path / "d", odd)).parts["train"][0] == odd[0]


def test_languages_can_be_turned_around(tmp_path):
    folder = write_aligned(tmp_path / "data")
    for options in ({"source_language": "en"}, {"target_language": "de"}):
        text = load_parallel(folder, **options)
        assert text.languages == ("en", "de")
        assert text.parts["test"][0] == PAIRS[0][::-1]


def test_missing_parts_come_from_the_end_of_the_training_part(tmp_path):
    text = load_parallel(write_aligned(tmp_path / "data", parts=("train",)))
    assert [pair for part in text.parts.values() for pair in part] == PAIRS
    assert "validation and test from the end" in text.source


def test_files_of_different_length_are_refused_with_the_place(tmp_path):
    folder = write_aligned(tmp_path / "data")
    lines = [english for _, english in PAIRS]
    lines[11:12] = ["", ""]
    (tmp_path / "data" / "test.en").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"60 lines and test\.en 61.*one side alone is 12\."):
        load_parallel(folder)


def test_an_empty_side_is_left_out_and_noted(tmp_path):
    pairs = [*PAIRS[:3], ("", "alone"), *PAIRS[3:]]
    text = load_parallel(write_aligned(tmp_path / "data", pairs, parts=("train",)))
    assert ("", "alone") not in text.parts["train"]
    assert text.notes == ("1 pair of the train part with an empty side left out (line 4).",)


def test_sentences_seen_in_training_are_noted():
    (note,) = overlaps(parallel(test=[PAIRS[0], PAIRS[55]]))
    assert note.startswith("1 of 2 test sentences (50.0%) stands in the training part")


def _two_endings(folder):
    (folder / "train.fr").write_text("un\n")


def _wrong_encoding(folder):
    (folder / "test.de").write_bytes("gut\nBär\n".encode("latin-1"))


def _one_file_missing(folder):
    (folder / "test.en").unlink()


def _no_training(folder):
    for path in folder.glob("train.*"):
        path.unlink()


def _empty_split(folder):
    for ending in ("de", "en"):
        (folder / f"test.{ending}").write_text(" \n")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_two_endings, r"end in de, en, fr: two languages are needed"),
        (_wrong_encoding, r"test\.de is not UTF-8 text: .*\(line 2\)"),
        (_one_file_missing, r"test\.de has no test\.en beside it"),
        (_no_training, r"end in nothing: two languages are needed"),
        (_empty_split, r"test\.de is empty"),
    ],
)
def test_what_is_wrong_with_aligned_files_is_named(tmp_path, damage, says):
    folder = write_aligned(tmp_path / "data")
    damage(tmp_path / "data")
    with pytest.raises((ValueError, FileNotFoundError), match=says):
        load_parallel(folder)


def test_a_language_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="end in de, en: there is no 'fr'"):
        load_parallel(write_aligned(tmp_path / "data"), target_language="fr")
    with pytest.raises(ValueError, match="number words go from de to en"):
        load_parallel(source_language="fr")


def write_tsv(path, head="de\ten\n"):
    path.write_text(head + "".join(f"{one}\t{other}\n" for one, other in PAIRS), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("head", ["de\ten\n", ""])
def test_a_table_of_tabs_needs_no_head(tmp_path, head):
    text = load_parallel(write_tsv(tmp_path / "pairs.tsv", head))
    assert [pair for part in text.parts.values() for pair in part] == PAIRS


def test_columns_of_a_wide_table_are_chosen_by_name(tmp_path):
    path = tmp_path / "pairs.tsv"
    rows = "".join(f"{n}\t{pair[1]}\t{pair[0]}\n" for n, pair in enumerate(PAIRS))
    path.write_text("id\tenglish\tgerman\n" + rows)
    text = load_parallel(str(path), "german", "english")
    assert text.parts["train"][0] == PAIRS[0]
    with pytest.raises(ValueError, match=r"has 3 columns \(id, english, german\): name two"):
        load_parallel(str(path))


def test_a_line_without_its_tab_is_named(tmp_path):
    path = tmp_path / "pairs.tsv"
    write_tsv(path)
    path.write_text(path.read_text() + "no tab here\n")
    with pytest.raises(ValueError, match=r"line 62 of .*pairs\.tsv has 1 column, and 2 are needed"):
        load_parallel(str(path))


@pytest.mark.parametrize("form", ["two columns", "one column"])
def test_parquet_tables_give_their_pairs(tmp_path, form):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    translations = [{"de": one, "en": other} for one, other in PAIRS]
    columns = {"de": [one for one, _ in PAIRS], "en": [other for _, other in PAIRS]}
    content = columns if form == "two columns" else {"translation": translations}
    parquet.write_table(pyarrow.table(content), tmp_path / "train.parquet")
    for source in (tmp_path, tmp_path / "train.parquet"):
        text = load_parallel(str(source))
        assert [pair for part in text.parts.values() for pair in part] == PAIRS
        with pytest.raises(ValueError, match="there is no 'fr'"):
            load_parallel(str(source), "fr", "de")


def test_a_hub_set_with_a_loading_script_is_read_as_the_hub_converted_it(monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = [{"translation": {"de": one, "en": other}} for one, other in PAIRS]
    sets = datasets.DatasetDict(
        {
            split: datasets.Dataset.from_list(rows[part])
            for split, part in (("train", slice(50)), ("validation", slice(50, 55)))
        }
    )

    def load_dataset(name, configuration, revision=None):
        if revision != "refs/convert/parquet":
            raise RuntimeError("Dataset scripts are no longer supported, but found iwslt2017.py")
        assert (name, configuration) == ("IWSLT/iwslt2017", "iwslt2017-de-en")
        return sets

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(text_module, "_require_hub", lambda name, source: None)
    text = load_parallel("IWSLT/iwslt2017:iwslt2017-de-en")
    assert text.parts["validation"] == PAIRS[50:55]
    assert "test from the end of its training part" in text.source


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ("", ValueError, "have an empty name"),
        ("absent folder", FileNotFoundError, "no file or folder 'absent folder'"),
        ("one.txt", ValueError, "is one file, and no .tsv or .parquet"),
    ],
)
def test_a_source_that_there_is_not_is_named(tmp_path, monkeypatch, source, error, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("text")
    with pytest.raises(error, match=says):
        load_parallel(source)


def test_what_is_missing_is_named_with_what_brings_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "num2words", None)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match=r'pip install "neural-attention\[translation\]"'):
        load_parallel()
    with pytest.raises(ImportError, match=r'pip install "neural-attention\[translation\]"'):
        encode_pairs(parallel(), tmp_path)


def test_pairs_come_back_as_they_were_encoded(tmp_path):
    text = parallel()
    files = encode_pairs(text, tmp_path, vocab_size=400)
    tokenizer = load_pair_tokenizer(files.tokenizer_folder)
    for part, pairs in text.parts.items():
        encoded = files.load(part)
        assert len(encoded) == files.counts[part] == len(pairs)
        for ids, pair in zip(encoded, pairs, strict=True):
            assert tuple(tokenizer.decode(one, skip_special_tokens=True) for one in ids) == pair
            assert all(one[-1] == files.end for one in ids)
    assert files.references("test") == [target for _, target in text.parts["test"]]


def test_the_vocabulary_knows_the_training_part_alone_and_bytes_for_the_rest(tmp_path):
    text = parallel(test=[("日本 </s> <pad>", "Ω")])
    files = encode_pairs(text, tmp_path, vocab_size=400)
    tokenizer = load_pair_tokenizer(files.tokenizer_folder)
    (pair,) = files.load("test")
    assert [tokenizer.decode(one[:-1]) for one in pair] == ["日本 </s> <pad>", "Ω"]
    assert "日" not in tokenizer.get_vocab()


def test_encoding_is_the_same_each_time_and_is_done_once(tmp_path):
    first = encode_pairs(parallel(), tmp_path / "a", vocab_size=400)
    again = encode_pairs(parallel(), tmp_path / "b", vocab_size=400)
    assert first.sha256 == again.sha256
    assert encode_pairs(parallel(), tmp_path / "a", vocab_size=400) == first
    assert encode_pairs(parallel(), tmp_path / "a", vocab_size=420) != first


@pytest.mark.parametrize("name", ["train.npy", "test.references.json", "tokenizer/tokenizer.json"])
def test_damaged_files_are_set_aside_and_made_again(tmp_path, name):
    first = encode_pairs(parallel(), tmp_path, vocab_size=400)
    path = tmp_path / first.folder / name
    path.write_bytes(path.read_bytes()[:-3])
    said = []
    assert encode_pairs(parallel(), tmp_path, vocab_size=400, say=said.append) == first
    assert "are damaged: set aside" in said[0]


def test_pairs_that_are_too_long_are_left_out_or_cut(tmp_path):
    long = ("Bär " * 40, "bear " * 40)
    text = parallel(train=[*PAIRS, long], validation=[("kurz", "short")], test=[long])
    files = encode_pairs(text, tmp_path, vocab_size=400, length=30, limit=20)
    assert (files.left_out, files.counts["train"], files.cut) == (1, len(PAIRS), 2)
    assert [len(ids) for ids in files.load("test")[0]] == [20, 20]
    assert files.load("test")[0][0][-1] == files.end
    assert files.references("test") == [long[1]]
    with pytest.raises(ValueError, match="no pair of the train part has at most 2 tokens"):
        encode_pairs(text, tmp_path, vocab_size=400, length=2)


def test_a_vocabulary_that_is_too_small_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no vocabulary of 20 entries can be made"):
        encode_pairs(parallel(), tmp_path, vocab_size=20)


def test_the_description_holds_no_path(tmp_path):
    files = encode_pairs(parallel(), tmp_path, vocab_size=400)
    content = json.loads((tmp_path / files.folder / "pairs.json").read_text())
    assert str(tmp_path) not in json.dumps(content)
