"""Messages that left a user without the next step."""

import pytest

from moebox.cli import main


@pytest.mark.parametrize(
    ("words", "code", "texts"),
    [
        ("verify http://nosuch.invalid:8000/v1", 3, ("nosuch.invalid", "is the host's name right?")),
        ("verify", 3, ("nothing is running", "or give a URL")),
        ("plan glm-5.3-flash --engine llama.cpp --box 8x-h200", 2, ("UD-Q4_K_XL (GGUF for ik_llama.cpp)",)),
        ("upgrade bisect kimi-k26-vllm sglang==0.5 sglang==0.6", 2, ("sglang==0.5: the recipe runs vllm",)),
        ("bench http://127.0.0.1:9/v1 --slo ttft=2", 2, ("'ttft=2' has no unit", "ttft=2s or ttft=2ms")),
    ],
)
def test_an_error_names_the_next_step(
    words: str, code: int, texts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with what is wrong, and a hint that helps."""
    assert main(words.split()) == code
    error = capsys.readouterr().err
    assert all(text in " ".join(error.split()) for text in texts), error


def test_a_box_with_spaces_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """ "8 x H200" as people write it is 8x-h200."""
    assert main(["box", "--box", "8 x H200"]) == 0
    assert "8x-h200" in capsys.readouterr().out
