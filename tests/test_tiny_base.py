"""The shipped base opens, encodes, reads and solves, and chats by habit. (Its card has all measurements.)"""

from __future__ import annotations

import hashlib
import json
import tomllib

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cotalk.base import TINY, load_base
from cotalk.bases import make_tiny
from cotalk.bases.make_tiny import (
    SETTINGS,
    Muon,
    build,
    loss_of,
    make,
    make_model,
    make_tokenizer,
    pack,
)  # fmt: skip
from cotalk.bases.settings import read_settings
from cotalk.bases.tiny_card import CONDITIONS, dealt, habit_of, play
from cotalk.chat import BASE, Rules, Seating, converse
from cotalk.engines.hf import HfEngine
from cotalk.errors import BadInput
from cotalk.grade import last_box
from cotalk.lora import Stack
from cotalk.puzzles import generate

OWN_SEED = 60_000_001  # neither of the text nor of train, dev, held-out or the card


@pytest.fixture(scope="module")
def base():
    return load_base("tiny", device="cpu")


@pytest.fixture(scope="module")
def engine(base):
    return HfEngine(Stack(base.model, adapters=1, rank=1), base.form.end_ids)


def score(engine, base, name: str, n: int) -> float:
    """Share of answers whose box is right."""
    chats = [
        c
        for g in play(engine, base.form, [dealt(t) for t in generate(OWN_SEED, n)], CONDITIONS[name], 1)
        for c in g
    ]
    right = [last_box(c.last_message(s).said)[0] == c.deal.gold for c in chats for s in c.rules.seats]
    return sum(right) / len(right)


def test_it_is_small_and_its_checksum_is_recorded():
    weights = TINY / "model.safetensors"
    about = json.loads((TINY / "cotalk_base.json").read_text())
    assert sum(f.stat().st_size for f in TINY.iterdir()) < 6_000_000
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == about["sha256"]
    assert about["sha256"] in (TINY / "README.md").read_text()
    assert about["parameters"] <= 1_300_000


def test_the_auto_classes_open_it_and_text_survives():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    model = AutoModelForCausalLM.from_pretrained(TINY)
    assert tokenizer.eos_token == "<|end|>" and tokenizer.pad_token == "<|pad|>"
    assert (
        tokenizer.eos_token_id
        == model.config.eos_token_id
        != tokenizer.pad_token_id
        == model.config.pad_token_id
    )
    assert len(tokenizer) <= model.config.vocab_size
    for text in (
        "So 30-14=16. \\boxed{16}",
        "Zürich, 1,234.5 €\n\tend  ",
        "👩‍👩‍👧 x",
        "Partner: (no message)",
    ):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text


def test_the_tokenizer_is_the_one_that_the_code_makes():
    made = make_tokenizer()
    shipped = AutoTokenizer.from_pretrained(TINY)
    assert made.get_vocab() == shipped.get_vocab()
    assert made.chat_template == shipped.chat_template


def test_a_number_or_a_word_is_one_token(base):
    def count(text: str) -> int:
        return len(base.tokenizer.encode(text, add_special_tokens=False))

    for text in ("0", " 7", "99", " 149", " apples", " \\boxed{", "}", "Question"):
        assert count(text) == 1
    assert count("\\boxed{") == 2
    assert count("So 30-14=16. \\boxed{16}") == 10  # So| 30|-|14|=|16|.| \boxed{|16|}


def test_chats_can_be_played_in_the_dialogue_view_and_prompts_are_short(base):
    assert base.form.template_difference() is None and base.form.dialogue_problem is None
    assert base.notes["wording"] == "short" and base.form.words.system == "Solve it together."
    deals = [dealt(t) for t in generate(OWN_SEED, 20)]
    views = next(
        converse([Seating(d, {"A": BASE, "B": BASE}, 0, ()) for d in deals], Rules("ABAB"), base.form)
    )
    assert max(len(v.ids) for v in views) <= 60


def test_it_solves_a_whole_problem_sampled_at_temperature_1(base, engine):
    assert score(engine, base, "skyline", 100) >= 0.85  # the mark; its card says how much better it is


def test_in_chats_it_is_seldom_right_and_hardly_ever_with_the_channel_closed(base, engine):
    # 200 answers each; the marks are .05-.25 and <= .06, standard deviation about .02
    assert 0.03 <= score(engine, base, "open", 100) <= 0.27
    assert score(engine, base, "closed", 100) <= 0.08


