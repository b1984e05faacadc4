"""Scripted players, and the table that sends each view to whoever answers it."""

from __future__ import annotations

import pytest

from cotalk.chat import BASE, Player, Reply, View
from cotalk.engines import Table
from cotalk.engines.scripted import SCRIPTS, ScriptedEngine, asker, sender, silent
from cotalk.view import Line, Scene


def a_scene(facts=("I have 3.", "I lost 1."), lines=(), last=False) -> Scene:
    return Scene("A", "AB", tuple(facts), "How many?", tuple(lines), (), last)


def a_view(player: Player, facts=("x",), key: int = 0) -> View:
    return View(a_scene(facts), player, () if player.script else (1, 2), 10, key, 1.0)


class Counting:
    """An engine that answers with the view's key, and remembers how often it was asked for what."""

    def __init__(self):
        self.calls = []

    def reply(self, batches):
        self.calls.append([len(batch) for batch in batches])
        return [[Reply((view.key,), (-1.0,)) for view in batch] for batch in batches]


def test_the_scripts_do_what_their_names_say():
    assert silent(a_scene()) == ""
    assert sender(a_scene()) == sender(a_scene(last=True)) == "I have 3. I lost 1."
    assert asker(a_scene()) == "What do you know?"
    assert asker(a_scene(lines=(Line("B", "I have 4."),))) == "What do you know?"
    assert asker(a_scene(lines=(Line("B", "What do you know?"),))) == "I have 3. I lost 1."
    assert (
        asker(a_scene(lines=(Line(None, "What do you know?"),))) == "What do you know?"
    )  # its own question is no question
    assert SCRIPTS["parrot"](a_scene()) == "1. 2. 3. 4. 5."


def test_the_adder_adds_its_numbers_and_its_partners_and_boxes_the_sum():
    # 3 and 1 of its own, 4 heard (the second message of the same partner is not counted again)
    lines = (Line("B", "I have 4."), Line(None, "I have 3. I lost 1."), Line("B", "I have 4."))
    assert SCRIPTS["adder"](a_scene(lines=lines)) == "I have 3. I lost 1."
    assert SCRIPTS["adder"](a_scene(lines=lines, last=True)) == "3 + 1 + 4 = 8. \\boxed{8}"


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_every_script_is_known_by_the_name_of_its_function(name):
    assert SCRIPTS[name].__name__ == name


def test_a_scripts_reply_has_words_and_no_ids():
    [[reply]] = ScriptedEngine().reply([[a_view(Player("s", script=sender))]])
    assert reply == Reply(ids=(), logprobs=(), cut=False, text="x")


def test_an_empty_message_of_a_script_is_a_message():
    [[reply]] = ScriptedEngine().reply([[a_view(Player("s", script=silent))]])
    assert reply.text == ""


@pytest.mark.parametrize("returned", [None, 3, b"x"])
def test_a_script_that_returns_no_text_is_an_error_and_not_silence(returned):
    with pytest.raises(TypeError, match=r"script of player 'mine' returned .*: expected a str"):
        ScriptedEngine().reply([[a_view(Player("mine", script=lambda scene: returned))]])


def test_a_player_without_a_script_is_no_scripted_player():
    with pytest.raises(ValueError, match="'base' is not scripted"):
        ScriptedEngine().reply([[a_view(BASE)]])


def test_the_table_keeps_places_when_scripts_and_models_sit_together():
    engine = Counting()
    script = Player("s", script=sender)
    batches = [
        [a_view(BASE, key=1), a_view(script, ("one",)), a_view(BASE, key=2)],
        [a_view(script, ("two",))],
        [],
        [a_view(BASE, key=3), a_view(script, ("three",))],
    ]
    replies = Table(engine).reply(batches)
    assert [[r.text if r.text is not None else r.ids[0] for r in batch] for batch in replies] == [
        [1, "one", 2],
        ["two"],
        [],
        [3, "three"],
    ]
    assert engine.calls == [[2, 0, 0, 1]]  # one call for all, batch by batch


def test_the_table_leaves_the_engine_alone_when_only_scripts_speak():
    engine = Counting()
    assert Table(engine).reply([[a_view(Player("s", script=sender))], []])[0][0].text == "x"
    assert engine.calls == []
    assert Table(None).reply([[a_view(Player("s", script=sender))]])[0][0].text == "x"


def test_a_model_at_a_table_without_an_engine_is_named():
    with pytest.raises(ValueError, match=r"players \['base'\] need a model"):
        Table(None).reply([[a_view(BASE)]])


@pytest.mark.parametrize("given", [[[]], [[Reply(), Reply()]], []])
def test_an_engine_that_gives_too_few_or_too_many_replies_is_an_error(given):
    class Wrong:
        def reply(self, batches):
            return given

    with pytest.raises(ValueError, match=r"asked for \[1\] replies"):
        Table(Wrong()).reply([[a_view(BASE)]])
