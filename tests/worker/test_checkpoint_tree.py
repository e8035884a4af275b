"""Evals that a checkpoint contains, and those that going to one undoes: a model beside the tree, and single cases."""

from __future__ import annotations

import random

from replworker.checkpoints.tree import CheckpointTree


def tree_of(*evals: int) -> CheckpointTree:
    """A tree with a checkpoint before the first eval, and one after each."""
    tree = CheckpointTree()
    tree.add("", automatic=True)
    for number in evals:
        tree.note_eval(number)
        tree.add("", automatic=True)
    return tree


def test_undo_goes_to_right_before_the_last_eval() -> None:
    tree = tree_of(1, 2, 3)
    found, undone = tree.find_undo()
    assert found is not None
    assert (found.number, undone) == (3, [3])
    assert tree.go_to(3).undone == [3]
    assert tree.last_eval == 2


def test_undo_of_a_running_eval_goes_to_right_before_it() -> None:
    tree = tree_of(1, 2)
    tree.note_eval(3)
    found, undone = tree.find_undo()
    assert found is not None
    assert (found.number, undone) == (3, [3])


def test_undo_names_every_eval_that_it_would_undo() -> None:
    tree = tree_of(1)
    for number in (2, 3, 4):
        tree.note_eval(number)
    assert tree.find_undo()[1] == [2, 3, 4]


def test_without_a_checkpoint_there_is_nothing_to_go_to() -> None:
    tree = CheckpointTree()
    assert tree.find_undo() == (None, [])
    tree.note_eval(7)
    assert tree.find_undo() == (None, [7])


def test_a_checkpoint_of_an_undone_line_can_be_gone_to_again() -> None:
    tree = tree_of(1, 2)
    tree.go_to(2)
    tree.note_eval(3)
    change = tree.go_to(3)
    assert (change.undone, change.redone) == ([3], [2])
    assert tree.last_eval == 2


def test_a_dropped_checkpoint_leaves_its_evals_to_what_follows() -> None:
    tree = tree_of(1, 2, 3)
    tree.drop(3)
    found, undone = tree.find_undo()
    assert found is not None
    assert (found.number, undone) == (2, [2, 3])


def test_the_dropped_base_makes_its_evals_new_ones() -> None:
    tree = tree_of(1, 2)
    tree.drop(3)
    assert (tree.base, tree.since, tree.changed) == (2, [2], True)


def test_only_a_state_that_is_a_checkpoints_own_is_unchanged() -> None:
    tree = tree_of(1)
    assert not tree.changed
    tree.note_eval(2)
    assert tree.changed
    tree.go_to(1)
    assert not tree.changed


def test_an_unfinished_checkpoint_gives_its_number_back() -> None:
    tree = tree_of(1)
    tree.note_eval(2)
    tree.discard(tree.add("", automatic=True).number)
    assert (tree.base, tree.since, tree.changed) == (2, [2], True)
    assert tree.add("", automatic=True).number == 3


def test_the_oldest_one_without_a_name_is_dropped_first_and_never_the_one_that_the_state_goes_on_from() -> None:
    tree = tree_of(1, 2)
    first = tree.find(1)
    assert first is not None
    first.name = "kept"
    oldest = tree.oldest_droppable()
    assert oldest is not None
    assert oldest.number == 2
    tree.drop(2)
    assert tree.oldest_droppable() is None


def test_digits_are_a_number_and_everything_else_a_name() -> None:
    tree = CheckpointTree()
    made = tree.add("", automatic=False, name="before-1")
    assert tree.find(1) is tree.find("1") is tree.find("before-1") is made
    assert tree.find("2") is None
    assert tree.find("other") is None


def test_a_random_history_agrees_with_a_model_that_keeps_whole_lines() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        tree, line, kept, evals = CheckpointTree(), [], {}, 0
        for _ in range(60):
            what = chance.choice(["eval", "eval", "add", "go", "drop"])
            if what == "eval":
                evals += 1
                tree.note_eval(evals)
                line = [*line, evals]
            elif what == "add":
                kept[tree.add("", automatic=True).number] = line
            elif kept:
                number = chance.choice(list(kept))
                if what == "drop":
                    tree.drop(number)
                    del kept[number]
                    continue
                change, there = tree.go_to(number), kept[number]
                assert sorted(change.undone) == sorted(set(line) - set(there)), seed
                assert sorted(change.redone) == sorted(set(there) - set(line)), seed
                line = there
            assert tree.last_eval == (line[-1] if line else 0), seed
