"""Writes tests/goldens/tokenizers: texts and the ids that transformers' tokenizers give them.

Usage: python make_tokenizers.py [MODEL]   (MODEL: a checkpoint with tokenizer and tokenizer_2)

The random texts and the layouts of tokenizer folders are also used by
tests/python/test_tokenizers.py.
"""

import json
import random
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEMO_MODEL = HERE.parents[1] / "models" / "emoji-flux"

# ---------------------------------------------------------------------------------------------
# Texts

FIXED_TEXTS = [
    "",
    " ",
    "\n\t  \r\n",
    "a cat",
    "A  CAT\n",
    "red apple",
    "a red heart emoji icon of a face with a picture",
    "forêt enneigée, café à côté",
    "fore\u0302t enneige\u0301e, cafe\u0301 a\u0300 co\u0302te\u0301",
    "FORÊT ENNEIGÉE, CAFÉ À CÔTÉ",
    "👩\u200d🚀",
    "👨\u200d👩\u200d👧\u200d👦 family, 🏳\ufe0f\u200d🌈 flag, 🇫🇷 France, 👍🏽 thumb",
    "雪の降る森、静かな夜",
    "一只红色的苹果 한국어 사과 ひらがなカタカナ",
    "e\u0301 vs \u00e9; A\u030a vs \u00c5 vs \u212b; o\u0323\u0302 vs o\u0302\u0323 vs \u1ed9",
    "q\u0307\u0323 and q\u0323\u0307, \u1112\u1161\u11ab = \ud55c",
    "\uff41\u0301 \uff21\u0308 \u00bd\u0301 \ufb01sh \u2460 \u3392 \ufdfa \uff8a\uff9f",
    "İstanbul ıI ß ẞ STRASSE ΣΊΣΥΦΟΣ ὈΔΥΣΣΕΎΣ ǅ Ǆ Ꭰ ᲀ",
    "it's don't we're I've I'm we'll she'd IT'S DON'T WE'RE I'VE I'M WE'LL SHE'D",
    "'s 't 're ''s '' ' rock'n'roll 'tis !'s x'y 's's",
    "0123456789 3.14 1,000 x2 ٣ ४ ² ½ Ⅷ 〇",
    "price: $5.99 (20% off) #art @user a_b-c/d\\e [x] {y} <z> ~`^|&*+=?!.,;:\"",
    "<|endoftext|>",
    "a cat <|endoftext|> a dog",
    "a cat<|endoftext|>a dog<|startoftext|><|endoftext|>",
    "<|STARTOFTEXT|> <|EndOfText|>!! !<|ENDOFTEXT|> <|startoftext|",
    "a </s> b</s>c <pad> d<pad><unk>e <unk>",
    "</s></s> <s> </S> <PAD>",
    "\uff1cunk\uff1e red\uff1c/s\uff1ex <\uff50ad> \uff1cextra_id_0\uff1e",
    "<extra_id_0> a <extra_id_99>b<extra_id_1>  <extra_id_100>",
    "a \u00a0\u2003\u3000b\u200bc\u2028d\u2029e\x85f\x1cg\x0bh\x0ci\ufeffj",
    "\x00",
    "a\x00b \x00 c",
    "\x01\x02\x1f\x7f a\x08b\x9f",
    "soft\u00adhyphen zero\u200dwidth \u200ejoiner \ufffd \uffff \U0010ffff",
    "\u2581 a\u2581b \u2581\u2581c _ __",
    "Ġ Ċ ÿ Ā ł </w> cat</w>",
    "x" * 100,
    "aaaaabbbbbcaeeeeeeeeooooooo......!!!!!!!!",
    "🍎" * 30,
    "\u0301\u0301\u0301",
    "a" + "\u0301" * 40,
    " ".join(["a photo of a red apple on a table"] * 12),
    " ".join(f"word{i}" for i in range(400)),
    "\u07fd\u0301\u0898\u0316 q\u0301\u0d3b\u0316 q\u0301\u1abf\u0316",
    "\u1c89\ua7cb\ua7cc\ua7dc \U00010d50\U00010d6f \U00016d40\U00016d70 \U00016ea0",
]

