import json
import struct
from pathlib import Path

import pytest

from pipeline.cluster import tiny_model

# Pinned: the reference answers in records hold for these bytes.
WEIGHTS = "b8ef57e94d8333af0b1217ca9726c63fa1333b9718a7b5972e2f2a84a5f0ba1a"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tiny")
    tiny_model.write_model(folder)
    return folder


def _tensors(folder: Path) -> dict[str, tuple[list[int], tuple[float, ...]]]:
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__")
    data = raw[8 + length :]
    found = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        found[name] = (entry["shape"], struct.unpack(f"<{(end - start) // 4}f", data[start:end]))
    return found


def test_the_weights_are_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    assert tiny_model.write_model(tmp_path)["model.safetensors"] == WEIGHTS


def test_every_written_file_is_named(tmp_path: Path) -> None:
    assert sorted(tiny_model.write_model(tmp_path)) == sorted(file.name for file in tmp_path.iterdir())


def test_the_tensors_follow_an_aligned_header_without_gaps(model: Path) -> None:
    raw = (model / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    offsets = [e["data_offsets"] for n, e in json.loads(raw[8 : 8 + length]).items() if n != "__metadata__"]
    assert length % 8 == 0
    assert [start for start, _ in offsets] == [0, *(end for _, end in offsets[:-1])]
    assert offsets[-1][1] == len(raw) - 8 - length


def test_every_tensor_has_as_many_values_as_its_shape_says(model: Path) -> None:
    for name, (shape, values) in _tensors(model).items():
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        assert len(values) == size, name


def test_no_rank_holds_the_same_share_as_another(model: Path) -> None:
    for name, (shape, values) in _tensors(model).items():
        if len(shape) == 1:
            continue
        rows, columns = shape
        assert values[: len(values) // 2] != values[len(values) // 2 :], f"{name} by rows"
        left = [v for row in range(rows) for v in values[row * columns : row * columns + columns // 2]]
        right = [v for row in range(rows) for v in values[row * columns + columns // 2 : (row + 1) * columns]]
        assert left != right, f"{name} by columns"


def test_the_weights_are_of_ordinary_scale(model: Path) -> None:
    for name, (shape, values) in _tensors(model).items():
        if len(shape) == 2 and "lm_head" not in name:
            assert 0.05 < (sum(v * v for v in values) / len(values)) ** 0.5 < 0.2, name


def test_the_vocabulary_has_no_number_twice_and_fits_the_embedding(model: Path) -> None:
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert len(vocabulary) <= json.loads((model / "config.json").read_text())["vocab_size"]


def test_every_merge_joins_known_tokens_into_a_known_token(model: Path) -> None:
    bpe = json.loads((model / "tokenizer.json").read_text())["model"]
    for left, right in bpe["merges"]:
        assert {left, right, left + right} <= bpe["vocab"].keys()


def test_every_byte_has_a_token(model: Path) -> None:
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    assert len({token for token in vocabulary if len(token) == 1}) == 256


def test_syllables_lie_in_both_halves_of_the_vocabulary(model: Path) -> None:
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    numbers = [vocabulary[syllable] for syllable in tiny_model.SYLLABLES]
    assert min(sum(n < 256 for n in numbers), sum(n >= 256 for n in numbers)) > 20
