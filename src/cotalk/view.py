"""The chat as one seat sees it: words, chat template, token ids. The only place where a template is applied.

A base's template is taken apart once (`ChatFormat`): it is rendered with marks in the place of every text, and cut
at the marks. A prompt is then template pieces (encoded as the template's own text, special tokens and all) around
texts that were *encoded apart, with special tokens split*, so that nothing that a model, a partner or a task says
can become a special token. The result equals `apply_chat_template` in every id outside the sampled spans;
`template_difference` says so, or what differs (a tokenizer may join letters across the border of a text, or put a
space before every piece: SentencePiece), and `load_base` warns of it.

Two views:
- `transcript` (the published form): every turn is one new prompt; the conversation so far is told in the user turn.
- `dialogue`: the template's own multi-turn chat. A seat's own messages are its recorded ids, so that the prompt of
  its next turn begins with everything before, id by id (append-only): a seat's whole chat is one training row.

Left out: tool calls, images, thinking blocks that a template strips from history (refused for `dialogue`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from cotalk.errors import BadInput

VIEWS = ("dialogue", "transcript")
_MARK = "COTALKxTEXTx{}x"
_TODAY = date(2024, 7, 26)  # for templates that tell the date: a run's prompts must not change over night
_TEMPLATE_SETTINGS = {
    "enable_thinking": False,
    "date_string": _TODAY.strftime("%d %b %Y"),
    "strftime_now": _TODAY.strftime,
}
_PROBES = (  # what the user says, what the seat says, what the user says next
    ("Facts: 3 cats.\nQuestion: how many?", "I have 12", "Partner: (no message)\nWrite a message."),
    ("12 cats {x}", "\\boxed{16}", '"A"'),
)
_TEXTS_KEPT = 20_000


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
    if not text.isprintable():
        odd = (c for c in set(text) if unicodedata.category(c).startswith("C") and not c.isspace())
        text = text.translate(dict.fromkeys(map(ord, odd)))
    return " ".join(text.split())


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
        if isinstance(wording, str) and wording not in WORDINGS:
            raise BadInput(
                f"wording {wording!r} is not known: expected one of {', '.join(WORDINGS)}", "config/choice"
            )
        self.words = WORDINGS[wording] if isinstance(wording, str) else wording
        if not getattr(tokenizer, "chat_template", None):
            raise BadInput(
                "the base's tokenizer has no chat template: expected `chat_template` in tokenizer_config.json "
                "(or chat_template.jinja). Use an instruction-tuned model, or save a template with the tokenizer.",
                "base/no-template",
            )
        added = getattr(tokenizer, "added_tokens_decoder", {})
        never = {i: str(token) for i, token in added.items() if token.special or _controls(str(token))}
        self._special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        self._never = frozenset(never) | self._special
        spelled = sorted({t for t in never.values() if len(t) > 1}, key=len, reverse=True)
        self._never_pattern = re.compile("|".join(map(re.escape, spelled))) if spelled else None
        self._texts: dict[str, tuple[int, ...]] = {}
        self._take_apart()

    # --- the template ---

    def _render(self, roles: Sequence[str], texts: Sequence[str]) -> str:
        chat = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
        return self.tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=roles[-1] == "user", **_TEMPLATE_SETTINGS
        )

    def _pieces(self, roles: Sequence[str]) -> list[str]:
        """What the template puts before, between and after the texts of a chat with these roles."""
        marks = _marks(roles)
        whole = rest = self._render(roles, marks)
        pieces = []
        for mark in marks:
            if whole.count(mark) != 1 or mark not in rest:
                raise BadInput(
                    f"the base's chat template does not show each text once and in order (roles {list(roles)}): "
                    f"expected a template that renders every message as it is. It rendered: {whole!r}",
                    "base/template",
                )
            before, rest = rest.split(mark)
            pieces.append(before)
        return [*pieces, rest]

    def _take_apart(self) -> None:
        opening, first = self._first_turn()
        self.system_role = opening[0] == "system"
        head, system_to_user, generation = first if self.system_role else ["", *first]
        self._head = self._template_ids(head)
        self._system_to_user = self._template_ids(system_to_user)
        self._generation = self._template_ids(generation)
        self.dialogue_problem, said_to_user = self._later_turns(opening, first)
        self._said_to_user = self._template_ids(said_to_user)
        # the end token of a turn is sampled (or appended after a cut); what follows it is the template's
        end = next((at for at, i in enumerate(self._said_to_user) if i in self._never), None)
        self._between = self._said_to_user if end is None else self._said_to_user[end + 1 :]
        named = [] if end is None else [self._said_to_user[end]]
        eos = self.tokenizer.eos_token_id
        ends = named + ([] if eos is None else [int(eos)])
        if not ends:
            raise BadInput(
                "the base's tokenizer names no end-of-turn token: expected `eos_token` to be set",
                "base/no-end",
            )
        # any special token ends a message: a seat that samples the token of a turn's head can say nothing under it
        self.end_ids: tuple[int, ...] = tuple(dict.fromkeys([*ends, *sorted(self._special)]))

    def _first_turn(self) -> tuple[list[str], list[str]]:
        """The roles that open a chat, and the pieces around their texts."""
        tried = []
        for roles in (["system", "user"], ["user"]):
            try:
                return roles, self._pieces(roles)
            except Exception as error:  # a template raises whatever its author chose; all is told below
                tried.append(f"roles {roles}: {error}")
        raise BadInput(
            f"the base's chat template opens no chat ({'; '.join(tried)}); expected one that renders system and "
            "user, or user alone",
            "base/template",
        )

    def _later_turns(self, opening: list[str], first: list[str]) -> tuple[str | None, str]:
        """Why the template's chats cannot grow by appending (None: they can), and the piece after what a seat said."""
        roles = [*opening, "assistant", "user", "assistant", "user"]
        try:
            longer = self._pieces(roles)
            said_to_user = longer[len(first)]
        except Exception as error:
            longer, said_to_user = [], self._piece_after_said(opening)
            reason = f"its chat template cannot tell a longer chat ({error})"
        else:
            reason = (
                "its chat template changes earlier turns when a chat grows, so ids would not be append-only"
            )
        expected = [*first, said_to_user, first[-1], said_to_user, first[-1]]
        if longer == expected:
            return None, said_to_user
        ours = "".join(p + m for p, m in zip(expected, [*_marks(roles), ""], strict=True))
        try:
            theirs = self._render(roles, _marks(roles))
        except Exception:  # said above: it does not render
            return reason, said_to_user
        return (
            f"{reason}. {self._difference(self._template_ids(ours), self._template_ids(theirs))}",
            said_to_user,
        )

    def _piece_after_said(self, opening: list[str]) -> str:
        for roles in ([*opening, "assistant"], ["user", "assistant"]):
            try:
                return self._pieces(roles)[-1]
            except Exception:  # then the next; or only the tokenizer's own end token is known
                continue
        return ""

    @staticmethod
    def _difference(ours: Sequence[int], theirs: Sequence[int]) -> str:
        """Two lists of ids from their first difference on."""
        same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        return f"From place {same} on, ours is {list(ours[same:])} and apply_chat_template gives {list(theirs[same:])}"

    @property
    def end_id(self) -> int:
        """The token that ends a turn, appended (never trained) after a message that was cut."""
        return self.end_ids[0]

    def _template_ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    # --- texts ---

    def text_ids(self, text: str) -> tuple[int, ...]:
        """A text's ids, stripped, with no special token among them, nor an added one such as `<think>`."""
        text = text.strip()
        found = self._texts.get(text)
        if found is None:
            if len(self._texts) >= _TEXTS_KEPT:
                self._texts.clear()
            found = self._texts[text] = self._encode_apart(text)
        return found

    def _encode_apart(self, text: str) -> tuple[int, ...]:
        ids = self._template_ids(text) if text else ()
        if self._never.isdisjoint(ids):
            return ids
        # cut every spelled-out token after its first character; each part is encoded alone
        parts, start = [], 0
        for hit in self._never_pattern.finditer(text) if self._never_pattern else ():
            parts.append(text[start : hit.start() + 1])
            start = hit.start() + 1
        if not parts:  # made by normalising, or a token of one character: drop it
            return tuple(i for i in ids if i not in self._never)
        return tuple(i for part in [*parts, text[start:]] for i in self._encode_apart(part))

    def decode(self, ids: Sequence[int]) -> str:
        """What was said: the sampled ids as text, without special tokens and the end token, stripped."""
        words = [i for i in ids if i not in self.end_ids]
        text = self.tokenizer.decode(words, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text.strip()

    def shorten(self, text: str, tokens: int) -> tuple[str, bool]:
        """A text within a budget of tokens when it is encoded again (what is heard obeys the speaker's cap).

        Returns the text and whether it was shortened. A shortened text may encode to more tokens than it was cut
        to (half a character becomes U+FFFD), so it is counted again, and cut further until it fits.
        """
        ids = self.text_ids(text)
        if len(ids) <= tokens:
            return text, False
        for kept in range(tokens, 0, -1):
            shorter = one_line(self.decode(ids[:kept]).rstrip("\ufffd"))
            if len(self.text_ids(shorter)) <= tokens:
                return shorter, True
        return "", True

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
        texts: list[str] = []
        since: list[Line] = []
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
            raise BadInput(f"view {view!r} is not known: expected one of {', '.join(VIEWS)}", "config/choice")
        if view == "dialogue" and scene.own_ids:
            self.require_dialogue()
            prompt, sampled, _ = scene.own_ids[-1]
            ended = sampled if sampled[-1:] == (self.end_id,) else (*sampled, self.end_id)
            last_user = self.text_ids(self.turns(scene, view)[-1])
            return (*prompt, *ended, *self._between, *last_user, *self._generation)
        return self._opening_ids(self._system(scene), self.turns(scene, view)[0])

    def _opening_ids(self, system: str, user: str) -> tuple[int, ...]:
        if not self.system_role:
            return (*self._system_to_user, *self.text_ids(f"{system}\n{user}"), *self._generation)
        said = (*self._head, *self.text_ids(system), *self._system_to_user, *self.text_ids(user))
        return (*said, *self._generation)

    def longest_prompt(self, seats: str, deals: Iterable[Any], view: str) -> int:
        """Tokens of the longest first prompt of any seat of these deals (0 for none)."""
        scenes = (
            Scene(seat, seats, deal.hands[seat], deal.question, (), (), True)
            for deal in deals
            for seat in seats
        )
        return max((len(self.prompt_ids(scene, view)) for scene in scenes), default=0)

    def require_dialogue(self) -> None:
        """Refuses a base whose template cannot grow by appending, before anything is played with it."""
        if self.dialogue_problem:
            raise BadInput(
                f"this base cannot play the dialogue view: {self.dialogue_problem}. Use --view transcript",
                "base/no-dialogue",
            )

    def template_difference(self) -> str | None:
        """None when prompts equal `apply_chat_template` id by id on probes; else both lists, to be shown."""
        for user, said, then in _PROBES:
            roles, texts = ["user"], [user if self.system_role else f"{self.words.system}\n{user}"]
            if self.system_role:
                roles, texts = ["system", "user"], [self.words.system, user]
            ours = self._opening_ids(self.words.system, user)
            if not self.dialogue_problem:
                roles, texts = [*roles, "assistant", "user"], [*texts, said, then]
                ours += (*self.text_ids(said), *self._said_to_user, *self.text_ids(then), *self._generation)
            whole = self._template_ids(self._render(roles, texts))
            if ours != whole:
                return self._difference(ours, whole)
        return None


def _marks(roles: Sequence[str]) -> list[str]:
    return [_MARK.format(i) for i in range(len(roles))]


def _controls(token: str) -> bool:
    """Whether an added token that is not special may still steer a model (`<think>`); blanks and letters do not."""
    return len(token) > 1 and bool(token.strip(" \t\r\n\u2581"))
