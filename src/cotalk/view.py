"""The chat as one seat sees it: words, chat template, token ids. The only place where a template is applied.

A base's template is taken apart once (`ChatFormat`): it is rendered with marks in the place of every text, and cut
at the marks. A prompt is then template pieces (encoded as the template's own text, special tokens and all) around
texts that were *encoded apart, with special tokens split*, so that nothing that a model, a partner or a task says
can become a special token. The result equals `apply_chat_template` in every id outside the sampled spans.

Two views:
- `transcript` (the published form): every turn is one new prompt; the conversation so far is told in the user turn.
- `dialogue`: the template's own multi-turn chat. A seat's own messages are its recorded ids, so that the prompt of
  its next turn begins with everything before, id by id (append-only): a seat's whole chat is one training row.

Left out: tool calls, images, thinking blocks that a template strips from history (refused for `dialogue`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cotalk.errors import BadInput

VIEWS = ("dialogue", "transcript")
_MARK = "COTALKxTEXTx{}x"


@dataclass(frozen=True)
class Wording:
    """The words around the facts. `{}` of `another` is the speaking seat's letter."""

    system: str
    system_alone: str
    facts: str
    question: str
    so_far: str
    you: str
    partner: str
    another: str
    no_message: str
    message: str
    answer: str


WORDINGS = {
    "full": Wording(
        system="You and your partner work on one problem together. Each of you was given different facts about it, "
        "and your messages are the only way to share them. Keep your messages short.",
        system_alone="You work on one problem.",
        facts="Facts that you were given:",
        question="The question:",
        so_far="The conversation so far:",
        you="You",
        partner="Partner",
        another="Partner {}",
        no_message="(no message)",
        message="Write your next message to your partner.",
        answer="This is your last message. Work out the answer step by step and end with it in \\boxed{}.",
    ),
    "short": Wording(
        system="Solve it together.",
        system_alone="Solve it alone.",
        facts="Facts:",
        question="Question:",
        so_far="So far:",
        you="You",
        partner="Partner",
        another="Partner {}",
        no_message="(no message)",
        message="Write a message.",
        answer="Write the answer.",
    ),
}


def one_line(text: str) -> str:
    """A text as it may stand in somebody's prompt: one line, so that it cannot forge a speaker's line.

    Every kind of white space and line break becomes one space; control, zero-width and bidirectional marks go.
    """
    kept = (c if not unicodedata.category(c).startswith("C") or c.isspace() else "" for c in text)
    return " ".join("".join(kept).split())


@dataclass(frozen=True)
class Line:
    """One line of a conversation as a seat knows it: who spoke (None: the seat itself) and the words."""

    speaker: str | None
    words: str


@dataclass(frozen=True)
class Scene:
    """What a seat knows when its turn comes; all a player may look at.

    lines: every message so far in order, own ones as said, others' as heard. own_ids: for each own message
    its (prompt ids, sampled ids, cut) as recorded, for the append-only view.
    """

    seat: str
    seats: str
    facts: tuple[str, ...]
    question: str
    lines: tuple[Line, ...]
    own_ids: tuple[tuple[tuple[int, ...], tuple[int, ...], bool], ...]
    last: bool

    @property
    def alone(self) -> bool:
        return len(self.seats) == 1


