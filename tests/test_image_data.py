"""Where images come from, how they are split, and what is said of mistakes."""

from __future__ import annotations

import importlib.util
import io
import sys
import zipfile

import numpy as np
import pytest

pytest.importorskip("PIL")
pytest.importorskip("datasets")
# Importing it here would bring its own OpenMP runtime beside torch's, before any test runs.
if importlib.util.find_spec("sklearn") is None:
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

import datasets
from PIL import Image

from neural_attention.tasks import image_files
from neural_attention.tasks.image_data import load_images
from neural_attention.tasks.prepared_images import PreparedImages, prepare_images

PARTS = ("train", "validation", "test")


def pixels(count, size=(6, 6), channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *size, channels), dtype=np.uint8)


def png(array):
    file = io.BytesIO()
    Image.fromarray(array.squeeze()).save(file, "PNG")
    return file.getvalue()


def write_folder(root, counts, part=None, seed=0, **kind):
    """``counts`` images of each class, as PNG files."""
    for number, (name, count) in enumerate(counts.items()):
        folder = root / (part or "") / name
        folder.mkdir(parents=True, exist_ok=True)
        for index, image in enumerate(pixels(count, seed=100 * number + seed, **kind)):
            (folder / f"{index}.png").write_bytes(png(image))
    return root


def write_npz(path, images=None, labels=None, **more):
    images = pixels(30) if images is None else images
    labels = np.arange(len(images)) % 3 if labels is None else labels
    np.savez(path, images=images, labels=labels, **more)
    return path


def write_parquet(path, rows, features=None):
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(path))
    return path


def sizes(splits):
    return {part: len(splits.parts[part].labels) for part in PARTS}


def test_the_digits_need_no_network_and_are_the_same_each_time():
    splits = load_images()
    assert splits.classes == tuple("0123456789")
    assert sizes(splits) == {"train": 1259, "validation": 179, "test": 359}
    assert splits.parts["train"].images.shape == (1259, 8, 8, 1)
    assert splits.parts["train"].images.max() == 255
    assert splits.sha256 == load_images("built-in").sha256


def test_every_class_is_in_every_part_in_the_same_share():
    splits = load_images()
    for label in range(10):
        counts = [(splits.parts[part].labels == label).sum() for part in PARTS]
        shares = np.array(counts) / sum(counts)
        assert np.abs(shares - [0.7, 0.1, 0.2]).max() < 0.02


def test_an_npz_file_is_split_and_its_parts_hold_every_image_once(tmp_path):
    path = write_npz(tmp_path / "mine.npz", class_names=np.array(["ant", "bee", "cat"]))
    splits = load_images(str(path))
    assert splits.classes == ("ant", "bee", "cat")
    assert sizes(splits) == {"train": 21, "validation": 3, "test": 6}
    together = np.concatenate([splits.parts[part].images for part in PARTS])
    assert {one.tobytes() for one in together} == {one.tobytes() for one in pixels(30)}
    assert "10% for validation and 20% for test" in splits.source


def test_a_folder_of_npz_files_keeps_its_parts(tmp_path):
    for number, part in enumerate(("train", "valid", "test")):
        write_npz(tmp_path / f"{part}.npz", pixels(6 + number, seed=number))
    splits = load_images(str(tmp_path))
    assert sizes(splits) == {"train": 6, "validation": 7, "test": 8}
    assert splits.classes == ("0", "1", "2")
    assert splits.source == str(tmp_path)


def test_a_test_part_may_have_fewer_images_than_there_are_classes(tmp_path):
    write_npz(tmp_path / "train.npz", pixels(100), np.arange(100) % 10)
    write_npz(tmp_path / "test.npz", pixels(2, seed=1), np.array([9, 3]))
    assert len(load_images(str(tmp_path)).classes) == 10


def test_npz_members_packed_with_lzma_and_grey_images_without_channels_are_read(tmp_path):
    plain = write_npz(tmp_path / "plain.npz", pixels(30)[..., 0])
    packed = tmp_path / "packed.npz"
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    splits = load_images(str(packed))
    assert splits.parts["train"].images.shape == (21, 6, 6, 1)