SPECIALS = [
    "<|startoftext|>", "<|endoftext|>", "<|ENDOFTEXT|>", "<|StartOfText|>", "</s>", "<pad>",
    "<unk>", "<s>", "<extra_id_0>", "<extra_id_1>", "<extra_id_42>", "<extra_id_99>", "!",
    "\uff1c/s\uff1e", "\uff1cunk>", "<|endoftext", "|>", "</w>",
]  # fmt: skip
WORDS = [
    "red", "apple", "Emoji", "ICON", "picture", "of", "a", "with", "heart", "face", "billiards",
    "it's", "DON'T", "we'll", "I'd", "they've", "'s", "'", "123", "4.5", "x2", "forêt", "café",
    "cafe\u0301", "naïve", "Straße", "ΟΔΟΣ", "İzmir", "ﬁne", "…", "—", "“quote”", "№",
]  # fmt: skip
SPACES = [
    " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\x0b", "\x85",
]  # fmt: skip
ALPHABETS = {
    "ascii": [chr(c) for c in range(0x20, 0x7F)],
    "letters": list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "repeats": list("aeo.!"),
    "latin": [chr(c) for c in range(0xA0, 0x250)],
    "greek_cyrillic": [chr(c) for c in range(0x370, 0x530) if chr(c).isprintable()],
    "cjk": [
        chr(c) for c in (*range(0x3041, 0x3100), *range(0x4E00, 0x4F00), *range(0xAC00, 0xAC80))],
    "jamo": [
        chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3))],
    "width": [chr(c) for c in range(0xFF00, 0xFFF0)],
    "emoji": list("😀🍎🚀👩👨👧🏽🏿🇫🇷❤⭐") + ["\u200d", "\ufe0f", "\u20e3"],
    "marks": list("aeioucnAEqｅ１") + [
        chr(c) for c in (*range(0x300, 0x330), 0x345, 0x591, 0x5B0, 0x64B)],
    "indic": [chr(c) for c in (*range(0x905, 0x940), *range(0x93E, 0x94E), 0x200D, 0x200C)],
    "controls": [
        chr(c)
        for c in (*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x200B, 0x200E, 0x2060, 0xFEFF)],
    "digits": list("0123456789٣४²½Ⅷ①"),
    "punctuation": list("'\"!?.,;:-_()[]{}<>|/\\@#$%^&*+=~`…—“”‘’•"),
}  # fmt: skip


def random_character(rng: random.Random) -> str:
    """Any character but a surrogate, with more of the first planes."""
    while True:
        code = rng.randrange(rng.choice([0x250, 0x3000, 0x10000, 0x20000, 0x110000]))
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def random_text(rng: random.Random) -> str:
    """A text of random parts: words, runs of one alphabet, special tokens, white space."""
    parts = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 40])):
        kind = rng.random()
        if kind < 0.30:
            parts.append(rng.choice(WORDS))
        elif kind < 0.75:
            alphabet = ALPHABETS[rng.choice(list(ALPHABETS))]
            parts.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 12))))
        elif kind < 0.85:
            parts.append("".join(random_character(rng) for _ in range(rng.randint(1, 4))))
        else:
            parts.append(rng.choice(SPECIALS))
        if rng.random() < 0.6:
            parts.append(rng.choice(SPACES) if rng.random() < 0.4 else " ")
    text = "".join(parts)
    if rng.random() < 0.1:
        text = text.upper()
    return text if rng.random() < 0.98 else text * 30


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [random_text(rng) for _ in range(count)]


# ---------------------------------------------------------------------------------------------
# Folders: as the checkpoint has them, and as other checkpoints lay them out


def token(content: str, **flags) -> dict:
    defaults = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": content, **defaults, **flags}


def special(content: str, **flags) -> dict:
    return token(content, special=True, **flags)


def clip_layouts(vocabulary: dict[str, int]) -> dict[str, dict]:
    """The files that each layout has besides vocab.json and merges.txt."""
    start, end = vocabulary["<|startoftext|>"], vocabulary["<|endoftext|>"]
    config = {
        "add_prefix_space": False,
        "bos_token": "<|startoftext|>",
        "clean_up_tokenization_spaces": True,
        "do_lower_case": True,
        "eos_token": "<|endoftext|>",
        "errors": "replace",
        "model_max_length": 77,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "CLIPTokenizer",
        "unk_token": "<|endoftext|>",
    }
    decoder = {
        str(start): special("<|startoftext|>", normalized=True),
        str(end): special("<|endoftext|>"),
    }
    special_map = {
        "bos_token": token("<|startoftext|>", normalized=True),
        "eos_token": token("<|endoftext|>"),
        "pad_token": "!",
        "unk_token": token("<|endoftext|>", normalized=True),
    }
    odd = {
        str(end + 1): special("<Apple Pie>", normalized=True, rstrip=True),
        str(end + 2): special("cat", single_word=True),
        str(end + 3): special("日", lstrip=True, rstrip=True),
    }
    return {
        "bare": {},
        "flux1": {"tokenizer_config.json": {**config, "added_tokens_decoder": decoder}},
        "padded_with_a_mark": {
            "tokenizer_config.json": config,
            "special_tokens_map.json": special_map,
        },
        "more_tokens": {
            "tokenizer_config.json": {**config, "added_tokens_decoder": {**decoder, **odd}}
        },
    }


