"""Tokenizers give the ids of transformers' CLIPTokenizer and T5Tokenizer on random texts."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "goldens"))
import make_tokenizers as maker  # noqa: E402

DEMO_FOLDERS = {"clip": "tokenizer", "t5": "tokenizer_2"}
LAYOUTS = [
    (kind, name) for kind, named in maker.layouts(maker.DEMO_MODEL).items() for name in named
]


def encode(
    probe: Path, kind: str, folder: Path, texts: list[str], lengths: list[int]
) -> list[dict]:
    requests = [
        json.dumps({"text": text, "max_length": length}) for text, length in zip(texts, lengths)
    ]
    run = subprocess.run(
        [probe, "tokenize", kind, folder],
        input="\n".join(requests) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def check(probe: Path, kind: str, folder: Path, texts: list[str], seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.choice([2, 3, 24, 64, 77, 512]) for _ in texts]
    reference = maker.load_reference(kind, folder)
    results = encode(probe, kind, folder, texts, lengths)
    assert len(results) == len(texts)
    for text, length, result in zip(texts, lengths, results):
        expected = maker.reference_ids(reference, text, length)
        assert result.get("ids") == expected, (ascii(text), length, result)
        unlimited = len(reference(text).input_ids)
        assert result["used"] == min(unlimited, length), ascii(text)
        assert (result["cut"] == "") == (unlimited <= length), (ascii(text), result["cut"])
        assert result["cut"] in text


@pytest.mark.parametrize("kind", ["clip", "t5"])
def test_shipped_tokenizers_agree_on_random_texts(probe_path, demo_model, kind):
    texts = maker.FIXED_TEXTS + maker.random_texts(seed=20, count=2200)
    check(probe_path, kind, demo_model / DEMO_FOLDERS[kind], texts, seed=21)


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_other_layouts_agree_on_random_texts(probe_path, demo_model, tmp_path, kind, layout):
    files = maker.layouts(demo_model)[kind][layout]
    folder = maker.make_folder(kind, files, demo_model, tmp_path / "tokenizer")
    texts = maker.FIXED_TEXTS + maker.random_texts(seed=22, count=300)
    check(probe_path, kind, folder, texts, seed=23)


@pytest.mark.parametrize("kind", ["clip", "t5"])
def test_every_character_agrees(probe_path, demo_model, kind):
    """Character classes, case, composition and clusters, over all of Unicode but CJK's middle."""
    folder = demo_model / DEMO_FOLDERS[kind]
    codes = [
        *range(0xD800),
        *range(0xE000, 0x20010),
        *range(0x2EBE0, 0x2EE70),
        *range(0xE0000, 0xE0200),
    ]
    texts = [f"E\u0301{chr(code)}\u0316A\uff41{chr(code)}" for code in codes]
    expected = maker.load_reference(kind, folder)(
        texts, padding="max_length", max_length=24, truncation=True
    ).input_ids
    results = encode(probe_path, kind, folder, texts, [24] * len(texts))
    wrong = [
        f"{code:X}" for code, want, got in zip(codes, expected, results) if got.get("ids") != want
    ]
    assert not wrong


def test_lengths_without_room_are_refused(probe_path, demo_model):
    for kind, smallest in (("clip", 2), ("t5", 1)):
        folder = demo_model / DEMO_FOLDERS[kind]
        results = encode(probe_path, kind, folder, ["a cat"] * 3, [smallest, smallest - 1, -5])
        assert len(results[0]["ids"]) == smallest
        assert all("max_length must be from" in result["error"] for result in results[1:])