def test_class_folders_are_split(tmp_path):
    write_folder(tmp_path, {"dog": 10, "cat": 20, ".hidden": 3})
    (tmp_path / "dog" / "Thumbs.db").write_bytes(b"x")
    splits = load_images(str(tmp_path))
    assert splits.classes == ("cat", "dog")
    assert sizes(splits) == {"train": 21, "validation": 3, "test": 6}
    assert (splits.parts["test"].labels == 0).sum() == 4
    assert any("1 file in" in note and "Thumbs.db" in note for note in splits.notes)


def test_folders_of_parts_are_kept_and_validation_is_taken_from_the_training_part(tmp_path):
    write_folder(tmp_path, {"a": 20, "b": 20}, "train")
    write_folder(tmp_path, {"a": 2, "b": 3}, "test", seed=50)
    splits = load_images(str(tmp_path))
    assert sizes(splits) == {"train": 36, "validation": 4, "test": 5}
    assert "10% for validation, drawn" in splits.source


def test_images_of_mixed_size_are_resized_and_that_is_noted(tmp_path):
    write_folder(tmp_path, {"a": 10}, size=(6, 9))
    write_folder(tmp_path, {"b": 10}, size=(7, 4))
    splits = load_images(str(tmp_path), size=8)
    assert splits.parts["train"].images.shape[1:] == (8, 8, 3)
    assert any("of 2 sizes, up to 9 × 6, and were resized to 8 × 8" in n for n in splits.notes)


def test_images_much_larger_than_the_model_takes_are_resized_and_others_are_kept(tmp_path):
    write_folder(tmp_path, {"a": 10, "b": 10}, size=(12, 16))
    assert load_images(str(tmp_path), size=8).parts["train"].images.shape[1:] == (12, 16, 3)
    small = load_images(str(tmp_path), size=7)
    assert small.parts["train"].images.shape[1:] == (7, 7, 3)
    assert any("of 16 × 12 and were resized" in note for note in small.notes)