def t5_layouts(pieces: int) -> dict[str, dict]:
    """The files that each layout has besides spiece.model."""
    sentinels = [f"<extra_id_{i}>" for i in range(100)]
    decoder = {"0": special("<pad>"), "1": special("</s>"), "2": special("<unk>")}
    for i in range(100):
        decoder[str(pieces + i)] = special(f"<extra_id_{99 - i}>", lstrip=True, rstrip=True)
    flux1 = {
        "add_prefix_space": True,
        "added_tokens_decoder": decoder,
        "additional_special_tokens": sentinels,
        "clean_up_tokenization_spaces": True,
        "eos_token": "</s>",
        "extra_ids": 100,
        "legacy": True,
        "model_max_length": 512,
        "pad_token": "<pad>",
        "sp_model_kwargs": {},
        "tokenizer_class": "T5Tokenizer",
        "unk_token": "<unk>",
    }
    return {
        "bare": {},
        "flux1": {"tokenizer_config.json": flux1},
        "few_sentinels": {
            "tokenizer_config.json": {"extra_ids": 5, "model_max_length": 1e30},
            "special_tokens_map.json": {"eos_token": token("</s>", lstrip=True)},
        },
    }


def layouts(model: Path) -> dict[str, dict[str, dict]]:
    from sentencepiece import SentencePieceProcessor

    vocabulary = json.loads((model / "tokenizer" / "vocab.json").read_text())
    pieces = SentencePieceProcessor(model_file=str(model / "tokenizer_2" / "spiece.model"))
    return {"clip": clip_layouts(vocabulary), "t5": t5_layouts(pieces.get_piece_size())}


def make_folder(kind: str, files: dict, model: Path, folder: Path) -> Path:
    """A tokenizer folder of a layout, with the vocabulary of `model`."""
    folder.mkdir(parents=True)
    if kind == "clip":
        shutil.copy(model / "tokenizer" / "vocab.json", folder)
        shutil.copy(model / "tokenizer" / "merges.txt", folder)
    else:
        shutil.copy(model / "tokenizer_2" / "spiece.model", folder)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


# ---------------------------------------------------------------------------------------------
# The reference


def load_reference(kind: str, folder: Path):
    from transformers import CLIPTokenizer, T5Tokenizer

    return {"clip": CLIPTokenizer, "t5": T5Tokenizer}[kind].from_pretrained(str(folder))


def reference_ids(tokenizer, text: str, max_length: int) -> list[int]:
    encoded = tokenizer(text, padding="max_length", max_length=max_length, truncation=True)
    return encoded.input_ids


def cases(tokenizer, texts: list[str], lengths: list[int]) -> list[dict]:
    result = []
    for i, text in enumerate(texts):
        length = lengths[i % len(lengths)]
        ids = reference_ids(tokenizer, text, length)
        used = tokenizer(text, max_length=length, truncation=True).input_ids
        result.append({"text": text, "max_length": length, "used": len(used), "ids": ids})
    return result


def write(path: Path, content) -> None:
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in content.pop("cases"))
    head = json.dumps(content)
    path.write_text(head[:-1] + (", " if content else "") + '"cases": [\n' + lines + "\n]}\n")
    print(path, path.stat().st_size)


def main() -> None:
    import tempfile

    model = Path(sys.argv[1]) if len(sys.argv) > 1 else DEMO_MODEL
    out = HERE / "tokenizers"
    out.mkdir(exist_ok=True)
    texts = FIXED_TEXTS + [text for text in random_texts(7, 260) if len(text) < 400]
    for kind, folder, lengths in (
        ("clip", "tokenizer", [24, 77, 12]),
        ("t5", "tokenizer_2", [24, 60, 9]),
    ):
        tokenizer = load_reference(kind, model / folder)
        write(out / f"{kind}.json", {"cases": cases(tokenizer, texts, lengths)})
    with tempfile.TemporaryDirectory() as scratch:
        extra = FIXED_TEXTS[3:5] + FIXED_TEXTS[22:30] + [
            "a <apple  pie>  日 cat concat cat! CAT  日  b <APPLE PIE>x <extra_id_3>  </s>y !",
            "ECLAIR E\u0301 cat_ cat\u0301 (cat)cat <Apple Pie> <apple pie>",
        ] + [text for text in random_texts(8, 14) if len(text) < 400]
        for kind, named in layouts(model).items():
            for name, files in named.items():
                tokenizer = load_reference(
                    kind, make_folder(kind, files, model, Path(scratch) / f"{kind}_{name}"))
                write(out / f"{kind}_{name}.json",
                      {"files": files, "cases": cases(tokenizer, extra, [40])})


if __name__ == "__main__":
    main()