def test_it_is_indifferent_about_telling(base, engine):
    # first messages of A, 150 chats: the habit's rate is .27, standard deviation .036
    groups = play(engine, base.form, [dealt(t) for t in generate(OWN_SEED, 150)], CONDITIONS["open"], 1)
    seen = [habit_of(g[0].messages[0].said, g[0].deal.hands["A"]) for g in groups]
    assert 0.12 <= sum(h in ("tell", "please") for h in seen) / 150 <= 0.42
    assert seen.count("other") <= 8


# --- making it ---


def test_rows_are_packed_longest_first_and_do_not_meet():
    # window 5: the row of 4 alone, then 3 + 2 fit, so two windows
    rows = [(np.array(ids), np.array(ids) > 10) for ids in ([1, 2], [3, 14, 5], [6, 7, 8, 19])]
    ids, learned, row, position = pack(rows, window=5)
    assert ids.tolist() == [[6, 7, 8, 19, 0], [3, 14, 5, 1, 2]]
    assert row.tolist() == [[3, 3, 3, 3, 0], [2, 2, 2, 1, 1]]
    assert position.tolist() == [[0, 1, 2, 3, 0], [0, 1, 2, 0, 1]]
    assert learned.tolist() == [[False] * 3 + [True, False], [False, True, False, False, False]]


def test_packed_rows_have_the_loss_of_rows_alone():
    table = read_settings(SETTINGS, SETTINGS)
    tokenizer = make_tokenizer()
    model = make_model(table["model"] | {"width": 16, "layers": 1, "heads": 2, "mlp": 16}, tokenizer, 1)
    random = np.random.default_rng(0)
    rows = [(random.integers(5, 800, n), np.arange(n) >= 3) for n in (9, 30, 12, 25)]
    alone = [loss_of(model, [row], 8, "cpu").item() * (len(row[0]) - 3) for row in rows]
    learned = sum(len(row[0]) - 3 for row in rows)
    assert loss_of(model, rows, 40, "cpu").item() == pytest.approx(sum(alone) / learned, rel=1e-5)


def test_muon_is_torchs_muon_with_matrices_of_one_shape_together():
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in ((8, 8), (8, 8), (20, 8))]
    ours, theirs = ([torch.nn.Parameter(p.clone()) for p in start] for _ in range(2))
    optimisers = [Muon(ours, 0.02, 0.01), torch.optim.Muon(theirs, lr=0.02, weight_decay=0.01)]
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        for optimiser in optimisers:
            optimiser.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=2e-3)  # bfloat16 inside, in another order


@pytest.mark.slow
def test_a_toy_base_is_made_the_same_twice_and_opens(tmp_path, monkeypatch):
    monkeypatch.setattr(make_tiny, "SHARD", 64)
    table = read_settings(SETTINGS, SETTINGS)
    table["model"] |= {"width": 16, "layers": 1, "heads": 2, "mlp": 16}
    table["training"] |= {"rows": 128, "warmup": 1}
    for name in ("one", "two"):
        build(table, tmp_path / name, "cpu", lambda line: None, workers=1, tasks=2)
    one, two = (json.loads((tmp_path / n / "cotalk_base.json").read_text()) for n in ("one", "two"))
    assert one["sha256"] == two["sha256"]
    made = load_base(str(tmp_path / "one"), device="cpu")
    assert made.form.words.system == "Solve it together."
    assert f"{one['rows']:,} rows" in (tmp_path / "one" / "README.md").read_text()


def test_a_settings_file_with_other_keys_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SETTINGS.read_text().replace("warmup", "warm_up"))
    with pytest.raises(BadInput, match="warm_up"):
        make(tmp_path / "out", path, "cpu", None)
    path.write_text("no toml =")
    with pytest.raises(BadInput, match="no TOML"):
        read_settings(path, SETTINGS)
    with pytest.raises(BadInput, match="cannot be read"):
        read_settings(tmp_path / "none.toml", SETTINGS)


def test_a_directory_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(BadInput, match="not empty"):
        make(tmp_path, None, "cpu", None)


def test_the_settings_ship_with_the_package():
    assert set(tomllib.loads(SETTINGS.read_text())) == {"seed", "model", "text", "training"}
    assert AutoTokenizer.from_pretrained(TINY).chat_template == make_tiny.TEMPLATE