def test_a_photograph_that_lies_on_its_side_is_turned_upright(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(10):
            picture = Image.fromarray(pixels(1, (4, 8), seed=index)[0])
            exif = Image.Exif()
            exif[0x0112] = 6
            picture.save(tmp_path / name / f"{index}.png", exif=exif)
    assert load_images(str(tmp_path)).parts["train"].images.shape[1:] == (8, 4, 3)


@pytest.mark.parametrize("names", [None, ["ant", "bee"]], ids=["numbers", "named"])
def test_parquet_files_of_the_hubs_form_are_read(tmp_path, names):
    features = None
    if names is not None:
        kinds = {"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=names)}
        features = datasets.Features({**kinds, "coarse_label": datasets.Value("int64")})
    for part, count in (("train", 20), ("test", 6)):
        images = [{"bytes": png(one), "path": None} for one in pixels(count, seed=count)]
        labels = [index % 2 for index in range(count)]
        if names is None:
            rows = {"image": images, "label": labels}
        else:
            rows = {"img": images, "fine_label": labels, "coarse_label": [0] * count}
        (tmp_path / "data").mkdir(exist_ok=True)
        write_parquet(tmp_path / "data" / f"{part}-00000-of-00001.parquet", rows, features)
    splits = load_images(str(tmp_path))
    assert sizes(splits) == {"train": 18, "validation": 2, "test": 6}
    assert splits.classes == tuple(names or ("0", "1"))
    expected = {one.tobytes() for one in pixels(6, seed=6)}
    assert {one.tobytes() for one in splits.parts["test"].images} == expected


def test_labels_in_words_become_classes(tmp_path):
    images = [{"bytes": png(one), "path": None} for one in pixels(30)]
    path = write_parquet(tmp_path / "x.parquet", {"image": images, "label": ["no", "yes"] * 15})
    assert load_images(str(path)).classes == ("no", "yes")


def test_a_hub_set_is_read_by_its_parts(monkeypatch):
    def rows(count):
        images = [{"bytes": png(one), "path": None} for one in pixels(count, seed=count)]
        features = datasets.Features(
            {"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
        )
        made = {"img": images, "label": [index % 2 for index in range(count)]}
        return datasets.Dataset.from_dict(made, features=features)

    sets = {"train": rows(10), "valid": rows(4), "test": rows(6)}
    monkeypatch.setattr(image_files, "load_hub_sets", lambda source: sets)
    splits = load_images("owner/name")
    assert sizes(splits) == {"train": 10, "validation": 4, "test": 6}
    assert splits.classes == ("a", "b")


def test_images_of_the_test_part_that_stand_in_the_training_part_are_noted(tmp_path):
    write_npz(tmp_path / "train.npz", pixels(30))
    write_npz(tmp_path / "validation.npz", pixels(9, seed=1))
    write_npz(tmp_path / "test.npz", np.concatenate([pixels(6), pixels(6, seed=2)]))
    (note,) = load_images(str(tmp_path)).notes
    assert note.startswith("50% of the test part's images stand in an earlier part")


MISTAKES = {
    "float labels": ({"labels": np.zeros(30)}, "labels of .* are float64: expected whole numbers"),
    "negative": ({"labels": np.arange(30) % 3 - 1}, r"label -1 .*: expected 0 to 29, with as many"),
    "too large": (
        {"labels": np.arange(30) % 4, "class_names": np.array(list("abc"))},
        "has the label 3: expected 0 to 2, one for each of the 3 classes",
    ),
    "beyond all images": ({"labels": np.arange(30) * 10}, "has the label 30: expected 0 to"),
    "one class": ({"labels": np.zeros(30, dtype=int)}, "images of one class alone"),
    "too few labels": ({"labels": np.arange(29)}, "30 images and labels of shape"),
    "float images": ({"images": np.zeros((30, 4, 4))}, "are float64: expected uint8, 0 to 255"),
    "channels first": (
        {"images": np.zeros((30, 3, 4, 4), dtype=np.uint8)},
        r"shape \(30, 3, 4, 4\).*transpose\(0, 2, 3, 1\) puts them last",
    ),
    "empty": ({"images": pixels(0), "labels": np.zeros(0, dtype=int)}, "is empty"),
    "too few of a class": ({"images": pixels(4), "labels": np.arange(4) % 2}, "too few images"),
    "pickled": ({"labels": np.array([None] * 30)}, "cannot be read as images and labels"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_an_npz_file_are_named(tmp_path, mistake):
    content, says = MISTAKES[mistake]
    with pytest.raises(ValueError, match=says):
        load_images(str(write_npz(tmp_path / "x.npz", **content)))


def test_an_npz_file_without_labels_and_one_that_is_none_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", images=pixels(3), y=np.arange(3))
    with pytest.raises(ValueError, match="it has no labels, only images, y"):
        load_images(str(tmp_path / "x.npz"))
    (tmp_path / "x.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="cannot be read as images and labels"):
        load_images(str(tmp_path / "x.npz"))


@pytest.mark.parametrize(
    ("test", "says"),
    [
        (pixels(6, channels=1), "colour images for training and grey ones for test"),
        (pixels(6, size=(5, 5)), "6 × 6 for training and of 5 × 5 for test"),
        (pixels(0), "the test part of .* is empty"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(tmp_path, test, says):
    write_npz(tmp_path / "train.npz")
    write_npz(tmp_path / "test.npz", test)
    with pytest.raises(ValueError, match=says):
        load_images(str(tmp_path))


def test_a_class_in_the_test_part_alone_is_refused(tmp_path):
    write_npz(tmp_path / "train.npz", labels=np.arange(30) % 2)
    write_npz(tmp_path / "test.npz", pixels(6, seed=1))
    with pytest.raises(ValueError, match=r"the test part of .* has images of 2, and the training"):
        load_images(str(tmp_path))
    folder = tmp_path / "folder"
    write_folder(folder, {"a": 10, "b": 10}, "train")
    write_folder(folder, {"a": 2, "c": 2}, "test", seed=50)
    with pytest.raises(ValueError, match=r"the test part of .* has the class c, and the training"):
        load_images(str(folder))


def test_a_damaged_image_file_is_named(tmp_path):
    write_folder(tmp_path, {"a": 10, "b": 10})
    (tmp_path / "b" / "3.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"b/3\.png is not an image that can be read"):
        load_images(str(tmp_path))
    # Its header is whole, its pixels are not.
    whole = png(pixels(1, size=(64, 64))[0])
    (tmp_path / "b" / "3.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"b/3\.png is not an image that can be read"):
        load_images(str(tmp_path))


def test_grey_and_colour_image_files_together_are_refused(tmp_path):
    write_folder(tmp_path, {"a": 10})
    write_folder(tmp_path, {"b": 10}, channels=1)
    with pytest.raises(ValueError, match=r"grey images and colour images, such as .*b/0\.png and"):
        load_images(str(tmp_path))


def test_images_of_sixteen_bits_are_refused(tmp_path):
    write_folder(tmp_path, {"a": 10, "b": 10}, channels=1)
    deep = Image.fromarray(np.arange(36, dtype=np.uint16).reshape(6, 6) * 1000)
    deep.save(tmp_path / "a" / "0.png")
    with pytest.raises(ValueError, match=r"a/0\.png has more than 8 bits a channel"):
        load_images(str(tmp_path))


def test_columns_that_are_missing_are_named(tmp_path):
    images = [{"bytes": png(one), "path": None} for one in pixels(4)]
    path = write_parquet(tmp_path / "x.parquet", {"image": images, "answer": [0, 1, 0, 1]})
    with pytest.raises(ValueError, match=r"no column of labels \(columns: image, answer\)"):
        load_images(str(path))
    path = write_parquet(tmp_path / "y.parquet", {"photo": images, "label": [0, 1, 0, 1]})
    with pytest.raises(ValueError, match="no column of images"):
        load_images(str(path))
    path.write_bytes(b"no table")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        load_images(str(path))


def test_what_is_not_there_is_said_with_what_to_give(tmp_path):
    with pytest.raises(FileNotFoundError, match="Give a folder of images"):
        load_images(str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match="expected one for each class"):
        load_images(str(tmp_path))
    with pytest.raises(ValueError, match="empty name"):
        load_images(" ")
    (tmp_path / "x.zip").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"neither \.npz nor \.parquet"):
        load_images(str(tmp_path / "x.zip"))
    write_npz(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"none is called train\.npz"):
        load_images(str(tmp_path))
    write_folder(tmp_path / "folder", {"a": 10, "b": 0})
    with pytest.raises(FileNotFoundError, match="b has no image"):
        load_images(str(tmp_path / "folder"))


@pytest.mark.parametrize(("module", "what"), [("sklearn.datasets", None), ("PIL", "folder")])
def test_a_missing_package_is_named_with_the_extra(tmp_path, monkeypatch, module, what):
    write_folder(tmp_path, {"a": 10, "b": 10})
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r'pip install "neural-attention\[images\]"'):
        load_images(str(tmp_path) if what else None)


def test_prepared_images_are_read_again_and_made_again_when_damaged(tmp_path):
    splits, said = load_images(), []
    first = prepare_images(splits, tmp_path, said.append)
    train = first.load("train")
    assert np.array_equal(train.images, splits.parts["train"].images)
    assert np.array_equal(train.labels, splits.parts["train"].labels)
    assert prepare_images(splits, tmp_path, said.append) == first
    assert not said
    labels = train.labels.copy()
    labels[0] += 1
    np.save(f"{first.folder}/train-labels.npy", labels)
    assert prepare_images(splits, tmp_path, said.append) == first
    assert "are damaged: set aside" in said[0]
    assert np.array_equal(first.load("train").labels, splits.parts["train"].labels)
    assert PreparedImages.of({**vars(first), "source": "more"}) == first
