"""Time what a server's front process does with a prompt's text: a byte-level BPE of 128k tokens, one thread.

    python benchmarks/tokenizing.py [FOLDER]      (needs the package `tokenizers`; 2 minutes)

The tokenizer is trained on the Python and Markdown files of FOLDER (this Python's packages by default), with the
pattern that GPT-4's has. Prompts are drawn as load generators draw them, tokens at random decoded to text, or are text
of those files. Prints microseconds of CPU time a token by length: the least and the median of many prompts.
"""

import os
import random
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

VOCABULARY = 128_000
TRAINED_BYTES = 150_000_000
LENGTHS = 128, 1024, 8192, 32768
ROUNDS = 40
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_texts(folder: Path) -> Iterator[str]:
    """Yield the files' texts, up to the bytes that are trained on."""
    left = TRAINED_BYTES
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".md", ".rst", ".txt", ".pyi", ".h") and left > 0:
            text = path.read_text(encoding="utf-8", errors="ignore")
            left -= len(text)
            yield text


def main() -> None:
    """Train the tokenizer, then time it."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = list(read_texts(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_paths()["purelib"])))
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(f"{tokenizer.get_vocab_size():,} tokens from {sum(map(len, texts)) / 1e6:.0f} MB")
    draw, whole = random.Random(1), "".join(texts)
    for length in LENGTHS:
        for kind in ("random tokens", "text"):
            times, sizes = [], []
            for _ in range(ROUNDS):
                start = draw.randrange(len(whole) - 8 * length)
                if kind == "text":
                    prompt = whole[start : start + 4 * length]
                else:
                    prompt = tokenizer.decode([draw.randrange(tokenizer.get_vocab_size()) for _ in range(length)])
                begun = time.thread_time()
                ids = tokenizer.encode(prompt).ids
                times.append((time.thread_time() - begun) / len(ids) * 1e6)
                sizes.append(len(prompt) / len(ids))
            least, middle, width = min(times), statistics.median(times), statistics.median(sizes)
            figures = f"{least:6.2f} us a token, median {middle:6.2f}  {width:.1f} characters a token"
            print(f"{kind:14} {length:6} tokens  {figures}")


if __name__ == "__main__":
    main()
