"""Make a sample of RCV1-v2 in two classes, for experiment E8.

    python make_rcv1.py ORIGINALS OUT     ORIGINALS/lyrl2004_vectors_train.dat.gz, lyrl2004_vectors_test_pt0.dat.gz and
                                          rcv1-v2.topics.qrels.gz -> OUT/rcv1/rcv1-binary-sample.npz

The originals are those of Lewis, Yang, Rose and Li, "RCV1: A new benchmark collection for text categorization
research", JMLR 5 (2004), online appendices 13 and 8 (research use); scikit-learn's `fetch_rcv1` reads the same files. A
line of vectors is a document's number and its terms, `2286  864:0.0497 …`; a line of topics is `E11 2286 1`.

+1 is a document with the topic CCAT or ECAT, -1 one with GCAT or MCAT; those with topics of both sides are left out. Of
the rest the first 23,749 are taken, in the order of the files.

The figures of docs/results/e8.md are of another sample, cut from five public subsets of the same collection in which
documents have no numbers: as many rows with the same columns, weights and rule for the labels, but other documents.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from originals import Array, main, save

from fedzero.errors import FedzeroError
from fedzero_papers.tasks.rcv1 import FILE

VECTORS = ("lyrl2004_vectors_train.dat.gz", "lyrl2004_vectors_test_pt0.dat.gz")
TOPICS = "rcv1-v2.topics.qrels.gz"
TERMS, ROWS = 47_236, 23_749
SIDES = {"CCAT": 1, "ECAT": 1, "GCAT": -1, "MCAT": -1}


def sides(path: Path) -> dict[int, set[int]]:
    """Of every document: +1 and -1, as its topics say."""
    found: dict[int, set[int]] = {}
    with gzip.open(path, "rt", encoding="ascii") as file:
        for line in file:
            topic, document, _ = line.split()
            if topic in SIDES:
                found.setdefault(int(document), set()).add(SIDES[topic])
    return found


def documents(paths: list[Path]) -> Iterator[tuple[int, list[str]]]:
    for path in paths:
        with gzip.open(path, "rt", encoding="ascii") as file:
            for line in file:
                number, *terms = line.split()
                yield int(number), terms


def make(originals: Path, out: Path, rows: int = ROWS) -> None:
    indices: list[Array] = []
    values: list[Array] = []
    labels: list[int] = []
    try:
        known = sides(originals / TOPICS)
        for number, terms in documents([originals / name for name in VECTORS]):
            if len(labels) == rows:
                break
            if len(known.get(number, ())) == 1:
                pairs = np.array([term.split(":") for term in terms]).reshape(-1, 2)
                indices.append(pairs[:, 0].astype(np.int64) - 1)
                values.append(pairs[:, 1].astype(np.float32))
                labels += known[number]
    except (ValueError, EOFError, UnicodeDecodeError) as error:
        raise FedzeroError(f"{originals} does not hold the originals: {error}") from error
    if len(labels) < rows:
        raise FedzeroError(f"{rows} rows are wanted, but the files have only {len(labels)}: are they complete?")
    columns = np.concatenate(indices)
    if columns.min() < 0 or columns.max() >= TERMS:
        raise FedzeroError(f"{originals} does not hold the originals: a term is not among 1 to {TERMS}")
    arrays: dict[str, Array] = {
        "indptr": np.cumsum([0, *map(len, indices)]).astype(np.int32),
        "indices": columns.astype(np.uint16),
        "data": np.concatenate(values),
        "y": np.array(labels, np.int8),
        "shape": np.array([rows, TERMS]),
    }
    save(out / FILE, arrays)


if __name__ == "__main__":
    main(make, __doc__)
