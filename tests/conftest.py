"""A two-layer model and a byte tokenizer, built in memory: every test but the quickstart's runs on them."""

from __future__ import annotations

import os
import shutil
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may ask the hub; read when transformers is imported

import pytest
import torch
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cotalk.base import Base
from cotalk.deal import Deal
from cotalk.lora import weights_sha256
from cotalk.task import Task
from cotalk.view import ChatFormat

torch.set_num_threads(1)

# What a shell runs in the background ignores Ctrl-C, and so would every command that a test sends one to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A fresh machine builds hypothesis's tables of characters inside the first draw, while other tests use the other cores:
# how long a draw takes says nothing about the code here.
settings.register_profile("cotalk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cotalk")

SPECIALS = ["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHATML = (  # Qwen's shape: a system message of its own, and a newline after every end
    "{% if messages[0].role != 'system' %}<|system|>You are nobody.<|end|>\n{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINKING = (  # drops what an earlier assistant turn began with, as templates that strip thoughts do
    "{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}<|assistant|>~{{ m.content }}<|end|>"
    "{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


LATE_SYSTEM = (  # tells the system text in the last user turn, as Mistral's does
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>"
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}{{ m.content }}<|end|>"
    "{% elif m.role == 'assistant' %}<|assistant|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer(
    template: str | None = PLAIN, added: tuple[str, ...] = (), pad: str = "<|pad|>"
) -> PreTrainedTokenizerFast:
    """One token a byte (ids 5..260), five special tokens (ids 0..4), then `added` ones that are not special.

    A printable ASCII letter c has id ord(c) - 28; a newline is 203, a space 225.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {s: i for i, s in enumerate(SPECIALS)} | {
        c: i + len(SPECIALS) for i, c in enumerate(alphabet)
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, eos_token="<|end|>")
    if added:
        wrapped.add_tokens(list(added))
    if template:
        wrapped.chat_template = template
    return wrapped


def small_model(seed: int = 0, vocabulary: int = 261, **config) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = dict(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True, pad_token_id=0, eos_token_id=4,
        attn_implementation="sdpa", initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(shape | config))).eval()


def small_base(template: str = PLAIN, seed: int = 0, **config) -> Base:
    model, tokenizer = small_model(seed, **config), byte_tokenizer(template)
    return Base("small", model, tokenizer, ChatFormat(tokenizer, "short"), weights_sha256(model), {})


def deals(n: int = 4) -> list[Deal]:
    """Sums dealt to two seats: `Ann has 3 apples.` / `Bob has 4 apples.` -> 7."""
    out = []
    for i in range(n):
        a, b = 3 + i, 4 + 2 * i
        facts = (f"Ann has {a} apples.", f"Bob has {b} apples.")
        task = Task(f"sum-{i}", "How many apples are there?", str(a + b), facts)
        out.append(Deal(task, facts, task.question, {"A": facts[:1], "B": facts[1:]}))
    return out


@pytest.fixture
def base() -> Base:
    return small_base()


@pytest.fixture(scope="session")
def gsm8k() -> str:
    """The directory of the real GSM8K files, named by COTALK_GSM8K."""
    where = os.environ.get("COTALK_GSM8K", "")
    if not where or not os.path.isfile(os.path.join(where, "train.jsonl")):
        pytest.skip("real GSM8K is not here: set COTALK_GSM8K to a directory with train.jsonl and test.jsonl")
    return where


# --- a real browser -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def chromium():
    """Debian's chromium, driven by playwright. COTALK_BROWSER=required (CI): its absence is a failure, not a skip."""
    path = os.environ.get("COTALK_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    lacking = "" if path else "there is no chromium here: apt-get install chromium"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacking = "playwright is not installed: pip install 'cotalk[test]'"
    if lacking:
        told = f"{lacking}; the tests in a real browser are left out"
        pytest.fail(told) if os.environ.get("COTALK_BROWSER") == "required" else pytest.skip(told)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """An open page, and all that it complained about or asked from outside."""

    def __init__(self, browser, **settings):
        self.complaints: list[str] = []
        self.requests: list[str] = []
        settings = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"} | settings
        self.page = browser.new_page(**settings)
        self.page.on(
            "console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))


@pytest.fixture
def tab(chromium):
    """tab(**settings) -> a Tab; closed at the end."""
    tabs = []

    def make(**settings):
        tabs.append(Tab(chromium, **settings))
        return tabs[-1]

    yield make
    for each in tabs:
        each.page.close()
