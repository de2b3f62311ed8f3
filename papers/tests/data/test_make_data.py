"""The scripts that make the data files, on small files in the originals' formats; tasks read what they make."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path

import make_cifar10
import make_covertype
import make_rcv1
import numpy as np
import pytest

from fedzero.errors import FedzeroError
from fedzero.model.files import load_arrays
from fedzero_papers.tasks import cifar, covertype, rcv1

GENERATOR = np.random.default_rng(3)

# ---- CIFAR-10


def string(text: bytes) -> bytes:
    """A string as Python 2 pickled it."""
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def pickled(pixels: np.ndarray, labels: list[int]) -> bytes:
    """{"data": pixels, "labels": labels} by the opcodes of the original: protocol 2, strings of Python 2."""
    dtype = (
        b"cnumpy\ndtype\n("
        + string(b"u1")
        + b"K\x00K\x01tR(K\x03"
        + string(b"|")
        + b"NNN"
        + 2 * number(-1)
        + b"K\x00tb"
    )
    shape = b"(" + b"".join(map(number, pixels.shape)) + b"t"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + string(b"b") + b"tR"
    state = b"(K\x01" + shape + dtype + b"\x89" + string(pixels.tobytes()) + b"tb"
    listed = b"](" + b"".join(map(number, labels)) + b"e"
    pairs = (
        string(b"data") + array + state + string(b"labels") + listed + string(b"batch_label") + string(b"batch 1 of 5")
    )
    return b"\x80\x02}(" + pairs + b"u."


def cifar_archive(folder: Path, **replaced: bytes) -> list[tuple[np.ndarray, list[int]]]:
    """Six batches of twenty images, two of each class, in a random order."""
    made = []
    with tarfile.open(folder / make_cifar10.ORIGINAL, "w:gz") as archive:
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            made.append((GENERATOR.integers(0, 256, (20, 3072), np.uint8), (GENERATOR.permutation(20) % 10).tolist()))
            content = replaced.get(name, pickled(*made[-1]))
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made


def test_cifar_has_the_first_images_of_each_class_in_order(tmp_path):
    made = cifar_archive(tmp_path)
    make_cifar10.make(tmp_path, tmp_path / "out", train=3, test=1)
    images = cifar.load(tmp_path / "out")
    where, tested = load_arrays(tmp_path / "out" / cifar.FILE, "idx_train", "idx_test")
    pixels, labels = np.concatenate([x for x, _ in made[:5]]), np.concatenate([y for _, y in made[:5]])
    assert images.train_x.shape == (30, 32, 32, 3)
    assert np.bincount(images.train_y).tolist() == [3] * 10
    assert where.tolist() == sorted(i for c in range(10) for i in np.flatnonzero(labels == c)[:3])
    assert images.train_y.tolist() == labels[where].tolist()
    # The original has all red values first, row by row.
    assert images.train_x[7, 5, 11].tolist() == [pixels[where[7], c * 1024 + 5 * 32 + 11] for c in range(3)]
    assert sorted(images.test_y.tolist()) == list(range(10))
    assert images.test_y.tolist() == [made[5][1][i] for i in tested]


def test_cifar_again_is_the_same_file(tmp_path):
    cifar_archive(tmp_path)
    for name in ("one", "two"):
        make_cifar10.make(tmp_path, tmp_path / name, 1, 1)
    assert (tmp_path / "one" / cifar.FILE).read_bytes() == (tmp_path / "two" / cifar.FILE).read_bytes()


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    marker = tmp_path / "ran"
    cifar_archive(tmp_path, data_batch_3=b"cos\nsystem\n(" + string(f"touch {marker}".encode()) + b"tR.")
    with pytest.raises(FedzeroError, match=r"asks for os.system"):
        make_cifar10.make(tmp_path, tmp_path / "out", 1, 1)
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x02}.", pickled(np.zeros((1, 30), np.uint8), [0])])
def test_a_batch_that_is_none_is_refused(tmp_path, content):
    cifar_archive(tmp_path, test_batch=content)
    with pytest.raises(FedzeroError, match="is not the original"):
        make_cifar10.make(tmp_path, tmp_path / "out", 1, 1)


# ---- Covertype


def covertype_rows(count: int) -> np.ndarray:
    """Rows of the original, (n, 55); classes 1 to 7 in turn."""
    numeric = GENERATOR.integers(-173, 7173, (count, 10))
    area, soil = (np.eye(n, dtype=np.int64)[GENERATOR.integers(0, n, count)] for n in (4, 40))
    return np.concatenate([numeric, area, soil, 1 + np.arange(count)[:, None] % 7], axis=1)


def write_rows(folder: Path, rows: np.ndarray) -> None:
    text = "".join(",".join(map(str, row)) + "\n" for row in rows.tolist())
    (folder / make_covertype.ORIGINAL).write_bytes(gzip.compress(text.encode()))


def test_covertype_is_stored_without_loss(tmp_path):
    rows = covertype_rows(140)
    write_rows(tmp_path, rows)
    make_covertype.make(tmp_path, tmp_path / "out", split=(42, 28), subset=(2, 3))
    numeric, area, soil, y = load_arrays(tmp_path / "out" / covertype.FILE, "num", "wilderness", "soil", "y")
    again = np.concatenate([numeric.T, np.eye(4)[area], np.eye(40)[soil], y[:, None]], axis=1)
    np.testing.assert_array_equal(again, rows)
    assert [a.dtype for a in (numeric, area, soil, y)] == [np.int16, np.uint8, np.uint8, np.uint8]
    numeric, _, _, y = load_arrays(tmp_path / "out/covertype/covertype-subset.npz", "num", "wilderness", "soil", "y")
    chosen = [*range(14), *range(70, 91)]  # two of each class among the first 42, three of each from row 71 on
    np.testing.assert_array_equal(numeric.T, rows[chosen, :10])
    np.testing.assert_array_equal(y, rows[chosen, -1])


@pytest.mark.parametrize(("column", "value"), [(12, 1), (20, 3), (10, -1)])
def test_rows_of_no_area_or_of_two_are_refused(tmp_path, column, value):
    rows = covertype_rows(14)
    rows[5, 10:54], rows[5, [11, 30]], rows[5, column] = 0, 1, value
    write_rows(tmp_path, rows)
    with pytest.raises(FedzeroError, match="not the original"):
        make_covertype.make(tmp_path, tmp_path / "out", (7, 0), (1, 1))


def test_the_packaged_subset_is_what_the_script_makes(full_data, tmp_path):
    """From the rows of the data folder, written as the original has them."""
    names = "num", "wilderness", "soil", "y"
    stored = load_arrays(full_data(covertype.FILE) / covertype.FILE, *names)
    train, test = covertype.TRAIN, covertype.TRAIN + covertype.VALIDATION
    some = np.sort(np.concatenate([np.flatnonzero(stored[3][test:] == label)[:300] for label in range(1, 8)]))
    numeric, area, soil, y = (array[..., np.r_[0:train, test + some]].astype(np.int64) for array in stored)
    rows = np.concatenate([numeric.T, np.eye(4, dtype=int)[area], np.eye(40, dtype=int)[soil], y[:, None]], axis=1)
    write_rows(tmp_path, rows)
    make_covertype.make(tmp_path, tmp_path / "out", split=(train, 0))
    made = load_arrays(tmp_path / "out/covertype/covertype-subset.npz", *names)
    packaged = load_arrays(Path(covertype.__file__).parents[1] / covertype.SUBSET, *names)
    for ours, theirs in zip(made, packaged, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# ---- RCV1


def rcv1_originals(folder: Path, documents: dict[int, str], topics: str) -> None:
    half = len(documents) // 2
    for name, part in zip(make_rcv1.VECTORS, (list(documents)[:half], list(documents)[half:]), strict=True):
        text = "".join(f"{number}  {documents[number]}\n" for number in part)
        (folder / name).write_bytes(gzip.compress(text.encode()))
    (folder / make_rcv1.TOPICS).write_bytes(gzip.compress(topics.encode()))


DOCUMENTS = {
    2286: "864:0.0497399253756197 1523:0.044664135988103 47236:0.5",
    2287: "1:0.25",
    2288: "2:0.75 9:0.125",
    2289: "3:1",
    2290: "4:0.5 5:0.5",
    2291: "6:1",
}
TOPICS = {2286: "E11 ECAT M11", 2287: "GCAT", 2288: "CCAT MCAT", 2289: "G15", 2290: "MCAT GCAT", 2291: "CCAT"}
QRELS = "".join(f"{topic} {number} 1\n" for number, topics in TOPICS.items() for topic in topics.split())


def test_rcv1_rows_and_labels(tmp_path):
    """2288 has topics of both sides and 2289 none of the four; M11 and G15 are not asked."""
    rcv1_originals(tmp_path, DOCUMENTS, QRELS)
    make_rcv1.make(tmp_path, tmp_path / "out", rows=3)
    rows, labels = rcv1.load(tmp_path / "out")
    assert labels.tolist() == [1, -1, -1]
    assert (len(rows), rows.width) == (3, 47_236)
    assert rows.indices.tolist() == [863, 1522, 47_235, 0, 3, 4]
    assert rows.values.tolist() == [
        float(np.float32(v)) for v in (0.0497399253756197, 0.044664135988103, 0.5, 0.25, 0.5, 0.5)
    ]
    make_rcv1.make(tmp_path, tmp_path / "out", rows=4)
    assert rcv1.load(tmp_path / "out")[1].tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize(
    ("documents", "topics", "rows", "words"),
    [
        (DOCUMENTS, QRELS, 5, "5 rows are wanted, but the files have only 4"),
        (DOCUMENTS | {2286: "47237:1"}, QRELS, 3, "a term is not among 1 to 47236"),
        (DOCUMENTS | {2286: "7=1"}, QRELS, 3, "does not hold the originals"),
        (DOCUMENTS, "E11 2286\n", 3, "does not hold the originals"),
    ],
)
def test_other_files_are_refused(tmp_path, documents, topics, rows, words):
    rcv1_originals(tmp_path, documents, topics)
    with pytest.raises(FedzeroError, match=words):
        make_rcv1.make(tmp_path, tmp_path / "out", rows)
