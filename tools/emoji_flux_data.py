"""The pictures, the prompts and the tokenizers that tools/train_emoji_flux.py trains with."""

import io
import json
import unicodedata

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

FONT = "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
FONT_SIZE = 109  # the only size at which this bitmap font can be rendered

EMOJI = (
    "🍎🍐🍊🍋🍌🍉🍇🍓🍒🍑🍍🥥🥝🍅🥑🍆🥕🌽🥦🍄🍞🧀🍔🍟🍕🌭🌮🍿🍩🍪🎂🍰🧁🍫🍭🍦☕🍵🍺🍷🥚🍳"
    "🐶🐱🐭🐹🐰🦊🐻🐼🐨🐯🦁🐮🐷🐸🐵🐔🐧🐦🐤🦆🦉🦇🐺🐗🐴🦄🐝🐛🦋🐌🐞🐜🐢🐍🐙🦀🐠🐬🐳🦈🐘🐫"
    "😀😂😍😎😭😡😱😴🤔🥳😇🤖👻👽💀🎃💩❤🧡💛💚💙💜🖤💔⭐🌟⚡🔥❄☀🌈☁⛄💧🌊🌙🌍🌵🌴🌲🍀🌹🌻🌷🌸🍁"
    "🚗🚕🚌🚑🚒🚜🚲✈🚀🚁⛵🚢🚂⚽🏀🏈⚾🎾🎱🎸🎺🎻🥁🎹🎨🎁🎈💎👑🔑🔔💡📷📱💻⌚📚✂⏰🏠🏰⛺🎩👟👓"
)
RENAMED = {"black sun with rays": "sun", "heavy black heart": "red heart"}

# Phrasing -> how often it is drawn. The bare name is twice as likely as any other.
PHRASINGS = {
    "{}": 2,
    "^{}": 1,  # ^ capitalizes the first letter
    "{} emoji": 1,
    "an emoji of a {}": 1,
    "^a picture of a {}": 1,
    "{} icon": 1,
}

SIZE = 128  # pixels
TOKENS = 24  # of both tokenizers


def emoji_name(character):
    name = unicodedata.name(character).lower()
    for long, short in RENAMED.items():
        name = name.replace(long, short)
    return name


def render(character):
    """The glyph on white, [SIZE, SIZE, 3] in [-1, 1]."""
    canvas = Image.new("RGB", (136, 136), "white")
    font = ImageFont.truetype(FONT, FONT_SIZE)
    ImageDraw.Draw(canvas).text((0, 4), character, font=font, embedded_color=True)
    return np.asarray(canvas.resize((SIZE, SIZE), Image.LANCZOS), np.float32) / 127.5 - 1


def load_pictures():
    """Every picture [N, 3, SIZE, SIZE] and its name."""
    pixels = torch.from_numpy(np.stack([render(character) for character in EMOJI]))
    return pixels.permute(0, 3, 1, 2).contiguous(), [emoji_name(character) for character in EMOJI]


def phrase(template, name):
    text = template.lstrip("^").format(name)
    return text[0].upper() + text[1:] if template.startswith("^") else text


def all_prompts(names):
    """Each name in each phrasing, name-major, then the empty prompt."""
    return [phrase(template, name) for name in names for template in PHRASINGS] + [""]


def learn_merges(words, limit):
    """Byte-pair merges, most frequent first, ties to the larger pair. `words` counts each word."""
    pieces = {word: [*word[:-1], word[-1] + "</w>"] for word in words}
    merges = []
    while len(merges) < limit:
        counts = {}
        for word, split in pieces.items():
            for pair in zip(split, split[1:]):
                counts[pair] = counts.get(pair, 0) + words[word]
        if not counts:
            break
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        for word, split in pieces.items():
            merged, i = [], 0
            while i < len(split):
                if tuple(split[i : i + 2]) == best:
                    merged.append(split[i] + split[i + 1])
                    i += 2
                else:
                    merged.append(split[i])
                    i += 1
            pieces[word] = merged
    return merges


def make_clip_tokenizer(folder, prompts):
    """CLIP's vocabulary order: byte symbols, the same ending a word, merges, the two special tokens."""
    from tokenizers import pre_tokenizers
    from transformers import CLIPTokenizer

    words = {}
    for prompt in prompts:
        for word in prompt.split():
            words[word] = words.get(word, 0) + 1
    merges = learn_merges(words, limit=700)
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = dict.fromkeys(
        symbols + [symbol + "</w>" for symbol in symbols] + [left + right for left, right in merges]
        + ["<|startoftext|>", "<|endoftext|>"]
    )
    folder.mkdir(parents=True, exist_ok=True)
    ids = {token: index for index, token in enumerate(vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = CLIPTokenizer.from_pretrained(folder, model_max_length=TOKENS)
    tokenizer.save_pretrained(folder)
    return tokenizer


def make_t5_tokenizer(folder, prompts):
    """A SentencePiece unigram model that covers printable ASCII, with T5's special ids."""
    import sentencepiece
    from transformers import T5Tokenizer

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([prompt for prompt in prompts if prompt]), model_writer=model,
        model_type="unigram", vocab_size=600, hard_vocab_limit=False, byte_fallback=False,
        character_coverage=1.0, required_chars="".join(map(chr, range(33, 127))),
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece="<pad>", eos_piece="</s>", unk_piece="<unk>",
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(model.getvalue())
    tokenizer = T5Tokenizer.from_pretrained(folder, extra_ids=0, model_max_length=TOKENS)
    tokenizer.save_pretrained(folder)
    return tokenizer