class ChatFormat:
    """A tokenizer's chat template, taken apart. Build it once a base; `prompt_ids` is all that a chat needs."""

    def __init__(self, tokenizer: Any, wording: str | Wording = "full"):
        self.tokenizer = tokenizer
        self.words = WORDINGS[wording] if isinstance(wording, str) else wording
        if not getattr(tokenizer, "chat_template", None):
            raise BadInput(
                "the base's tokenizer has no chat template: expected `chat_template` in tokenizer_config.json "
                "(or chat_template.jinja). Use an instruction-tuned model, or save a template with the tokenizer."
            )
        self._added = {str(t): i for i, t in getattr(tokenizer, "added_tokens_decoder", {}).items()}
        self._added_ids = frozenset(self._added.values())
        spelled = sorted((t for t in self._added if len(t) > 1), key=len, reverse=True)
        self._added_pattern = re.compile("|".join(map(re.escape, spelled))) if spelled else None
        self._texts: dict[str, tuple[int, ...]] = {}
        self._take_apart()

    # --- the template ---

    def _render(self, roles: Sequence[str], texts: Sequence[str], generation_prompt: bool) -> str:
        chat = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
        return self.tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=generation_prompt, enable_thinking=False
        )

    def _pieces(self, roles: Sequence[str], generation_prompt: bool) -> list[str]:
        marks = [_MARK.format(i) for i in range(len(roles))]
        text = self._render(roles, marks, generation_prompt)
        pieces = []
        for mark in marks:
            if text.count(mark) != 1:
                raise BadInput(
                    f"the base's chat template does not show each text once (roles {list(roles)}): expected a "
                    f"template that renders every message as it is. It rendered: {text!r}"
                )
            before, text = text.split(mark)
            pieces.append(before)
        return [*pieces, text]

    def _take_apart(self) -> None:
        self.system_role = True
        try:
            first = self._pieces(["system", "user"], generation_prompt=True)
        except BadInput:
            raise
        except Exception as no_system:  # a template raises whatever its author chose; tell what was tried
            try:
                self.system_role = False
                first = ["", *self._pieces(["user"], generation_prompt=True)]
            except Exception as error:
                raise BadInput(
                    "the base's chat template renders neither the roles system, user "
                    f"({no_system}) nor user alone ({error}); expected one of the two to work"
                ) from error
        head, system_to_user, self._open = first
        self._head = self._template_ids(head)
        self._system_to_user = self._template_ids(system_to_user)
        self._generation = self._template_ids(self._open)
        opening = ["system", "user"] if self.system_role else ["user"]
        roles = [*opening, "assistant", "user", "assistant", "user"]
        self.dialogue_problem: str | None = None
        try:
            long = self._pieces(roles, generation_prompt=True)
        except Exception as error:
            self.dialogue_problem = f"its chat template does not render the roles {roles}: {error}"
            self._between: tuple[int, ...] = ()
            self.end_ids: tuple[int, ...] = self._eos_ids()
            return
        at = len(opening)
        to_assistant, to_user = [long[at], long[at + 2], long[at + 4]], [long[at + 1], long[at + 3]]
        if len(set(to_assistant)) > 1 or len(set(to_user)) > 1 or to_assistant[0] != self._open:
            ids = [list(self._template_ids(t)) for t in (self._open, to_assistant[0])]
            self.dialogue_problem = (
                "its chat template changes earlier turns when a chat grows, so ids would not be append-only: "
                f"the prompt of a first turn ends in {self._open!r} {ids[0]}, in a longer chat that place "
                f"reads {to_assistant[0]!r} {ids[1]}"
            )
        between = self._template_ids(to_user[0])
        eos = self._eos_ids()
        end = between[0] if between and between[0] in self._added_ids else None
        # the end token of a turn is sampled (or appended after a cut); what follows it is the template's
        self._between = between[1:] if end is not None else between
        self.end_ids = tuple(dict.fromkeys(([end] if end is not None else []) + list(eos)))
        if not self.end_ids:
            raise BadInput("the base's tokenizer names no end-of-turn token: expected `eos_token` to be set")

    def _eos_ids(self) -> tuple[int, ...]:
        eos = self.tokenizer.eos_token_id
        return () if eos is None else (int(eos),)

    @property
    def end_id(self) -> int:
        """The token that ends a turn, appended (never trained) after a message that was cut."""
        return self.end_ids[0]

    def _template_ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    # --- texts ---

    def text_ids(self, text: str) -> tuple[int, ...]:
        """A text's ids, stripped, with no special (or otherwise added) token among them."""
        text = text.strip()
        found = self._texts.get(text)
        if found is None:
            if len(self._texts) > 200_000:
                self._texts.clear()
            found = self._texts[text] = self._encode_apart(text)
        return found

    def _encode_apart(self, text: str) -> tuple[int, ...]:
        if not text:
            return ()
        ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
        if self._added_ids.isdisjoint(ids):
            return ids
        # cut every spelled-out added token after its first character; each part is encoded alone
        parts, start = [], 0
        for hit in self._added_pattern.finditer(text) if self._added_pattern else ():
            parts.append(text[start : hit.start() + 1])
            start = hit.start() + 1
        parts.append(text[start:])
        if len(parts) == 1:  # a token that the tokenizer makes by normalising: drop it
            return tuple(i for i in ids if i not in self._added_ids)
        out: list[int] = []
        for part in parts:
            out.extend(self._encode_apart(part))
        return tuple(i for i in out if i not in self._added_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """What was said: the sampled ids as text, without special tokens, stripped."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True).strip()

    def shorten(self, text: str, tokens: int) -> tuple[str, bool]:
        """A text within a budget of tokens when it is encoded again (what is heard obeys the speaker's cap)."""
        ids = self.text_ids(text)
        if len(ids) <= tokens:
            return text, False
        while len(ids) > tokens:
            text = one_line(self.tokenizer.decode(list(ids[:tokens]), skip_special_tokens=True))
            shorter = self.text_ids(text)
            ids = shorter if len(shorter) < len(ids) else ids[: len(ids) - 1]
        return text, True

    # --- prompts ---

    def _system(self, scene: Scene) -> str:
        return self.words.system_alone if scene.alone else self.words.system

    def _speaker(self, scene: Scene, speaker: str | None) -> str:
        if speaker is None:
            return self.words.you
        return self.words.partner if len(scene.seats) == 2 else self.words.another.format(speaker)

    def _lines(self, scene: Scene, lines: Sequence[Line]) -> list[str]:
        return [f"{self._speaker(scene, line.speaker)}: {one_line(line.words)}" for line in lines]

    def _situation(self, scene: Scene) -> list[str]:
        facts = " ".join(one_line(f) for f in scene.facts)
        return [f"{self.words.facts} {facts}", f"{self.words.question} {one_line(scene.question)}"]

    def _instruction(self, scene: Scene) -> str:
        return self.words.answer if scene.last else self.words.message

    def turns(self, scene: Scene, view: str) -> list[str]:
        """The texts of the user's turns (the seat's own messages stand between them)."""
        if view == "transcript":
            told = [self.words.so_far, *self._lines(scene, scene.lines)] if scene.lines else []
            return ["\n".join([*self._situation(scene), *told, self._instruction(scene)])]
        texts, since = [], []
        for line in scene.lines:
            if line.speaker is None:
                texts.append(self._join(scene, texts, since, self.words.message))
                since = []
            else:
                since.append(line)
        return [*texts, self._join(scene, texts, since, self._instruction(scene))]

    def _join(self, scene: Scene, texts: list[str], since: list[Line], instruction: str) -> str:
        start = self._situation(scene) if not texts else []
        return "\n".join([*start, *self._lines(scene, since), instruction])

    def prompt_ids(self, scene: Scene, view: str) -> tuple[int, ...]:
        """The ids that the engine is given for this seat's turn."""
        if view not in VIEWS:
            raise BadInput(f"view {view!r} is not known: expected one of {', '.join(VIEWS)}")
        if view == "dialogue" and scene.own_ids:
            if self.dialogue_problem:
                raise BadInput(f"this base cannot play the dialogue view: {self.dialogue_problem}. Use --view transcript.")
            prompt, sampled, cut = scene.own_ids[-1]
            last_user = self.turns(scene, view)[-1]
            ended = (*sampled, self.end_id) if cut else sampled
            return (*prompt, *ended, *self._between, *self.text_ids(last_user), *self._generation)
        texts = self.turns(scene, view)
        if self.system_role:
            system = self.text_ids(self._system(scene))
            return (*self._head, *system, *self._system_to_user, *self.text_ids(texts[0]), *self._generation)
        user = self.text_ids(f"{self._system(scene)}\n{texts[0]}")
        return (*self._system_to_user, *user, *self._generation)

    def template_difference(self) -> str | None:
        """None when prompts equal `apply_chat_template` id by id on a probe; else both lists, to be shown."""
        roles = ["system", "user"] if self.system_role else ["user"]
        texts = ["A word, 12.", "Facts: 3 cats.\nQuestion: how many?"][-len(roles) :]
        whole = self._template_ids(self._render(roles, texts, generation_prompt=True))
        if self.system_role:
            ours = (*self._head, *self.text_ids(texts[0]), *self._system_to_user)
        else:
            ours = self._system_to_user
        ours = (*ours, *self.text_ids(texts[-1]), *self._generation)
        return None if ours == whole else f"ours {list(ours)}, apply_chat_template {list(whole)}"
