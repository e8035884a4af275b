"""Each command that a page shows is run as printed, or says why it cannot be run, and is one that `replctl` takes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from recorded_commands import (
    PAGES,
    ROOT,
    RecordedBlock,
    RecordedCommand,
    Replayer,
    find_blocks,
    is_as_printed,
    words_of_replctl,
)
from replctl.main import cli

BLOCKS = {page.relative_to(ROOT).as_posix(): blocks for page in PAGES if (blocks := find_blocks(page))}


@contextmanager
def own_replayer() -> Iterator[Replayer]:
    """Commands with a state directory and a directory of their own; their broker is ended afterwards."""
    state, project = (Path(tempfile.mkdtemp(prefix="rec-", dir="/tmp")) for _ in range(2))
    replayer = Replayer(state, project)
    try:
        yield replayer
    finally:
        replayer.run("replctl shutdown")
        for each in (state, project):
            shutil.rmtree(each, ignore_errors=True)


@pytest.mark.parametrize("page", BLOCKS)
def test_commands_print_what_the_page_says(page: str) -> None:
    blocks = [block for block in BLOCKS[page] if block.reason is None]
    for _ in range(2):  # pages show what is usual: a checkpoint that comes late on a busy machine has another number
        with own_replayer() as replayer:
            wrong = replay(blocks, replayer)
        if wrong is None:
            return
    pytest.fail(f"{page}:{wrong}")


def replay(blocks: list[RecordedBlock], replayer: Replayer) -> str | None:
    """Run the commands of a page, and return the first difference."""
    if blocks and "started a broker" not in blocks[0].commands[0].output:
        replayer.run(f"{blocks[0].before or 'true'}; replctl ls")
    for at, block in enumerate(blocks):
        if block.before is not None and at > 0 and (prepared := replayer.run(block.before)).exit:
            return f"{block.line}: {block.before}\n{prepared.output}"
        for recorded in block.commands:
            ran = replayer.run(recorded.command)
            if not is_as_printed(recorded, ran):
                return f"{block.line}: {_difference(recorded, ran)}"
    return None


def _difference(recorded: RecordedCommand, ran: RecordedCommand) -> str:
    shown = "\n".join(f"{name} ({each.exit}):\n{each.output}" for name, each in (("page", recorded), ("run", ran)))
    return f"$ {recorded.command}\n{shown}"


def all_commands() -> list[tuple[str, str]]:
    return [
        (f"{page}:{block.line}", each.command)
        for page, blocks in BLOCKS.items()
        for block in blocks
        for each in block.commands
    ]


def test_every_command_is_one_that_replctl_takes() -> None:
    wrong = []
    for place, command in all_commands():
        for words in words_of_replctl(command):
            try:
                _parse(words)
            except click.ClickException as error:
                wrong.append(f"{place}: {command}: {error.format_message()}")
    assert wrong == []


def _parse(words: list[str]) -> None:
    """Let click parse the arguments of a command, without calling it."""
    context = click.Context(cli, info_name="replctl")
    group: click.Group = cli
    while True:
        name, command, words = group.resolve_command(context, words)
        assert command is not None
        context = command.make_context(name, list(words), parent=context)
        if not isinstance(command, click.Group):
            return
        group, words = command, [*context._protected_args, *context.args]


def test_a_reason_is_given_for_few_blocks() -> None:
    blocks = [block for each in BLOCKS.values() for block in each]
    skipped = [block for block in blocks if block.reason is not None]
    assert all(len(block.reason or "") > 10 for block in skipped)
    assert len(skipped) * 4 < len(blocks)


@pytest.mark.parametrize(
    ("recorded", "ran", "same"),
    [
        ("took 5 ms", "took 17 s", True),
        ("took 5 ms", "took long", False),
        ("a\n…\nz", "a\nb\nc\nz", True),
        ("a\n…\nz", "a\nz", True),
        ("a …, b", "a 1 2, b", True),
        ("a", "a\nb", False),
        ("", "a", False),
        ("(1.5", "(1.5", True),
    ],
)
def test_numbers_that_vary_are_left_out_of_the_comparison(recorded: str, ran: str, same: bool) -> None:
    assert is_as_printed(RecordedCommand("", recorded, 0), RecordedCommand("", ran, 0)) is same
    assert not is_as_printed(RecordedCommand("", recorded, 1), RecordedCommand("", ran, 0))


def test_a_block_is_commands_with_output_and_codes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "x\n<!-- not run: for a reason -->\n```\n$ a 'b\nc' # d\nout\n[exit 3]\n$ e | replctl f -x\n```\n```\nno\n```\n"
    )
    [block] = find_blocks(page)
    commands = [RecordedCommand("a 'b\nc' # d", "out", 3), RecordedCommand("e | replctl f -x", "", 0)]
    assert block == RecordedBlock(page, 2, commands, "for a reason", None)
    assert words_of_replctl("e | replctl f -x; replctl g") == [["f", "-x"], ["g"]]
