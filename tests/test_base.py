"""Loading a base: what is read back, and what is refused with what to type."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers import BertConfig, T5Config

from conftest import CHATML, PLAIN, THINKING, byte_tokenizer, deals, small_base, small_model
from cotalk.base import SHIPPED, Base, load_base, pick_device
from cotalk.chat import BASE, Rules, Seating, converse
from cotalk.engines.hf import HfEngine
from cotalk.errors import BadInput
from cotalk.lora import Stack
from cotalk.view import ChatFormat
from test_view import merging_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """The in-memory model and tokenizer, as a directory."""
    where = tmp_path_factory.mktemp("bases") / "small"
    small_model(seed=3).save_pretrained(where)
    byte_tokenizer(PLAIN).save_pretrained(where)
    return where


@pytest.fixture
def directory(saved, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(saved, tmp_path / "base"))


IDS = torch.tensor([[1, 55, 4, 2, 42, 225, 23, 4, 3]])


def test_a_saved_model_loads_back_with_equal_logits_and_prompts(saved):
    base = load_base(str(saved), device="cpu")
    with torch.no_grad():
        assert torch.equal(base.model(IDS).logits, small_model(seed=3)(IDS).logits)
        assert not torch.equal(base.model(IDS).logits, small_model(seed=4)(IDS).logits)
    assert base.model.dtype == torch.float32
    assert not base.model.training
    assert base.form.words is ChatFormat(byte_tokenizer(PLAIN), "full").words
    assert base.form.text_ids("a<|end|>") == ChatFormat(byte_tokenizer(PLAIN)).text_ids("a<|end|>")
    assert (base.name, base.notes) == (str(saved), {})


def test_the_weights_can_be_read_in_another_type(saved):
    assert load_base(str(saved), dtype="bfloat16", device="cpu").model.dtype == torch.bfloat16


def test_the_sha256_is_that_of_the_weights_file_whatever_the_type_it_is_read_in(saved):
    expected = hashlib.sha256((saved / "model.safetensors").read_bytes()).hexdigest()
    assert load_base(str(saved), device="cpu").sha256 == expected
    assert load_base(str(saved), dtype="bfloat16", device="cpu").sha256 == expected


def test_other_weights_beside_the_models_change_no_sha256_and_other_ones_in_it_do(saved, directory):
    before = load_base(str(saved), device="cpu").sha256
    safetensors.torch.save_file({"x": torch.zeros(1)}, directory / "consolidated.safetensors")
    assert load_base(str(directory), device="cpu").sha256 == before
    small_model(seed=4).save_pretrained(directory)
    assert load_base(str(directory), device="cpu").sha256 != before


def test_weights_in_several_files_have_the_sha256_of_all_of_them(directory):
    (directory / "model.safetensors").unlink()
    small_model(seed=3).save_pretrained(directory, max_shard_size="20KB")
    files = sorted(directory.glob("model-*.safetensors"))
    assert len(files) > 1
    together = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert load_base(str(directory), device="cpu").sha256 == together


def test_a_hub_name_in_the_cache_loads_offline_with_the_sha256_of_its_directory(saved, tmp_path, monkeypatch):
    repository, revision = tmp_path / "models--nobody--small", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    shutil.copytree(saved, repository / "snapshots" / revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    base = load_base("nobody/small", device="cpu")
    assert base.sha256 == load_base(str(saved), device="cpu").sha256
    assert base.name == "nobody/small"


# --- the base's own notes ---


def test_a_base_that_names_its_wording_is_played_with_it_unless_another_is_asked_for(directory):
    (directory / "cotalk_base.json").write_text(json.dumps({"wording": "short", "view": "dialogue"}))
    base = load_base(str(directory), device="cpu")
    assert base.form.words.system == "Solve it together."
    assert base.notes == {"wording": "short", "view": "dialogue"}
    assert load_base(str(directory), device="cpu", wording="full").form.words.system.startswith(
        "You and your partner"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object"),
        ('{"wording": ["short"]}', "expected an object"),
        ("[" * 100_000, "is not JSON"),
        ('{"wording": "long"}', "expected one of full, short"),
    ],
)
def test_notes_that_cannot_be_used_are_refused(directory, text, says):
    (directory / "cotalk_base.json").write_text(text)
    with pytest.raises(BadInput, match=says):
        load_base(str(directory), device="cpu")


# --- what is refused ---


def test_a_directory_without_a_config_is_refused(tmp_path):
    with pytest.raises(
        BadInput, match=r"no config.json in that directory; expected a transformers model directory$"
    ):
        load_base(str(tmp_path), device="cpu")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(BadInput, match="this is an adapter: give its base with --base"):
        load_base(str(tmp_path), device="cpu")


def test_pickled_weights_are_refused_and_never_read(directory):
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(
        BadInput,
        match=r"no .safetensors .*\(pytorch_model.bin is a pickle\).*save the model with save_pretrained",
    ):
        load_base(str(directory), device="cpu")


@pytest.mark.parametrize(
    "config",
    [{"model_type": "no_such_thing"}, {}, T5Config().to_dict()],
    ids=["unknown", "none", "t5"],
)
def test_an_architecture_that_is_no_causal_language_model_is_refused(directory, config):
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        BadInput,
        match=r"could not be loaded: .*; expected a directory that transformers' AutoModelForCausalLM",
    ):
        load_base(str(directory), device="cpu")


def test_weights_of_another_architecture_are_refused_instead_of_random_ones_taken(directory):
    # transformers would fill what is missing with random numbers and only warn
    shape = BertConfig(
        vocab_size=261,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=48,
        is_decoder=True,
    )
    (directory / "config.json").write_text(json.dumps(shape.to_dict()))
    with pytest.raises(BadInput, match=r"its weights lack \d+ of the tensors of BertLMHeadModel"):
        load_base(str(directory), device="cpu")


def test_weights_that_lack_one_tensor_are_refused_with_its_name(directory):
    tensors = safetensors.torch.load_file(directory / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    safetensors.torch.save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        BadInput, match=r"lack 1 of the tensors of LlamaForCausalLM \(model.layers.1.mlp.up_proj.weight"
    ):
        load_base(str(directory), device="cpu")


def test_weights_of_another_size_are_refused(directory):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(BadInput, match="could not be loaded"):
        load_base(str(directory), device="cpu")


def test_torn_weights_are_refused(directory):
    whole = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="could not be loaded"):
        load_base(str(directory), device="cpu")


def test_a_directory_without_a_tokenizer_is_refused(directory):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (directory / name).unlink(missing_ok=True)
    with pytest.raises(BadInput, match=r"could not be loaded|no chat template"):
        load_base(str(directory), device="cpu")


def test_a_base_without_a_chat_template_is_refused(directory):
    byte_tokenizer(None).save_pretrained(directory)
    (directory / "chat_template.jinja").unlink()
    with pytest.raises(BadInput, match="no chat template: expected `chat_template`"):
        load_base(str(directory), device="cpu")


def test_a_tokenizer_with_more_entries_than_the_model_has_rows_is_refused(directory):
    byte_tokenizer(PLAIN, added=("<think>",)).save_pretrained(directory)
    with pytest.raises(BadInput, match="its tokenizer has 262 entries and its embedding 261 rows"):
        load_base(str(directory), device="cpu")


def test_a_hub_name_without_a_network_is_refused_with_what_to_type():
    with pytest.raises(BadInput) as refused:
        load_base("nobody/no-such-model", device="cpu")
    for words in (
        "'nobody/no-such-model' could not be loaded",
        "Hugging Face hub",
        "network",
        "hf auth login",
        "directory",
        '"tiny"',
    ):
        assert words in str(refused.value)


@pytest.mark.parametrize("name", ["/no/such/directory", "", "a/b/c/d", "nowhere.gguf"])
def test_a_place_that_is_not_there_is_refused(name):
    with pytest.raises(BadInput, match="expected"):
        load_base(name, device="cpu")


def test_a_gguf_that_is_none_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"not a gguf")
    with pytest.raises(BadInput, match=r"could not be loaded.*whole .gguf file|pip install gguf"):
        load_base(str(tmp_path / "x.gguf"), device="cpu")


def test_a_missing_tiny_base_says_how_to_make_it(tmp_path, monkeypatch):
    monkeypatch.setitem(SHIPPED, "tiny", tmp_path)
    with pytest.raises(BadInput, match="reinstall cotalk, or make it with `cotalk base tiny --out"):
        load_base("tiny")


@pytest.mark.parametrize("device", ["gpu", "", "cpu:x", "cuda:x"])
def test_a_device_that_does_not_exist_is_refused(device):
    with pytest.raises(BadInput, match="expected"):
        pick_device(device)


def test_a_gpu_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (pick_device("auto"), pick_device("cuda"), pick_device("cuda:0"), pick_device("cpu")) == (
        "cuda",
        "cuda",
        "cuda:0",
        "cpu",
    )
    with pytest.raises(BadInput, match=r"device 'cuda:1': torch .* sees 1 GPU here; use --device cpu"):
        pick_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == "cpu"
    with pytest.raises(BadInput, match="sees no GPU here"):
        pick_device("cuda")


# --- prompts that are not the template's ---


def test_a_tokenizer_that_joins_letters_across_a_texts_border_is_warned_of_and_noted(directory):
    small_model(seed=3, vocabulary=262).save_pretrained(directory)
    merging_tokenizer().save_pretrained(directory)
    with pytest.warns(UserWarning, match=r"prompts are not what its chat template gives.*From place") as told:
        base = load_base(str(directory), device="cpu")
    assert base.notes["template_difference"] in str(told[0].message)


def test_no_warning_is_given_where_prompts_are_the_templates(saved):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert "template_difference" not in load_base(str(saved), device="cpu").notes


# --- a pad token that is the end token ---


def play(base: Base) -> list[list[tuple]]:
    """Two chats of unequal prompts in one batch, so that a row is padded."""
    torch.set_num_threads(1)
    engine = HfEngine(Stack(base.model, 1, rank=2), base.form.end_ids)
    dealt = deals(12)
    seatings = [Seating(d, {s: BASE for s in "AB"}, 0, ("pad", d.task.id)) for d in (dealt[0], dealt[11])]
    rules = Rules(
        "ABAB", message_tokens=150, answer_tokens=150, temperature=4.0
    )  # 1 token in 261 ends a turn
    playing = converse(seatings, rules, base.form)
    views = next(playing)
    assert len({len(view.ids) for view in views}) > 1
    try:
        while True:
            views = playing.send(engine.reply([views])[0])
    except StopIteration as end:
        return [[(m.prompt, m.ids, m.logprobs, m.cut) for m in chat.messages] for chat in end.value]


def test_a_tokenizer_whose_pad_is_its_end_token_changes_nothing():
    # some trainers mask every pad token, and so never teach the end; here nothing is padded by the tokenizer
    apart = small_base(CHATML, seed=5)
    tokenizer = byte_tokenizer(CHATML, pad="<|end|>")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 4
    same = Base("same", small_model(5), tokenizer, ChatFormat(tokenizer, "short"), "", {})
    played = play(apart)
    assert play(same) == played
    ends = [
        ids[-1] <= 4 for chat in played for _, ids, _, _ in chat
    ]  # 0 to 4 are special: each ends a message
    assert 4 in [ids[-1] for chat in played for _, ids, _, _ in chat]
    assert any(ends) and not all(
        ends
    )  # some were ended, with the end token among the recorded ids, and some cut
    assert [not cut for chat in played for *_, cut in chat] == ends


def test_a_chat_that_cannot_fit_the_context_is_refused_before_it_is_played() -> None:
    """Byte tokens: the prompt is about 110, two messages and two answers 4 x (200 + 32): over 512, under 2048."""
    rules = Rules(message_tokens=200, answer_tokens=200)
    small_base(max_position_embeddings=2048).check(rules, deals(2))
    with pytest.raises(BadInput, match=r"may need 1,0\d\d tokens .* holds 512"):
        small_base(max_position_embeddings=512).check(rules, deals(2))


def test_a_base_made_for_one_view_warns_when_it_plays_another_and_a_rewriting_template_is_refused() -> None:
    base = replace(small_base(), notes={"view": "dialogue"})
    base.check(Rules(view="dialogue"), deals(1))
    with pytest.warns(UserWarning, match="made for the dialogue view and plays transcript"):
        base.check(Rules(view="transcript"), deals(1))
    with pytest.raises(BadInput, match="cannot play the dialogue view"):
        small_base(THINKING).check(Rules(view="dialogue"), deals(1))
    small_base(THINKING).check(Rules(view="dialogue", order="AB"), deals(1))  # nobody speaks twice
